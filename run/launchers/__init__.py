"""Launchers: plan(job, cluster, layouts, facts) -> LaunchPlan. Pure; run/execute.py carries plans out."""

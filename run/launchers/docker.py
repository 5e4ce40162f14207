"""Plan a run in containers: one a node, started over the ssh mesh, torchrun's agent in each. Pure.

The run folder is mounted where it is, so that ranks find their files, and the operator its results, as under
every other launcher; the image brings Python and torch (`clusterctl image`).
"""

from __future__ import annotations

from dataclasses import replace

from run.job import RUNS_FOLDER, LaunchPlan
from run.launchers.common import SYSTEM_PATH, Ground
from run.launchers.containers import ContainerPlace, ContainerSettings, container_argv, removal_argv
from run.launchers.torchrun import OWN_STORE, Elastic, plan_agents, torchrun_argv

AGENTS_USER = "{uid}:{gid}"
"""Filled in by agents.py on each node: what ranks write belongs to the user who fetches it."""


def plan(ground: Ground, settings: ContainerSettings, elastic: Elastic) -> LaunchPlan:
    """The plan for the nodes that take part. Raises SettingsError for settings that no engine can honour."""
    run_id = ground.job.run_id
    variables = {**ground.rank_environment, **OWN_STORE}

    def start(number: int, node: str) -> tuple[str, ...]:
        head = ground.cluster.head.mesh_address
        place = ContainerPlace(run_id, number, len(ground.nodes), head, ground.master_port)
        folder = RUNS_FOLDER.replace("~", ground.facts[node].home) + f"/{run_id}"
        ours = replace(_with_user(settings), volumes={folder: folder, **settings.volumes}, workdir=folder)
        command = torchrun_argv(ground, elastic, node, "python")
        return container_argv(ours, ground.layouts[node], place, command, variables)

    return plan_agents(
        ground,
        elastic,
        start,
        name="docker",
        environment={"PATH": SYSTEM_PATH, "CLUSTERCTL_RUN_ID": run_id},
        cleanup={node: removal_argv(settings.engine, run_id, node) for node in ground.nodes},
    )


def _with_user(settings: ContainerSettings) -> ContainerSettings:
    if settings.user is not None:
        return settings
    if settings.engine == "podman":  # without root: the user inside is then the one outside
        return replace(settings, run_options=("--userns=keep-id", *settings.run_options))
    return replace(settings, user=AGENTS_USER)

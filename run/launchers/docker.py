"""Plan a run in containers: one a node, started over the ssh mesh, torchrun's agent in each. Pure.

The run folder is mounted where it is, so that ranks find their files, and the operator its results, as under
every other launcher; the image brings Python and torch (`clusterctl image`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from provision.facts import NodeFacts
from provision.model import Cluster
from run.job import RUNS_FOLDER, LaunchPlan, TrainJob
from run.launchers.common import SYSTEM_PATH, rank_environment
from run.launchers.containers import ContainerPlace, ContainerSettings, container_argv, removal_argv
from run.launchers.torchrun import OWN_STORE, plan_agents, torchrun_argv
from run.layout import NodeLayout

AGENTS_USER = "{uid}:{gid}"
"""Filled in by agents.py on each node: what ranks write belongs to the user who fetches it."""


def plan(
    job: TrainJob,
    cluster: Cluster,
    layouts: Mapping[str, NodeLayout],
    facts: Mapping[str, NodeFacts],
    *,
    settings: ContainerSettings,
    python: str,
    master_port: int,
    restarts: int = 0,
    least_nodes: int | None = None,
) -> LaunchPlan:
    """The plan for the nodes of the cluster that have a layout.

    `python` is the nodes' own, for agents.py. Raises SettingsError for settings that no engine can honour.
    """
    variables = {**rank_environment(job, cluster, master_port), **OWN_STORE}
    nodes = [node for node in cluster.nodes if node.name in layouts]

    def start(number: int, name: str, nodes_range: str) -> tuple[str, ...]:
        place = ContainerPlace(job.run_id, number, len(nodes), cluster.head.mesh_address, master_port)
        folder = RUNS_FOLDER.replace("~", facts[name].home) + f"/{job.run_id}"
        ours = replace(_with_user(settings), volumes={folder: folder, **settings.volumes}, workdir=folder)
        command = torchrun_argv(job, cluster, layouts[name], nodes_range, "python", master_port, restarts)
        return container_argv(ours, layouts[name], place, command, variables)

    return plan_agents(
        job, cluster, layouts, facts, start,
        name="docker",
        python=python,
        environment={"PATH": SYSTEM_PATH, "CLUSTERCTL_RUN_ID": job.run_id},
        cleanup={node.name: removal_argv(settings.engine, job.run_id, node.name) for node in nodes},
        restarts=restarts,
        least_nodes=least_nodes,
    )  # fmt: skip


def _with_user(settings: ContainerSettings) -> ContainerSettings:
    if settings.user is not None:
        return settings
    if settings.engine == "podman":  # without root: the user inside is then the one outside
        return replace(settings, run_options=("--userns=keep-id", *settings.run_options))
    return replace(settings, user=AGENTS_USER)

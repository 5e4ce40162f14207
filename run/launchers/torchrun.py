"""Plan a run under torchrun: one agent a node, started over the ssh mesh, which meet at the head. Pure.

What torch's agents do (torch 2.13, torch/distributed/elastic), and what follows from it:

1. c10d's rendezvous gives ranks in the order of the agents' addresses as texts (10.0.0.10 before 10.0.0.2)
   and anew after each restart: so a rank is known by its place on its node, and rank 0 may be anywhere.
2. An agent decides by its host name whether it is the one that holds the store; `is_host` tells it.
3. Without --local-addr a worker is given the head's host name, which may be 127.0.1.1 there.
4. The ranks share the agents' store, where a restart finds what the last attempt left, under a number of the
   attempt that agents count each for themselves; TORCH_DISABLE_SHARE_RDZV_TCP_STORE gives each a new one.
5. Agents of a node that is gone are missed after 15 s (keep-alive 5 s x 3); the others then go on if they are
   still as many as the least number asked for.
6. It sets OMP_NUM_THREADS to 1; rank.py, which it starts, sets each rank's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from provision.errors import SettingsError
from provision.facts import NodeFacts
from provision.model import Cluster
from run.job import LaunchPlan, TrainJob
from run.launchers.common import (
    SSH_OPTIONS,
    SYSTEM_PATH,
    participants,
    place_ranks,
    plan_json,
    rank_environment,
    run_files,
)
from run.layout import NodeLayout

OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

AgentCommand = Callable[[int, str, str], tuple[str, ...]]
"""(number of the node, its name, "least:most" nodes) -> what starts its agent, in its run folder."""


def plan(
    job: TrainJob,
    cluster: Cluster,
    layouts: Mapping[str, NodeLayout],
    facts: Mapping[str, NodeFacts],
    *,
    stack_dir: str,
    master_port: int,
    restarts: int = 0,
    least_nodes: int | None = None,
) -> LaunchPlan:
    """The plan for the nodes of the cluster that have a layout.

    `restarts`: how often all ranks begin anew after one was lost. `least_nodes`: with how many nodes the run
    goes on, all of them where None. Raises SettingsError when that is no range, or the head has no layout.
    """
    python = f"{stack_dir}/bin/python"

    def start(number: int, node: str, nodes: str) -> tuple[str, ...]:
        return torchrun_argv(job, cluster, layouts[node], nodes, python, master_port, restarts)

    environment = {
        "PATH": f"{stack_dir}/bin:{SYSTEM_PATH}",
        **OWN_STORE,
        **rank_environment(job, cluster, master_port),
    }
    return plan_agents(
        job, cluster, layouts, facts, start,
        name="torchrun", python=python, environment=environment, restarts=restarts, least_nodes=least_nodes,
    )  # fmt: skip


def plan_agents(
    job: TrainJob,
    cluster: Cluster,
    layouts: Mapping[str, NodeLayout],
    facts: Mapping[str, NodeFacts],
    start: AgentCommand,
    *,
    name: str,
    python: str,
    environment: Mapping[str, str],
    restarts: int,
    least_nodes: int | None,
    cleanup: Mapping[str, tuple[str, ...]] | None = None,
) -> LaunchPlan:
    """A plan in which agents.py, run by `python`, starts one command a node.

    `cleanup` is run on a node after its agent, whatever came of that. Raises SettingsError as plan() does.
    """
    nodes = participants(cluster, layouts)
    least = len(nodes) if least_nodes is None else least_nodes
    if not 1 <= least <= len(nodes):
        raise SettingsError(f"{least}:{len(nodes)} nodes is no range; give the smaller number first")
    argv = (python, "agents.py")
    launcher = {
        "argv": argv, "environment": environment,
        "python": python, "ssh": ("ssh", *SSH_OPTIONS), "least": least,
        "agents": {node: start(number, node, f"{least}:{len(nodes)}") for number, node in enumerate(nodes)},
        **({"cleanup": cleanup} if cleanup else {}),
    }  # fmt: skip
    ranks = place_ranks(nodes, layouts)
    files = {"plan.json": plan_json(job, nodes, ranks, facts, launcher, renumbers=True)}
    # A checkpoint to go on from is rank 0's to have, and that may be anywhere.
    uploads = {**run_files(job), "agents.py": Path(__file__).parents[1] / "agents.py", **job.head_uploads}
    return LaunchPlan(
        job.run_id, nodes, ranks, argv, environment, python, files, uploads,
        launcher=name, restarts=restarts,
    )  # fmt: skip


def torchrun_argv(
    job: TrainJob, cluster: Cluster, layout: NodeLayout, nodes: str, python: str, port: int, restarts: int
) -> tuple[str, ...]:
    """The command of one node's agent; `nodes` is "least:most"."""
    is_head = layout.node == cluster.head.name
    limit_s = f"{job.rendezvous_timeout_s:.0f}"
    return (
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", nodes, "--nproc-per-node", str(layout.ppn), "--max-restarts", str(restarts)),
        *("--rdzv-id", job.run_id, "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"{cluster.head.mesh_address}:{port}"),
        *("--rdzv-conf", f"is_host={str(is_head).lower()},join_timeout={limit_s},read_timeout={limit_s}"),
        *("--local-addr", cluster.node(layout.node).mesh_address, "--monitor-interval", "0.2"),
        *("rank.py", *job.program.command, *job.script_args),
    )

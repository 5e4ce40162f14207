"""Plan a run under Intel MPI's mpirun over the ssh mesh. Pure.

What hydra (impi-rt 2021.18) does, measured, and what follows from it:

1. It finds its own files from PATH alone; I_MPI_ROOT and LD_LIBRARY_PATH are for programs that link MPI.
2. Over ssh it hands mpirun's whole environment and its working folder to every rank; where the folder is
   missing there it goes on in another one without a word. So all paths here are absolute.
3. `-f` ignores counts (of "node1:1, node2:2" and 3 ranks, node1 got 2): uneven nodes need `-machinefile`.
4. It pins ranks even where nothing calls MPI_Init: I_MPI_PIN=off leaves that to rank.py.
5. Workers call back to the head's host name, which they may not resolve: `-iface` makes it an address.
6. It takes note of a rank that failed only once all ranks on that node have ended, and ends the others then:
   run/watch.py must see failures in rank.py's events, and end the run.
7. A node that dies silently is noticed by ssh's keep-alive only, hence ServerAlive*.
8. It has one command for all nodes, or one for each (`:`), which different home folders need.
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.facts import NodeFacts
from provision.model import Cluster
from run.job import RUNS_FOLDER, LaunchPlan, TrainJob
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


def plan(
    job: TrainJob,
    cluster: Cluster,
    layouts: Mapping[str, NodeLayout],
    facts: Mapping[str, NodeFacts],
    *,
    stack_dir: str,
    master_port: int,
) -> LaunchPlan:
    """The plan for the nodes of the cluster that have a layout.

    `stack_dir` is the stack's prefix, the same on every node; `master_port` is free on the head.
    Raises SettingsError when the head has no layout: rank 0 runs there.
    """
    nodes = participants(cluster, layouts)
    ranks = place_ranks(nodes, layouts)
    hosts_argv, hostfile = _hosts(cluster, nodes, layouts)
    shared = rank_environment(job, cluster, master_port)
    command = (
        *(f"{stack_dir}/bin/python", f"{RUNS_FOLDER}/{job.run_id}/rank.py"),
        *(*job.program.command, *job.script_args),
    )
    everywhere = (
        *("-iface", facts[nodes[0]].interface),
        *(part for name, value in shared.items() for part in ("-genv", name, value)),
    )
    if len({facts[node].home for node in nodes}) == 1:
        placed = (*hosts_argv, *everywhere, *command)
    else:
        placed, hostfile = (*everywhere, *_by_node(cluster, nodes, layouts, facts, command)), {}
    argv = (f"{stack_dir}/bin/mpirun", *placed)
    environment = _launcher_environment(stack_dir)
    launcher = {"argv": argv, "environment": environment}
    files = {**hostfile, "plan.json": plan_json(job, nodes, ranks, facts, launcher)}
    python = f"{stack_dir}/bin/python"
    return LaunchPlan(
        job.run_id, nodes, ranks, argv, environment, python, files, run_files(job), job.head_uploads
    )


def _hosts(
    cluster: Cluster, nodes: tuple[str, ...], layouts: Mapping[str, NodeLayout]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """mpirun's arguments for where the ranks go, and the hostfile they need beside ~/hosts."""
    counts = [layouts[node].ppn for node in nodes]
    total = ("-n", str(sum(counts)))
    if len(nodes) == len(cluster.nodes) and len(set(counts)) == 1:
        return ("-f", "~/hosts", *total, "-ppn", str(counts[0])), {}
    text = "".join(f"{node}:{count}\n" for node, count in zip(nodes, counts, strict=True))
    return ("-machinefile", "hostfile", *total), {"hostfile": text}


def _by_node(
    cluster: Cluster,
    nodes: tuple[str, ...],
    layouts: Mapping[str, NodeLayout],
    facts: Mapping[str, NodeFacts],
    command: tuple[str, ...],
) -> tuple[str, ...]:
    """The command for each node, in its own home folder and as its own user."""
    parts: list[str] = []
    for node in nodes:
        home, user = facts[node].home, cluster.node(node).user
        own = ("-env", "HOME", home, "-env", "USER", user, "-env", "LOGNAME", user)
        words = (f"{home}{word[1:]}" if word.startswith("~/") else word for word in command)
        parts += (":", "-host", node, "-n", str(layouts[node].ppn), *own, *words)
    return tuple(parts[1:])


def _launcher_environment(stack_dir: str) -> dict[str, str]:
    return {
        "PATH": f"{stack_dir}/bin:{SYSTEM_PATH}",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": " ".join(SSH_OPTIONS),
        "I_MPI_PIN": "off",
    }

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
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision.errors import SettingsError
from provision.facts import NodeFacts
from provision.model import Cluster
from run.job import RECIPES_FOLDER, RUNS_FOLDER, LaunchPlan, RankPlacement, TrainJob, recipe_script
from run.layout import NodeLayout, ranges

SSH_OPTIONS = (
    "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=4"  # 20 s
)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
    nodes = tuple(node.name for node in cluster.nodes if node.name in layouts)
    if not nodes or nodes[0] != cluster.head.name:
        raise SettingsError(f"the head {cluster.head.name} must take part: rank 0 runs there; add it")
    ranks = place_ranks(nodes, layouts)
    hosts_argv, hostfile = _hosts(cluster, nodes, layouts)
    shared = _rank_environment(job, cluster, master_port)
    argv = (
        f"{stack_dir}/bin/mpirun",
        *hosts_argv,
        *("-iface", facts[nodes[0]].interface),
        *(part for name, value in shared.items() for part in ("-genv", name, value)),
        *(f"{stack_dir}/bin/python", f"{RUNS_FOLDER}/{job.run_id}/rank.py"),
        *(f"recipe/{recipe_script(job.recipe)}", *job.script_args),
    )
    environment = _launcher_environment(stack_dir)
    about = _plan_json(job, nodes, ranks, facts, argv, environment)
    files = {**hostfile, "plan.json": _as_json(about)}
    python = f"{stack_dir}/bin/python"
    return LaunchPlan(
        job.run_id, nodes, ranks, argv, environment, python, files, _uploads(job), job.head_uploads
    )


def place_ranks(nodes: tuple[str, ...], layouts: Mapping[str, NodeLayout]) -> tuple[RankPlacement, ...]:
    """Ranks numbered block by block in the order of the nodes, as hydra does."""
    slots = [(node, rank) for node in nodes for rank in layouts[node].ranks]
    return tuple(
        RankPlacement(number, node, rank.local_rank, rank.cpus, rank.threads)
        for number, (node, rank) in enumerate(slots)
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


def _rank_environment(job: TrainJob, cluster: Cluster, master_port: int) -> dict[str, str]:
    """What is the same for every rank."""
    return {
        "CLUSTERCTL_RUN_ID": job.run_id,
        "CLUSTERCTL_RENDEZVOUS_TIMEOUT_S": f"{job.rendezvous_timeout_s:.0f}",
        "MASTER_ADDR": cluster.head.mesh_address,
        "MASTER_PORT": str(master_port),
        **job.environment,
    }


def _launcher_environment(stack_dir: str) -> dict[str, str]:
    return {
        "PATH": f"{stack_dir}/bin:{SYSTEM_PATH}",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": SSH_OPTIONS,
        "I_MPI_PIN": "off",
    }


def _plan_json(
    job: TrainJob,
    nodes: tuple[str, ...],
    ranks: tuple[RankPlacement, ...],
    facts: Mapping[str, NodeFacts],
    argv: tuple[str, ...],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """What head.py (launcher) and rank.py (nodes, ranks) read in the run folder."""
    return {
        "run_id": job.run_id,
        "launcher": {"argv": argv, "environment": environment, "stop_grace_s": job.stop_grace_s},
        "nodes": {node: {"environment": {"GLOO_SOCKET_IFNAME": facts[node].interface}} for node in nodes},
        "ranks": [{**asdict(place), "cpus": ranges(place.cpus)} for place in ranks],
    }


def _as_json(about: Mapping[str, Any]) -> str:
    """JSON that people can read too: a line for each rank and node, however many CPUs it has."""
    sections = [f'"{key}": {_section(value)}' for key, value in about.items()]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _section(value: object) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(f" {json.dumps(item)}" for item in value) + "\n]"
    if isinstance(value, dict):
        items = [f" {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n}"
    return json.dumps(value)


def _uploads(job: TrainJob) -> dict[str, Path]:
    here = Path(__file__).parents[1]
    return {
        "rank.py": here / "rank.py",
        "head.py": here / "head.py",
        "recipe": RECIPES_FOLDER,
        **job.uploads,
    }

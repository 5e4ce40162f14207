"""What the launchers' plans have in common: who takes part, where ranks go, what they are given. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision.errors import SettingsError
from provision.facts import NodeFacts
from provision.model import Cluster
from run.job import (
    RECIPES_FOLDER,
    SPEED_FOLDER,
    RankPlacement,
    TrainJob,
)
from run.layout import NodeLayout, ranges

SSH_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4"),  # 20 s
)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def participants(cluster: Cluster, layouts: Mapping[str, NodeLayout]) -> tuple[str, ...]:
    """The nodes of the cluster that have a layout, the head first. Raises SettingsError when it has none."""
    nodes = tuple(node.name for node in cluster.nodes if node.name in layouts)
    if not nodes or nodes[0] != cluster.head.name:
        raise SettingsError(f"the head {cluster.head.name} must take part: rank 0 runs there; add it")
    return nodes


def place_ranks(nodes: tuple[str, ...], layouts: Mapping[str, NodeLayout]) -> tuple[RankPlacement, ...]:
    """Ranks numbered block by block in the order of the nodes, as hydra does."""
    slots = [(node, rank) for node in nodes for rank in layouts[node].ranks]
    return tuple(
        RankPlacement(number, node, rank.local_rank, rank.cpus, rank.threads)
        for number, (node, rank) in enumerate(slots)
    )


def rank_environment(job: TrainJob, cluster: Cluster, master_port: int) -> dict[str, str]:
    """What is the same for every rank."""
    return {
        "CLUSTERCTL_RUN_ID": job.run_id,
        "CLUSTERCTL_RENDEZVOUS_TIMEOUT_S": f"{job.rendezvous_timeout_s:.0f}",
        "MASTER_ADDR": cluster.head.mesh_address,
        "MASTER_PORT": str(master_port),
        **job.environment,
    }


def plan_json(
    job: TrainJob,
    nodes: tuple[str, ...],
    ranks: tuple[RankPlacement, ...],
    facts: Mapping[str, NodeFacts],
    launcher: Mapping[str, Any],
    *,
    renumbers: bool = False,
) -> str:
    """What head.py (launcher) and rank.py (nodes, ranks) read in the run folder.

    `renumbers`: the launcher numbers ranks as it likes, so that one is known by its place on its node alone.
    """
    about = {
        "run_id": job.run_id,
        **({"renumbers": True} if renumbers else {}),
        "launcher": {**launcher, "stop_grace_s": job.stop_grace_s},
        "nodes": {
            node: {
                "environment": {
                    "GLOO_SOCKET_IFNAME": facts[node].interface,
                    **job.node_environment.get(node, {}),
                }
            }
            for node in nodes
        },
        "ranks": [{**asdict(place), "cpus": ranges(place.cpus)} for place in ranks],
    }
    return _as_json(about)


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


def run_files(job: TrainJob) -> dict[str, Path]:
    """Path in the run folder -> file or folder of this machine."""
    here = Path(__file__).parents[1]
    return {
        "rank.py": here / "rank.py",
        "head.py": here / "head.py",
        "recipe": RECIPES_FOLDER,
        "lib/speed": SPEED_FOLDER,
        **job.uploads,
    }

"""What the launchers' plans have in common: who takes part, where ranks go, what they are given. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class Ground:
    """What every launcher plans from. Nodes of the cluster that have a layout take part.

    `stack_dir` is the stack's prefix, the same on every node; `master_port` is free on the head.
    """

    job: TrainJob
    cluster: Cluster
    layouts: Mapping[str, NodeLayout]
    facts: Mapping[str, NodeFacts]
    stack_dir: str
    master_port: int

    @property
    def python(self) -> str:
        return f"{self.stack_dir}/bin/python"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that take part, the head first. Raises SettingsError when it does not: rank 0 runs there."""
        nodes = tuple(node.name for node in self.cluster.nodes if node.name in self.layouts)
        if not nodes or nodes[0] != self.cluster.head.name:
            raise SettingsError(
                f"the head {self.cluster.head.name} must take part: rank 0 runs there; add it"
            )
        return nodes

    @property
    def ranks(self) -> tuple[RankPlacement, ...]:
        """Numbered block by block in the order of the nodes, as hydra does."""
        slots = [(node, rank) for node in self.nodes for rank in self.layouts[node].ranks]
        return tuple(
            RankPlacement(number, node, rank.local_rank, rank.cpus, rank.threads)
            for number, (node, rank) in enumerate(slots)
        )

    @property
    def command(self) -> tuple[str, ...]:
        """What rank.py is to run."""
        return (*self.job.program.command, *self.job.script_args)

    @property
    def rank_environment(self) -> dict[str, str]:
        """What is the same for every rank."""
        return {
            "CLUSTERCTL_RUN_ID": self.job.run_id,
            "CLUSTERCTL_RANKS": str(len(self.ranks)),
            "CLUSTERCTL_RENDEZVOUS_TIMEOUT_S": f"{self.job.rendezvous_timeout_s:.0f}",
            "MASTER_ADDR": self.cluster.head.mesh_address,
            "MASTER_PORT": str(self.master_port),
            **self.job.environment,
        }


def plan_json(ground: Ground, launcher: Mapping[str, Any], *, renumbers: bool = False) -> str:
    """What head.py (launcher) and rank.py (nodes, ranks) read in the run folder.

    `renumbers`: the launcher numbers ranks as it likes, so that one is known by its place on its node alone.
    """
    job = ground.job
    about = {
        "run_id": job.run_id,
        **({"renumbers": True} if renumbers else {}),
        "launcher": {**launcher, "stop_grace_s": job.stop_grace_s},
        "nodes": {node: {"environment": _node_environment(ground, node)} for node in ground.nodes},
        "ranks": [{**asdict(place), "cpus": ranges(place.cpus)} for place in ground.ranks],
    }
    return _as_json(about)


def _node_environment(ground: Ground, node: str) -> dict[str, str]:
    return {
        "GLOO_SOCKET_IFNAME": ground.facts[node].interface,
        **ground.job.node_environment.get(node, {}),
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

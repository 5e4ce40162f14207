"""Local nodes: real hosts on this machine, as near to fresh servers as Linux gives without an image.

A node has its own processes, hostname, address, mounts, disk and sshd; it shares this machine's kernel,
and its installed software by an overlay (see `asroot.image`). One supervisor process holds a cluster; when
it ends, all of the cluster does (see `asroot.supervisor`). Nothing of it is reachable from, or can reach,
anything but this machine.

Measured on 2 cores (AMD EPYC, Linux 6.18, OpenSSH 9.2), from nothing to all sshds greeting:

    nodes   create   find     create again   destroy   memory a node (PSS)
    1       0.19 s   0.01 s   0.04 s         0.09 s    8.3 MB
    4       0.23 s   0.01 s   0.05 s         0.10 s    3.6 MB
    16      0.6 s    0.05 s   0.08 s         0.10 s    2.1 MB
    64      2.0 s    0.19 s   0.22 s         0.17 s    1.7 MB

The supervisor has 10.5 MB. What a node writes is memory too, up to `disk_mib`.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.banner import which_answer
from provision.errors import ProviderError
from provision.model import Cluster, Node
from provision.providers import Forecast, Found, NodeState, Progress, Wanted
from provision.providers.local import control
from provision.providers.local.asroot.network import MOST_NODES
from provision.providers.local.control import stack_store
from provision.providers.local.requirements import check_tools, root_prefix
from provision.providers.local.settings import LocalSettings
from provision.providers.local.start import Start, cores_of_nodes, in_parallel, one_at_a_time

__all__ = ["LocalProvider", "LocalSettings", "stack_store"]

FIND_TIMEOUT_S = 3.0
BUSY_TIMEOUT_S = 60.0
HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class LocalProvider:
    """Nodes on this machine; needs root, by itself or through `sudo -n`."""

    def settled(self, settings: Any) -> Any:
        """Raises ProviderError when a tool is missing here, or the way to be root."""
        check_tools()
        root_prefix()
        return settings

    def forecast(self, wanted: Wanted) -> Forecast:
        """Nodes that do not stand would be made, on this machine and for nothing."""
        reply = control.ask(wanted.name, FIND_TIMEOUT_S, do="state")
        standing = _nodes(reply) if reply else {}
        return Forecast(tuple(name for name in wanted.node_names if name not in standing))

    def create(self, wanted: Wanted, progress: Progress) -> tuple[Node, ...]:
        """All wanted nodes, in the order of `node_names`; those that answer are left alone.

        Raises ProviderError: something is missing here, the subnet is in use, or a node does not come up.
        """
        settings = _settings(wanted)
        _check_names(wanted.node_names)
        check_tools()
        with _alone(wanted.name):
            standing = control.ask(wanted.name, FIND_TIMEOUT_S, do="state")
            if standing is None:
                wanted.record(())
            control.start_supervisor(wanted.name, settings.subnet)
            indexes = control.ask_living(wanted.name, do="reserve", nodes=wanted.node_names)["indexes"]
            standing = _nodes(control.ask_living(wanted.name, do="state"))
            alive = {name: str(node["address"]) for name, node in standing.items() if node["alive"]}
            answering = which_answer({name: alive[name] for name in wanted.node_names if name in alive})
            start = Start(
                wanted,
                settings,
                cores_of_nodes(settings, indexes),
                standing,
                answering,
                one_at_a_time(progress),
            )
            return in_parallel(start.node, wanted.node_names)

    def find(self, cluster: Cluster) -> Found:
        """GONE without a supervisor that knows the node; RUNNING when its sshd greets; else STOPPED."""
        reply = control.ask(cluster.name, FIND_TIMEOUT_S, do="state")
        standing = _nodes(reply) if reply else {}
        alive = {name: str(node["address"]) for name, node in standing.items() if node["alive"]}
        answering = which_answer(
            {node.name: alive[node.name] for node in cluster.nodes if node.name in alive}
        )
        return Found({node.name: _state(node.name, standing, answering) for node in cluster.nodes})

    def remove(self, cluster: Cluster, node_names: tuple[str, ...], progress: Progress) -> None:
        """Nodes that are not there are passed over."""
        with _alone(cluster.name):
            for name in node_names:
                progress(name, "removing")
                control.ask(cluster.name, do="remove", node=name)
                progress(name, "removed")

    def destroy(self, cluster: Cluster, progress: Progress) -> None:
        """Also when the supervisor is dead or stuck: by its folder and its processes, not by asking it."""
        if not control.runtime_dir(cluster.name).exists():
            return
        with _alone(cluster.name):
            for node in cluster.nodes:
                progress(node.name, "removing")
            control.stop_supervisor(cluster.name)
            for node in cluster.nodes:
                progress(node.name, "removed")

    def stack_store(self) -> Path | None:
        """Every node mounts it, read-only."""
        return control.stack_store()


def _settings(wanted: Wanted) -> LocalSettings:
    if not isinstance(wanted.settings, LocalSettings):
        raise ProviderError(
            f"{wanted.name}: local nodes need LocalSettings, not {type(wanted.settings).__name__}"
        )
    return wanted.settings


def _check_names(names: Sequence[str]) -> None:
    if len(names) > MOST_NODES:
        raise ProviderError(
            f"{len(names)} local nodes are too many: a cluster on one machine has at most {MOST_NODES}"
        )
    for name in names:
        if not HOSTNAME.fullmatch(name):
            raise ProviderError(
                f"node name {name!r} cannot be a hostname: use a-z, 0-9 and '-', at most 63 characters"
            )
    if len(set(names)) != len(names):
        raise ProviderError(f"a node is named twice: {', '.join(names)}")


def _nodes(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(node["name"]): node for node in state["nodes"]}


def _state(name: str, standing: Mapping[str, Any], answering: frozenset[str]) -> NodeState:
    if name not in standing:
        return NodeState.GONE
    return NodeState.RUNNING if name in answering else NodeState.STOPPED


@contextlib.contextmanager
def _alone(cluster: str) -> Iterator[None]:
    """One command at a time changes a cluster; the lock goes with the process that holds it.

    Raises ProviderError when another one keeps it for BUSY_TIMEOUT_S.
    """
    control.runtime_dir(cluster)  # refuses a name that cannot be a file's
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    # One file for all clusters: one for each name ever used would be left behind.
    with (stack_store().parent / "local.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ProviderError(
                        f"{cluster}: another clusterctl is still changing local nodes; try again"
                    ) from None
                time.sleep(0.05)
        yield

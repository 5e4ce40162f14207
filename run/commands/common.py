"""What several commands need: the hosts of a cluster, a yes from a person, a table, an answer in JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from provision.errors import SettingsError
from provision.host import SshHost
from provision.model import Cluster
from provision.state import ClusterState, choose_name


@contextlib.contextmanager
def open_hosts(cluster: Cluster) -> Iterator[list[SshHost]]:
    """A host per node, in the cluster's order; connections open on first use and close at the end."""
    hosts = [SshHost(node) for node in cluster.nodes]
    try:
        yield hosts
    finally:
        for host in hosts:
            host.close()


def standing_cluster(name: str | None) -> tuple[ClusterState, Cluster]:
    """The cluster that a command is about. Raises SettingsError when there is none with nodes."""
    state = ClusterState(choose_name(name))
    cluster = state.load()
    if cluster is None or not cluster.nodes:
        raise SettingsError(f"cluster {state.name} is half made; run `clusterctl up` to go on, or `down`")
    return state, cluster


def confirm(question: str, *, yes: bool) -> None:
    """Ask in a terminal. Raises SettingsError without one, or when the answer is not yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError(f"{question} Nobody is there to answer; say --yes")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise SettingsError("nothing was done")


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=None if not sys.stdout.isatty() else 2))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns, the same in a terminal and piped."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    for row in [headings, *rows]:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())

"""What several commands need: the hosts of a cluster, a yes from a person, a table, an answer in JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from provision.errors import SettingsError
from provision.host import SshHost
from provision.model import Cluster
from provision.play import SiteResult
from provision.state import ClusterState, choose_name
from provision.step import run_on_hosts
from run.transfer import sweep

# Prints "runs/ID" for each run that has ranks there.
_ACTIVE = "pgrep -af '[.]clusterctl/runs/.*/rank[.]py' | grep -o 'runs/[^/]*' | sort -u"


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


def active_runs(cluster: Cluster) -> str:
    """A sentence that names the runs still active, for the question before nodes go; empty without any.

    Nodes that do not answer cannot be asked and hold nobody up.
    """
    with open_hosts(cluster) as hosts:
        seen = run_on_hosts(hosts, lambda host: host.run(_ACTIVE, timeout_s=10).stdout.split())
    runs = {run for found in seen.values() if isinstance(found, list) for run in found}
    return "".join(f"{run.removeprefix('runs/')} is training and would be lost. " for run in sorted(runs))


def end_active_runs(cluster: Cluster) -> None:
    """Kill what still trains on these nodes; one that does not answer is passed over."""
    with open_hosts(cluster) as hosts:
        seen = run_on_hosts(hosts, lambda host: host.run(_ACTIVE, timeout_s=10).stdout.split())
        for run in sorted({run for found in seen.values() if isinstance(found, list) for run in found}):
            run_on_hosts(hosts, partial(sweep, run_id=run.removeprefix("runs/")))


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "node"), count(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{number} {noun}" + ("" if number == 1 else "s")


def confirm(question: str, *, yes: bool) -> None:
    """Ask in a terminal. Raises SettingsError without one, or when the answer is not yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError(f"{question} Nobody is there to answer; say --yes")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise SettingsError("nothing was done")


def failure_lines(result: SiteResult) -> list[str]:
    """One line for each step that failed: where, which, and why."""
    return [
        f"{each.node}: {each.play}: {each.step}: {each.detail.removeprefix(f'{each.node}: ')}"
        for each in result.failed
    ]


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=None if not sys.stdout.isatty() else 2))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns, the same in a terminal and piped."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    for row in [headings, *rows]:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())

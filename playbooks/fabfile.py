"""The playbooks as Fabric's tasks, for a cluster that stands: `fab -r playbooks -H node1,node2 base`.

Hosts are nodes by name or address; without -H a task is for all of them, side by side (with it, Fabric goes
from one to the next). Fabric's own connection is never opened, since it would accept any host key:
clusterctl's own is, with the keys that the record pins. CLUSTERCTL_NAME says which cluster, where there are
several; `--check` foresees.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from fabric import task
from invoke.collection import Collection
from invoke.exceptions import Exit

from playbooks.site import PLAYBOOKS
from provision.errors import ClusterctlError, SettingsError
from provision.model import Cluster, Node
from provision.play import Playbook, SiteResult
from provision.recorded import converge_cluster
from provision.report import counts_by_node, recap_lines, report_for
from provision.state import ClusterState, choose_name
from provision.step import Mode

_HELP = {"check": "Say what would change; change nothing.", "diff": "Show files before and after."}


def _converge(context: Any, playbooks: tuple[Playbook, ...], mode: Mode) -> None:
    """The playbooks on the task's host. Raises Exit, whose message Fabric prints, when a step failed."""
    try:
        result = _run(getattr(context, "host", None), playbooks, mode)
    except ClusterctlError as error:
        raise Exit(f"clusterctl: {error}", code=error.exit_code) from None
    print("\n".join(["", *recap_lines(counts_by_node(result.results))]))
    if result.failed:
        lines = [f"failed: {each.play}: {each.step}: {each.detail}" for each in result.failed]
        raise Exit("\n".join(lines), code=1)


def _run(host: str | None, playbooks: tuple[Playbook, ...], mode: Mode) -> SiteResult:
    state = ClusterState(choose_name(os.environ.get("CLUSTERCTL_NAME")))
    cluster = state.load()
    if cluster is None or not cluster.nodes:
        raise SettingsError(f"cluster {state.name} is half made; run `clusterctl up` to go on")
    nodes = cluster.nodes if host is None else (_node(cluster, host),)
    with state.locked(), report_for(as_json=False, nodes=[node.name for node in nodes]) as report:
        return converge_cluster(cluster, state, playbooks, mode, report, nodes)


def _node(cluster: Cluster, host: str) -> Node:
    """The node of that name or address. Raises SettingsError, naming those there are."""
    by_address = {node.address: node for node in cluster.nodes}
    return by_address.get(host) or cluster.node(host)


def _task(name: str, what: str, *playbooks: Playbook) -> Any:
    def run(context: Any, check: bool = False, diff: bool = False) -> None:
        _converge(context, playbooks, Mode(check, diff))

    run.__doc__ = what
    return task(name=name, help=_HELP)(run)


def _what(playbook: Playbook) -> str:
    return playbook.steps.__doc__ or sys.modules[playbook.steps.__module__].__doc__ or ""


ns = Collection()
ns.add_task(_task("site", "All that `clusterctl up` runs, in order.", *PLAYBOOKS))
for _playbook in PLAYBOOKS:
    ns.add_task(_task(_playbook.name, _what(_playbook), _playbook))

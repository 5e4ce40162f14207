"""down: remove every node and every trace of the cluster on this machine."""

from __future__ import annotations

from provision import sshconfig
from provision.errors import SettingsError
from provision.inventory import DEFAULT_NAME
from provision.model import Cluster
from provision.providers import provider_named
from provision.report import report_for
from provision.state import ClusterState, choose_name, recorded_names
from run.commands.common import active_runs, confirm, count, print_json


def down(name: str | None, *, yes: bool, as_json: bool) -> int:
    """Returns the exit code 0; a cluster that is not there is already down."""
    cluster = _found(name)
    state = ClusterState(cluster.name)
    nodes = [node.name for node in cluster.nodes]
    recorded = state.record.exists()
    if recorded and not yes:
        what = f"{count(len(nodes), 'node')} of provider {cluster.provider}, with all they hold"
        confirm(f"{active_runs(cluster)}Remove cluster {cluster.name} ({what})?", yes=yes)
    with state.locked(), report_for(as_json=as_json, nodes=nodes) as report:
        provider_named(cluster.provider).destroy(cluster, report.progress)
    sshconfig.exclude(cluster.name)
    state.remove()
    if as_json:
        print_json({"event": "down", "cluster": cluster.name, "removed": nodes})
    else:
        print(_said(cluster.name, len(nodes), recorded=recorded))
    return 0


def _said(name: str, nodes: int, *, recorded: bool) -> str:
    if recorded:
        return f"cluster {name}: {count(nodes, 'node')} removed"
    others = recorded_names()
    return f"no cluster {name} is up" + (f"; there is {', '.join(others)}" if others else "")


def _found(name: str | None) -> Cluster:
    """The recorded cluster; without a record a bare one, so that what a lost record left is removed too."""
    if name is None and len(recorded_names()) > 0:
        name = choose_name(None)
    try:
        recorded = ClusterState(name or DEFAULT_NAME).load()
    except SettingsError:  # a record that cannot be read must not keep its nodes alive
        recorded = None
    return recorded or Cluster(name or DEFAULT_NAME, "local", ())

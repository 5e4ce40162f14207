"""down: remove every node and every trace of the cluster on this machine."""

from __future__ import annotations

from provision import sshconfig
from provision.errors import SettingsError
from provision.inventory import DEFAULT_NAME
from provision.model import Cluster
from provision.providers import provider_named
from provision.report import report_for
from provision.state import ClusterState, choose_name, recorded_names
from run.commands.common import confirm, print_json


def down(name: str | None, *, yes: bool, as_json: bool) -> int:
    """Returns the exit code 0; a cluster that is not there is already down."""
    cluster = _found(name)
    state = ClusterState(cluster.name)
    nodes = [node.name for node in cluster.nodes]
    if state.record.exists():
        confirm(
            f"Remove cluster {cluster.name} ({len(nodes)} {cluster.provider} nodes, with all they hold)?",
            yes=yes,
        )
    with state.locked(), report_for(as_json=as_json, nodes=nodes) as report:
        provider_named(cluster.provider).destroy(cluster, report.progress)
    sshconfig.exclude(cluster.name)
    state.remove()
    if as_json:
        print_json({"event": "down", "cluster": cluster.name, "removed": nodes})
    else:
        print(
            f"cluster {cluster.name}: {len(nodes)} nodes removed"
            if nodes
            else f"cluster {cluster.name} is down"
        )
    return 0


def _found(name: str | None) -> Cluster:
    """The recorded cluster; without a record a bare one, so that what a lost record left is removed too."""
    if name is None and len(recorded_names()) > 0:
        name = choose_name(None)
    try:
        recorded = ClusterState(name or DEFAULT_NAME).load()
    except SettingsError:  # a record that cannot be read must not keep its nodes alive
        recorded = None
    return recorded or Cluster(name or DEFAULT_NAME, "local", ())

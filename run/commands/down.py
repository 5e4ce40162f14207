"""down: remove every node and every trace of the cluster on this machine, and in the account."""

from __future__ import annotations

import os
from pathlib import Path

from provision import sshconfig
from provision.errors import ClusterctlError, SettingsError
from provision.inventory import DEFAULT_NAME
from provision.model import Cluster
from provision.providers import provider_named
from provision.report import report_for
from provision.state import ClusterState, choose_name, recorded_names
from run.commands.common import active_runs, confirm, count, print_json


def down(
    name: str | None, region: str | None = None, *, images: bool = False, yes: bool, as_json: bool
) -> int:
    """Returns the exit code 0; a cluster that is not there is already down."""
    cluster = _found(name, region)
    state = ClusterState(cluster.name)
    nodes = [node.name for node in cluster.nodes]
    stands = state.record.exists() or bool(nodes)
    if stands and not yes:
        what = f"{count(len(nodes), 'node')} of provider {cluster.provider}, with all they hold"
        confirm(f"{_active_runs(cluster)}Remove cluster {cluster.name} ({what})?", yes=yes)
    with state.locked(), report_for(as_json=as_json, nodes=nodes) as report:
        provider_named(cluster.provider).destroy(cluster, report.progress)
        if images and cluster.provider == "ec2":
            from provision.providers.ec2.fleet import delete_images

            for image in delete_images(cluster):
                report.note(f"image {image} deleted, with its snapshots")
        sshconfig.exclude(cluster.name)
        state.remove()
    if as_json:
        print_json({"event": "down", "cluster": cluster.name, "removed": nodes})
    else:
        print(_said(cluster.name, len(nodes), stands=stands))
    return 0


def _said(name: str, nodes: int, *, stands: bool) -> str:
    if stands:
        return f"cluster {name}: {count(nodes, 'node')} removed"
    others = recorded_names()
    return f"no cluster {name} is up" + (f"; there is {', '.join(others)}" if others else "")


def _active_runs(cluster: Cluster) -> str:
    """Nodes whose key is not on this machine cannot be asked."""
    return active_runs(cluster) if all(node.host_keys for node in cluster.nodes) else ""


def _found(name: str | None, region: str | None) -> Cluster:
    """The recorded cluster; without a record what tags tell, else a bare one, so that what a lost record
    left on this machine is removed too."""
    if name is None and len(recorded_names()) > 0:
        name = choose_name(None)
    try:
        recorded = ClusterState(name or DEFAULT_NAME).load()
    except SettingsError:  # a record that cannot be read must not keep its nodes alive
        recorded = None
    return recorded or _tagged(name or DEFAULT_NAME, region) or Cluster(name or DEFAULT_NAME, "local", ())


def _tagged(name: str, region: str | None) -> Cluster | None:
    """The cluster of that name in an AWS account, where this machine looks as if it had one."""
    if region is None and not _knows_aws():
        return None
    from provision.providers.ec2.fleet import clusters_of

    try:
        return next((each for each in clusters_of(region) if each.name == name), None)
    except ClusterctlError:
        if region is not None:
            raise
        return None


def _knows_aws() -> bool:
    """Without looking for credentials, which asks the network on a machine that has none."""
    return any(key.startswith("AWS_") for key in os.environ) or (Path.home() / ".aws").is_dir()

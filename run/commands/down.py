"""down: remove every node and every trace of the cluster on this machine, and in the account."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from provision import sshconfig
from provision.errors import ClusterctlError, SettingsError
from provision.inventory import DEFAULT_NAME
from provision.model import Cluster
from provision.providers import GivesBack, provider_named
from provision.report import report_for
from provision.state import ClusterState, choose_name, recorded_names
from run.commands.common import active_runs, confirm, count, print_json
from run.commands.giving_back import give_back


def down(
    name: str | None,
    region: str | None = None,
    *,
    images: bool = False,
    purge: bool = False,
    forget: bool = False,
    yes: bool,
    as_json: bool,
) -> int:
    """Returns the exit code: 0, also for a cluster that is down already; 1 when a machine could not be given
    back, which the record keeps for the next `down`."""
    cluster = _found(name, region)
    state = ClusterState(cluster.name)
    nodes = [node.name for node in cluster.nodes]
    stands = state.record.exists() or bool(nodes)
    if stands and not yes:
        confirm(f"{_active_runs(cluster)}{_question(cluster)}", yes=yes)
    provider = provider_named(cluster.provider)
    problems: Mapping[str, ClusterctlError] = {}
    with state.locked(), report_for(as_json=as_json, nodes=nodes) as report:
        if isinstance(provider, GivesBack):
            problems = give_back(provider, cluster, nodes, state, report, purge=purge)
            if problems and not forget:
                return _left(state, problems, as_json=as_json)
        else:
            provider.destroy(cluster, report.progress)
        if images and cluster.provider == "ec2":
            from provision.providers.ec2.fleet import delete_images

            for image in delete_images(cluster):
                report.note(f"image {image} deleted, with its snapshots")
        sshconfig.exclude(cluster.name)
        state.remove()
    removed = [node for node in nodes if node not in problems]
    if as_json:
        forgotten = list(problems)
        print_json({"event": "down", "cluster": cluster.name, "removed": removed, "forgotten": forgotten})
    else:
        for problem in problems.values():
            print(f"forgotten: {problem}")
        done = "given back" if isinstance(provider, GivesBack) else "removed"
        print(_said(cluster.name, len(removed), done, stands=stands))
    return 0


def _question(cluster: Cluster) -> str:
    nodes = count(len(cluster.nodes), "node")
    if isinstance(provider_named(cluster.provider), GivesBack):
        return f"Give back cluster {cluster.name} ({nodes}; its runs on them go, packages stay)?"
    return f"Remove cluster {cluster.name} ({nodes} of provider {cluster.provider}, with all they hold)?"


def _left(state: ClusterState, problems: Mapping[str, ClusterctlError], *, as_json: bool) -> int:
    """The next `down` goes on with those that are left."""
    recorded = state.load()
    if recorded is not None:
        sshconfig.include(state, recorded)
    if as_json:
        reasons = {name: str(problem) for name, problem in problems.items()}
        print_json({"event": "down", "cluster": state.name, "left": reasons})
        return 1
    for problem in problems.values():
        print(f"failed: {problem}")
    print(
        f"cluster {state.name}: {', '.join(problems)} not given back, the others were; run `clusterctl down` "
        "again, or `down --forget` to leave them as they are"
    )
    return 1


def _said(name: str, nodes: int, done: str, *, stands: bool) -> str:
    if stands:
        return f"cluster {name}: {count(nodes, 'node')} {done}"
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

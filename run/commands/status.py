"""status: what stands, as the provider sees it now and not as the record remembers it."""

from __future__ import annotations

from provision.model import Cluster
from provision.providers import Found, NodeState, provider_named
from provision.state import ClusterState, choose_name, recorded_names
from run.commands.common import count, print_json, print_table


def status(name: str | None, region: str | None, *, as_json: bool) -> int:
    """Returns the exit code: 0 when every recorded node runs, else 1."""
    clusters = _clusters(name, region)
    seen = {cluster.name: provider_named(cluster.provider).find(cluster) for cluster in clusters}
    if as_json:
        print_json([_as_json(cluster, seen[cluster.name]) for cluster in clusters])
    elif not clusters:
        print("no cluster is up")
    for cluster in clusters if not as_json else ():
        _print_cluster(cluster, seen[cluster.name])
    all_run = all(state is NodeState.RUNNING for found in seen.values() for state in found.states.values())
    return 0 if all_run and all(seen[cluster.name].states for cluster in clusters) else 1


def _clusters(name: str | None, region: str | None) -> list[Cluster]:
    """Those of this machine's records; with a region, those that its tags tell."""
    if region is not None:
        from provision.providers.ec2.fleet import clusters_of

        return [each for each in clusters_of(region) if name in (None, each.name)]
    names = (choose_name(name),) if name is not None else recorded_names()
    return [cluster for cluster in (ClusterState(each).load() for each in names) if cluster is not None]


def _print_cluster(cluster: Cluster, found: Found) -> None:
    size = count(len(found.states), "node")
    print(f"cluster {cluster.name}: {cluster.provider}, {size}, stack {cluster.stack}")
    addresses = {node.name: node.address for node in cluster.nodes}
    rows = [
        (name, "head" if at == 0 else "worker", addresses.get(name, "not recorded"), state.value)
        for at, (name, state) in enumerate(found.states.items())
    ]
    if rows:
        print_table(("NODE", "ROLE", "ADDRESS", "STATE"), rows)
    for note in found.notes:
        print(note)
    if not rows or any(state is not NodeState.RUNNING for state in found.states.values()):
        print(f"`clusterctl up --name {cluster.name}` makes it right, `down` removes it")


def _as_json(cluster: Cluster, found: Found) -> dict[str, object]:
    addresses = {node.name: node.address for node in cluster.nodes}
    return {
        "name": cluster.name,
        "provider": cluster.provider,
        "stack": cluster.stack,
        "require_amx": cluster.require_amx,
        "nodes": [
            {"name": name, "address": addresses.get(name), "state": state.value}
            for name, state in found.states.items()
        ],
        "notes": found.notes,
    }

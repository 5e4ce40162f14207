"""status: what stands, as the provider sees it now and not as the record remembers it."""

from __future__ import annotations

from provision.model import Cluster
from provision.providers import NodeState, provider_named
from provision.state import ClusterState, choose_name, recorded_names
from run.commands.common import count, print_json, print_table


def status(name: str | None, *, as_json: bool) -> int:
    """Returns the exit code: 0 when every recorded node runs, else 1."""
    names = (choose_name(name),) if name is not None else recorded_names()
    clusters = [cluster for cluster in (ClusterState(each).load() for each in names) if cluster is not None]
    states = {cluster.name: provider_named(cluster.provider).find(cluster) for cluster in clusters}
    if as_json:
        print_json([_as_json(cluster, states[cluster.name]) for cluster in clusters])
    elif not clusters:
        print("no cluster is up")
    for cluster in clusters if not as_json else ():
        _print_cluster(cluster, states[cluster.name])
    all_run = all(state is NodeState.RUNNING for found in states.values() for state in found.values())
    return 0 if all_run and all(cluster.nodes for cluster in clusters) else 1


def _print_cluster(cluster: Cluster, states: dict[str, NodeState]) -> None:
    size = count(len(cluster.nodes), "node")
    print(f"cluster {cluster.name}: {cluster.provider}, {size}, stack {cluster.stack}")
    rows = [
        (node.name, "head" if node == cluster.head else "worker", node.address, states[node.name].value)
        for node in cluster.nodes
    ]
    if rows:
        print_table(("NODE", "ROLE", "ADDRESS", "STATE"), rows)
    if not rows or any(state is not NodeState.RUNNING for state in states.values()):
        print(f"`clusterctl up --name {cluster.name}` makes it right, `down` removes it")


def _as_json(cluster: Cluster, states: dict[str, NodeState]) -> dict[str, object]:
    return {
        "name": cluster.name,
        "provider": cluster.provider,
        "stack": cluster.stack,
        "require_amx": cluster.require_amx,
        "nodes": [
            {"name": node.name, "address": node.address, "state": states[node.name].value}
            for node in cluster.nodes
        ],
    }

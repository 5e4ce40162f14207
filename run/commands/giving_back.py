"""Machines given back to their owner: runs ended, what clusterctl put there taken away, the record true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from playbooks import base, ssh_mesh
from provision.errors import ClusterctlError
from provision.model import Cluster
from provision.providers import GivesBack, Written
from provision.providers.static.settings import StaticSettings
from provision.report import Report
from provision.state import ClusterState
from run.commands.common import end_active_runs


def give_back(
    provider: GivesBack,
    cluster: Cluster,
    node_names: Sequence[str],
    state: ClusterState,
    report: Report,
    *,
    purge: bool = False,
) -> Mapping[str, ClusterctlError]:
    """Returns why not, for those that are left; the others leave the record, one by one."""
    leaving = replace(cluster, nodes=tuple(node for node in cluster.nodes if node.name in node_names))
    end_active_runs(leaving)

    def given(name: str, notes: tuple[str, ...]) -> None:
        for note in notes:
            report.note(f"{name}: {note}")
        recorded = state.load()
        if recorded is not None:
            left = tuple(node for node in recorded.nodes if node.name != name)
            state.save(replace(recorded, nodes=left))

    return provider.give_back(cluster, node_names, written(cluster), report.progress, given, purge=purge)


def written(cluster: Cluster) -> Written:
    """The whole files of the site's playbooks, with every line that may be theirs."""
    names = StaticSettings(**cluster.settings).names
    hosts = ssh_mesh.hostfile(cluster, "~")
    return {
        hosts.path: frozenset((*hosts.content.splitlines(), *names)),
        base.LIMITS.path: frozenset(base.LIMITS.content.splitlines()),
    }

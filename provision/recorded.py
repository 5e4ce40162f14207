"""Playbooks run over a recorded cluster, for `up` and `playbook run`: commands logged, facts kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from provision.commandlog import CommandLog, LoggedHost
from provision.facts import NodeFacts
from provision.host import SshHost
from provision.model import Cluster, Node
from provision.play import Playbook, Selection, SiteResult, everything, gather, run_playbooks
from provision.state import ClusterState
from provision.step import Mode, Watcher


@contextlib.contextmanager
def logged_hosts(nodes: Sequence[Node], state: ClusterState) -> Iterator[list[LoggedHost]]:
    """A host per node whose commands go to its log; connections open on first use, close at the end."""
    hosts = [LoggedHost(SshHost(node), CommandLog(state.log(node.name))) for node in nodes]
    try:
        yield hosts
    finally:
        for host in hosts:
            host.close()


def converge_cluster(
    cluster: Cluster,
    state: ClusterState,
    playbooks: Sequence[Playbook],
    mode: Mode,
    watcher: Watcher,
    nodes: Sequence[Node] | None = None,
    selection: Selection = everything,
) -> SiteResult:
    """The playbooks over these nodes of the cluster (None: over all), from and to its recorded facts."""
    taking_part = cluster.nodes if nodes is None else nodes
    known = known_facts(cluster, state, [node for node in cluster.nodes if node not in taking_part])
    with logged_hosts(taking_part, state) as hosts:
        result = run_playbooks(cluster, hosts, playbooks, known, mode, watcher, selection)
    if not mode.check:
        here = {node.name for node in cluster.nodes}
        kept = {name: text for name, text in state.load_fact_texts().items() if name in here}
        state.save_facts({**kept, **result.fact_texts})
    return result


def known_facts(cluster: Cluster, state: ClusterState, sure: Sequence[Node] = ()) -> dict[str, NodeFacts]:
    """Recorded facts; those of `sure` are asked for where there are none. A node out of reach is absent."""
    known = state.load_facts()
    lacking = [node for node in sure if node.name not in known]
    if lacking:
        with logged_hosts(lacking, state) as hosts:
            seen = gather(cluster, hosts)
        known |= {name: each for name, each in seen.items() if isinstance(each, NodeFacts)}
    return known

"""Nodes made and removed until exactly the wanted ones stand, and the record that says so at any moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from provision import sshconfig
from provision.inventory import Inventory
from provision.model import Cluster, Node
from provision.providers import NodesUnopenable, Provider, Wanted
from provision.report import Report
from provision.stacks import build_here, stack_named
from provision.state import ClusterState
from run.commands.common import confirm


@dataclass(frozen=True)
class Making:
    """One bringing up: who makes the nodes, from what, and which."""

    provider: Provider
    inventory: Inventory
    state: ClusterState
    names: tuple[str, ...]
    replace: tuple[str, ...] = ()

    @property
    def cluster(self) -> Cluster:
        """As the record has it now, with the inventory's settings."""
        recorded = self.state.load()
        return Cluster(
            name=self.state.name,
            provider=self.inventory.provider,
            nodes=recorded.nodes if recorded else (),
            require_amx=self.inventory.require_amx,
            stack=self.inventory.stack,
            shared_stack=self.provider.stack_store() is not None,
            settings=asdict(self.inventory.provider_settings),
        )

    def wanted(self, *, may_replace: bool = False) -> Wanted:
        return Wanted(
            self.state.name,
            self.names,
            self.state.folder,
            self.state.identity_file,
            self.state.public_key(),
            self.inventory.provider_settings,
            stack=stack_named(self.inventory.stack).name,
            record=self.record,
            may_replace=may_replace,
        )

    def record(self, nodes: tuple[Node, ...]) -> None:
        """Recorded nodes that are wanted and do not stand keep their names: the next `up` makes them."""
        cluster = self.cluster
        known = {node.name: node for node in (*cluster.nodes, *nodes)}
        kept = tuple(known[name] for name in self.names if name in known)
        self.state.save(replace(cluster, nodes=kept))


def made(making: Making, report: Report, *, yes: bool) -> Cluster:
    """Create and remove nodes until exactly the wanted ones stand, and record them.

    The provider has the record written before it makes the first node, so that an interrupted `up` leaves a
    cluster that `down` finds.
    """
    _remove_leaving(making, report)
    try:
        nodes = making.provider.create(making.wanted(), report.progress)
    except NodesUnopenable as error:
        confirm(f"{error}. Make its nodes anew, losing what they hold?", yes=yes)
        nodes = making.provider.create(making.wanted(may_replace=True), report.progress)
    making.record(nodes)
    cluster = making.cluster
    sshconfig.include(making.state, cluster)
    store = making.provider.stack_store()
    if store is not None:
        build_here(stack_named(cluster.stack), store, lambda line: report.note(f"stack: {line}"))
    return cluster


def _remove_leaving(making: Making, report: Report) -> None:
    cluster = making.cluster
    leaving = tuple(
        node.name for node in cluster.nodes if node.name not in making.names or node.name in making.replace
    )
    if leaving:
        making.provider.remove(cluster, leaving, report.progress)

"""Nodes made and removed until exactly the wanted ones stand, and the record that says so at any moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from provision import sshconfig
from provision.errors import ProviderError
from provision.inventory import Inventory
from provision.model import Cluster, Node
from provision.providers import GivesBack, Nobody, NodesMissing, NodesUnopenable, Operator, Provider, Wanted
from provision.report import Report
from provision.stacks import build_here, stack_of
from provision.state import ClusterState
from provision.step import Status, StepResult
from run.commands.common import confirm
from run.commands.giving_back import give_back


@dataclass(frozen=True)
class Making:
    """One bringing up: who makes the nodes, from what, and which."""

    provider: Provider
    inventory: Inventory
    state: ClusterState
    names: tuple[str, ...]
    replace: tuple[str, ...] = ()
    operator: Operator = field(default_factory=Nobody)

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
            settings=_plain(asdict(self.inventory.provider_settings)),
            playbooks=self.inventory.playbooks,
            stack_index=self.inventory.stack_index,
            torch_index=self.inventory.torch_index,
            packages=self.inventory.packages,
        )

    def wanted(self, *, may_replace: bool = False) -> Wanted:
        return Wanted(
            self.state.name,
            self.names,
            self.state.folder,
            self.state.identity_file,
            self.state.public_key(),
            self.inventory.provider_settings,
            stack=stack_of(self.inventory).name,
            record=self.record,
            may_replace=may_replace,
            known=self.cluster.nodes,
            operator=self.operator,
        )

    def record(self, nodes: tuple[Node, ...]) -> None:
        """Recorded nodes that are wanted and do not stand keep their names: the next `up` makes them."""
        cluster = self.cluster
        known = {node.name: node for node in (*cluster.nodes, *nodes)}
        kept = tuple(known[name] for name in self.names if name in known)
        self.state.save(replace(cluster, nodes=kept))


@dataclass(frozen=True)
class Made:
    """The cluster as it stands, and a failed result for each node that could not be had."""

    cluster: Cluster
    missing: tuple[StepResult, ...] = ()


def made(making: Making, report: Report, *, yes: bool) -> Made:
    """Create and remove nodes until exactly the wanted ones stand, and record them.

    Without those that could not be had the others are a cluster; without its head there is none
    (ProviderError). The provider has the record written before it makes the first node, so that an
    interrupted `up` leaves a cluster that `down` finds.
    """
    _remove_leaving(making, report)
    nodes, missing = _created(making, report, yes=yes)
    making.record(nodes)
    named = {result.node for result in missing}
    recorded = making.cluster
    cluster = replace(recorded, nodes=tuple(node for node in recorded.nodes if node.name not in named))
    sshconfig.include(making.state, cluster)
    store = making.provider.stack_store()
    if store is not None:
        build_here(stack_of(cluster), store, lambda line: report.note(f"stack: {line}"))
    return Made(cluster, missing)


def _created(making: Making, report: Report, *, yes: bool) -> tuple[tuple[Node, ...], tuple[StepResult, ...]]:
    try:
        return _create(making, report, yes=yes), ()
    except NodesMissing as error:
        missing = tuple(
            StepResult(name, "contact", "first login", Status.FAILED, str(why).removeprefix(f"{name}: "))
            for name, why in error.problems.items()
        )
        for result in missing:
            report.ended(result)
        if making.names[0] in error.problems:
            why = error.problems[making.names[0]]
            raise ProviderError(f"without its head there is no cluster; {why}") from error
        return error.nodes, missing


def _create(making: Making, report: Report, *, yes: bool) -> tuple[Node, ...]:
    try:
        return making.provider.create(making.wanted(), report.progress)
    except NodesUnopenable as error:
        with report.paused():
            confirm(f"{error}. {error.question}", yes=yes)
        return making.provider.create(making.wanted(may_replace=True), report.progress)


def _plain(value: Any) -> Any:
    """As YAML writes it."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _remove_leaving(making: Making, report: Report) -> None:
    cluster = making.cluster
    leaving = tuple(
        node.name for node in cluster.nodes if node.name not in making.names or node.name in making.replace
    )
    if not leaving:
        return
    if not isinstance(making.provider, GivesBack):
        making.provider.remove(cluster, leaving, report.progress)
        return
    problems = give_back(making.provider, cluster, leaving, making.state, report)
    if problems:
        why = "; ".join(map(str, problems.values()))
        raise ProviderError(f"{why}; run it again when it can be reached, or give it up with --forget")

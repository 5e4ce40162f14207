"""Machines that stand already: met, used, and given back as they were found.

Nothing is made. `targets` says where a machine is and how one gets in, `contact` takes the operator's login
to the cluster's own key, `originals` keeps what was there before, `give_back` brings it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.connection import which_greet
from provision.errors import (
    ClusterctlError,
    HostError,
    HostKeyError,
    LoginRefused,
    ProviderError,
    SettingsError,
)
from provision.host import SshHost
from provision.model import Cluster, Node
from provision.providers import (
    Forecast,
    Found,
    Given,
    NodesMissing,
    NodeState,
    Progress,
    Wanted,
    Written,
)
from provision.providers.static.contact import FirstContact
from provision.providers.static.give_back import Returning
from provision.providers.static.settings import StaticSettings
from provision.providers.static.targets import Target, target

__all__ = ["StaticProvider", "StaticSettings"]

PROBE_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 10.0
FANOUT = 64


class StaticProvider:
    """Somebody's machines. create() has the first contact with those that the cluster's key does not open."""

    def settled(self, settings: Any) -> Any:
        """Raises SettingsError when the inventory lists no machines."""
        if not isinstance(settings, StaticSettings) or not settings.machines:
            raise SettingsError("provider static: the inventory lists no machines; name them under `hosts:`")
        return settings

    def forecast(self, wanted: Wanted) -> Forecast:
        """Nothing is made; the lines say where each machine is."""
        known = {node.name for node in wanted.known}
        lines = []
        for name in wanted.node_names:
            try:
                found = self._target(wanted, name)
                way = f" through {found.node.jump}" if found.node.jump else ""
                lines.append(f"{found.place}{way}: {'known' if name in known else 'would be met'}")
            except HostError as error:
                lines.append(str(error))
        return Forecast((), tuple(lines))

    def create(self, wanted: Wanted, progress: Progress) -> tuple[Node, ...]:
        """All wanted machines, opened by the cluster's key. A known one that does not answer is returned as
        recorded: whoever uses it will see.

        Raises NodesMissing with those that opened and why the others did not, NodesUnopenable.
        """
        nodes: dict[str, Node] = {}
        problems: dict[str, ClusterctlError] = {}
        targets: list[Target] = []
        for name, found in self._in_parallel(wanted).items():
            if isinstance(found, ClusterctlError):
                problems[name] = found
            elif isinstance(found, Node):
                nodes[name] = found
            else:
                targets.append(found)
        contact = FirstContact(wanted, targets, progress)
        nodes |= {node.name: node for node in contact.nodes()}
        problems |= contact.problems
        opened = tuple(nodes[name] for name in wanted.node_names if name in nodes)
        if problems:
            raise NodesMissing(opened, {n: problems[n] for n in wanted.node_names if n in problems})
        return opened

    def find(self, cluster: Cluster) -> Found:
        """RUNNING when its sshd greets, else SILENT: what else it is nobody here can tell."""
        greeting = which_greet(cluster.nodes, PROBE_TIMEOUT_S)
        return Found(
            {
                node.name: NodeState.RUNNING if node.name in greeting else NodeState.SILENT
                for node in cluster.nodes
            }
        )

    def remove(self, cluster: Cluster, node_names: tuple[str, ...], progress: Progress) -> None:
        """Given back, with every whole file that clusterctl might have written there left in doubt."""
        self._raise(self.give_back(cluster, node_names, {}, progress, lambda name, notes: None))

    def destroy(self, cluster: Cluster, progress: Progress) -> None:
        names = [node.name for node in cluster.nodes]
        self._raise(self.give_back(cluster, names, {}, progress, lambda name, notes: None))

    def give_back(
        self,
        cluster: Cluster,
        node_names: Sequence[str],
        written: Written,
        progress: Progress,
        given: Given,
        *,
        purge: bool = False,
    ) -> Mapping[str, ClusterctlError]:
        return Returning(cluster, written, progress, purge=purge).all(node_names, given)

    def stack_store(self) -> Path | None:
        """None: the head builds the stack."""
        return None

    def _in_parallel(self, wanted: Wanted) -> dict[str, Node | Target | ClusterctlError]:
        def opened(name: str) -> Node | Target | ClusterctlError:
            try:
                return self._opened(wanted, name)
            except ClusterctlError as error:
                return error

        with ThreadPoolExecutor(max(1, min(FANOUT, len(wanted.node_names)))) as pool:
            return dict(zip(wanted.node_names, pool.map(opened, wanted.node_names), strict=True))

    def _opened(self, wanted: Wanted, name: str) -> Node | Target:
        """The node when the cluster's key opens it, else who is to be met."""
        found = self._target(wanted, name)
        known = next((node for node in wanted.known if node.name == name), None)
        if known is None:
            return found
        if known.user != found.node.user:
            raise ProviderError(
                f"{name}: it was set up for user {known.user}, and is {found.node.user} now; "
                "run `clusterctl down` with the old inventory first"
            )
        node = replace(
            found.node,
            host_keys=found.stated or known.host_keys,
            private_address=found.node.private_address or known.private_address,
        )
        try:
            return node if self._opens(node) else found
        except HostError:
            return node

    def _opens(self, node: Node) -> bool:
        """By the cluster's key, and to root. False for a changed host key too: the first contact tells who
        expected which. Raises HostError when the node does not answer."""
        with SshHost(node, CONNECT_TIMEOUT_S) as host:
            try:
                sudo = host.run("sudo -n true 2> /dev/null", expect=range(256))
            except (LoginRefused, HostKeyError):
                return False
        return node.user == "root" or sudo.exit_code == 0

    def _target(self, wanted: Wanted, name: str) -> Target:
        settings = wanted.settings
        if not isinstance(settings, StaticSettings):
            raise SettingsError(f"{wanted.name}: static nodes need StaticSettings")
        return target(settings.machine(name), wanted.identity_file, settings.machines)

    def _raise(self, problems: Mapping[str, ClusterctlError]) -> None:
        if problems:
            raise ProviderError("; ".join(str(error) for error in problems.values()))

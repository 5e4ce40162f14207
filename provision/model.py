"""The few types that flow through the house: frozen, plain, standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.errors import SettingsError


@dataclass(frozen=True)
class Node:
    """One machine of a cluster.

    `address` is where the operator reaches it, `mesh_address` where the other nodes do (the same
    unless the provider says otherwise). `host_keys` are the public host keys it must show
    ("ssh-ed25519 AAAA..."), pinned before the first connection. `core_share` is the part of its cores
    that the node may count on: 0.5 for each of two simulated nodes on the same cores. `jump` is the way there
    where the operator does not reach it directly: "user@host:port", or several with commas, as ssh -J has it.
    """

    name: str
    address: str
    user: str = "ubuntu"
    port: int = 22
    private_address: str | None = None
    identity_file: Path | None = None
    host_keys: tuple[str, ...] = ()
    provider_id: str | None = None
    core_share: float = 1.0
    jump: str | None = None

    @property
    def mesh_address(self) -> str:
        return self.private_address or self.address


@dataclass(frozen=True)
class Machine:
    """A machine that stands already, as an inventory lists it; what is None, the operator's ssh config says.

    `local` is the machine that the operator sits at (ansible_connection: local).
    """

    name: str
    address: str | None = None
    user: str | None = None
    port: int | None = None
    private_address: str | None = None
    identity_file: Path | None = None
    host_keys: tuple[str, ...] = ()
    jump: str | None = None
    local: bool = False


@dataclass(frozen=True)
class Cluster:
    """Nodes that train together. The first one is the head: mpirun starts there.

    `shared_stack` says that all nodes see one folder of stacks that is filled from outside them
    (the local provider mounts it); otherwise the head builds the stack and copies it out. `playbooks` are
    the user's own, absolute paths of files, run after the site's; `packages` what their scripts need beside
    the stack.
    """

    name: str
    provider: str
    nodes: tuple[Node, ...]
    require_amx: bool = False
    stack: str = "native"
    shared_stack: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    playbooks: tuple[str, ...] = ()
    stack_index: str | None = None
    torch_index: str | None = None
    packages: tuple[str, ...] = ()

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def workers(self) -> tuple[Node, ...]:
        return self.nodes[1:]

    def node(self, name: str) -> Node:
        """The node of that name.

        Raises SettingsError, naming the nodes there are.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise SettingsError(f"cluster {self.name} has no node {name!r}; it has {known}")

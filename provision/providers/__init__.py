"""Providers make, find and remove nodes. A new one: one file, one row in PROVIDERS, one settings
dataclass, and the shared contract test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from provision.errors import SettingsError
from provision.model import Cluster, Node

# Called with the node's name and what happens to it now ("starting", "ready", ...).
Progress = Callable[[str, str], None]


class NodeState(Enum):
    """What the provider sees of a node that the record names."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True)
class Wanted:
    """What the inventory asks of a provider.

    `settings` is the provider's own frozen dataclass, `state_dir` a private folder (0700) where it may
    keep keys; `public_key` is the operator's key for this cluster, to be authorised for `user`.
    """

    name: str
    node_names: tuple[str, ...]
    state_dir: Path
    identity_file: Path
    public_key: str
    settings: Any


class Provider(Protocol):
    """1. create() finds what stands first and makes only what is missing; nothing is made twice.
    2. create() also revives nodes that stand but do not answer.
    3. remove() and destroy() tolerate absence and return when it is observed gone.
    4. find() never changes anything.
    """

    def check(self) -> None:
        """Raises ProviderError when nodes cannot be made from here at all; changes nothing."""

    def create(self, wanted: Wanted, progress: Progress) -> tuple[Node, ...]:
        """All wanted nodes, in the order of `node_names`. Raises ProviderError."""

    def find(self, cluster: Cluster) -> dict[str, NodeState]:
        """State of every node the record names."""

    def remove(self, cluster: Cluster, node_names: tuple[str, ...], progress: Progress) -> None:
        """Remove some nodes, leaving the others undisturbed."""

    def destroy(self, cluster: Cluster, progress: Progress) -> None:
        """Remove every node and everything that create() made for the cluster."""

    def stack_store(self) -> Path | None:
        """The folder of this machine that its nodes see as /opt/clusterctl/stacks, None if they see none."""


# Provider -> its class and its settings dataclass, as "module:name". Imported only when used: boto3 alone
# costs 0.2 s.
PROVIDERS = {
    "local": ("provision.providers.local:LocalProvider", "provision.providers.local.settings:LocalSettings"),
}


def provider_named(name: str) -> Provider:
    """The provider of that name. Raises SettingsError naming the providers there are."""
    return cast(Provider, _imported(name, 0)())


def settings_class(name: str) -> type:
    """The settings dataclass of that provider. Raises SettingsError naming the providers there are."""
    return cast(type, _imported(name, 1))


def _imported(name: str, which: int) -> Any:
    if name not in PROVIDERS:
        raise SettingsError(f"no provider {name!r}; there are {', '.join(sorted(PROVIDERS))}")
    module, _, attribute = PROVIDERS[name][which].partition(":")
    return getattr(import_module(module), attribute)

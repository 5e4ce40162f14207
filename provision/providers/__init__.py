"""Providers make, find and remove nodes. A new one: one file, one row in PROVIDERS, one settings
dataclass, and the shared contract test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from provision.errors import ClusterctlError, ProviderError, SettingsError
from provision.model import Cluster, Node

# Called with the node's name and what happens to it now ("starting", "ready", ...).
Progress = Callable[[str, str], None]


class NodeState(Enum):
    """What the provider sees of a node that the record names."""

    RUNNING = "running"
    SILENT = "silent"  # it runs, and its sshd does not answer
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True)
class Found:
    """What the provider sees of a cluster: each node's state, those that the record does not name included,
    and what else a person wants to know ("ends by itself at ..."), a line each."""

    states: Mapping[str, NodeState]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnknownKey:
    """A host key that nobody has vouched for yet: "n01", "ann@10.0.0.5", "ssh-ed25519 AAAA..."."""

    node: str
    where: str
    key: str


class Secret(Enum):
    """What a password is for."""

    LOGIN = "login"
    SUDO = "sudo"


class Operator(Protocol):
    """The person at the terminal, or the options that answer in his place."""

    def accepts(self, keys: Sequence[UnknownKey]) -> bool:
        """Are all these host keys right? Raises SettingsError where nobody can say."""

    def password(self, secret: Secret, places: Sequence[str], *, refused: bool = False) -> str:
        """One password for all these places ("n01 (ann@10.0.0.5)"); `refused`: the last one was wrong.

        Raises SettingsError where there is none to give.
        """

    def tell(self, line: str) -> None:
        """One line that a person should read."""


class Nobody:
    """No one to ask."""

    def accepts(self, keys: Sequence[UnknownKey]) -> bool:
        raise SettingsError("nobody is there to confirm host keys")

    def password(self, secret: Secret, places: Sequence[str], *, refused: bool = False) -> str:
        raise SettingsError(f"nobody is there to give a {secret.value} password")

    def tell(self, line: str) -> None: ...


@dataclass(frozen=True)
class Wanted:
    """What the inventory asks of a provider.

    `settings` is the provider's own frozen dataclass, `state_dir` a private folder (0700) where it may
    keep keys; `public_key` is the operator's key for this cluster, to be authorised for `user`. `known` are
    the nodes as recorded, `operator` answers what must be asked.
    """

    name: str
    node_names: tuple[str, ...]
    state_dir: Path
    identity_file: Path
    public_key: str
    settings: Any
    stack: str = ""
    record: Callable[[tuple[Node, ...]], None] = lambda nodes: None
    may_replace: bool = False
    known: tuple[Node, ...] = ()
    operator: Operator = field(default_factory=Nobody)


@dataclass(frozen=True)
class Forecast:
    """What create() would do now: the nodes it would make, and the lines that say how and what it costs.

    `usd_per_hour` is for all wanted nodes together; None where nobody sends a bill.
    """

    make: tuple[str, ...]
    details: tuple[str, ...] = ()
    usd_per_hour: float | None = None


class NodesUnopenable(ProviderError):
    """Nodes of that name stand, and nothing on this machine opens them: its state folder is gone, say.

    create() raises it before it changes anything; with `Wanted.may_replace` it makes them anew instead.
    """

    def __init__(self, problem: str, question: str = "Make its nodes anew, losing what they hold?") -> None:
        super().__init__(problem)
        self.question = question


class NodesMissing(ProviderError):
    """create() could not have all nodes: those it has, and for each other why not. All was tried."""

    def __init__(self, nodes: tuple[Node, ...], problems: Mapping[str, ClusterctlError]) -> None:
        super().__init__("; ".join(map(str, problems.values())))
        self.nodes = nodes
        self.problems = problems


class Provider(Protocol):
    """1. create() finds what stands first and makes only what is missing; nothing is made twice.
    2. create() also revives nodes that stand but do not answer.
    3. remove() and destroy() tolerate absence and return when it is observed gone.
    4. settled(), forecast() and find() never change anything.
    """

    def settled(self, settings: Any) -> Any:
        """The settings with what they leave to this machine's environment decided, for the record.

        Raises ProviderError when nodes cannot be made from here at all.
        """

    def forecast(self, wanted: Wanted) -> Forecast:
        """What create() would do. Raises ProviderError as it would."""

    def create(self, wanted: Wanted, progress: Progress) -> tuple[Node, ...]:
        """All wanted nodes, in the order of `node_names`. Raises ProviderError."""

    def find(self, cluster: Cluster) -> Found:
        """What stands of it now."""

    def remove(self, cluster: Cluster, node_names: tuple[str, ...], progress: Progress) -> None:
        """Remove some nodes, leaving the others undisturbed."""

    def destroy(self, cluster: Cluster, progress: Progress) -> None:
        """Remove every node and everything that create() made for the cluster."""

    def stack_store(self) -> Path | None:
        """The folder of this machine that its nodes see as /opt/clusterctl/stacks, None if they see none."""


# Called with a node's name when nothing of the cluster is left on it, and with what a person should know.
Given = Callable[[str, tuple[str, ...]], None]
# Of whole files that playbooks write: the path (~/ for the login user's home) and every line that may be
# in one. A file that holds others too was edited since.
Written = Mapping[str, frozenset[str]]


@runtime_checkable
class GivesBack(Protocol):
    """A provider whose nodes are somebody's machines: they are left as they were found."""

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
        """Take away what clusterctl put there, on all at once; returns why not, for those that are left.

        `purge`: the training stack too.
        """


@runtime_checkable
class Baker(Protocol):
    """A provider whose nodes start from images, and that can make them."""

    def baked(self, settings: Any, stack: str) -> str | None:
        """The image with that stack that new nodes would start from, None when there is none."""

    def bake(self, cluster: Cluster, stack: str, progress: Progress) -> str:
        """Make an image of the head, without what is the cluster's own (keys, names); returns it."""


# Provider -> its class and its settings dataclass, as "module:name". Imported only when used: boto3 alone
# costs 0.2 s.
PROVIDERS = {
    "local": ("provision.providers.local:LocalProvider", "provision.providers.local.settings:LocalSettings"),
    "static": (
        "provision.providers.static:StaticProvider",
        "provision.providers.static.settings:StaticSettings",
    ),
    "ec2": ("provision.providers.ec2:Ec2Provider", "provision.providers.ec2.settings:Ec2Settings"),
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

"""What the inventory may say of local nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import IPv4Network
from typing import Any

from provision.errors import SettingsError
from provision.providers.local.asroot.network import bits_per_s
from provision.providers.local.asroot.simulated_cpu import CPUS


@dataclass(frozen=True)
class LocalSettings:
    """All optional; nodes that stand keep the settings they were made with.

    subnet: a private network that this machine does not use ("198.18.7.0/24"); None has one chosen.
    link_rate: limit of each node's link in either direction, as tc writes it ("10gbit"); None is no limit.
    cores: the machine's cores that every node may use ("0-1", "0,2"), or a tuple of such, given to the
        nodes in turn in the order of their addresses.
    cores_per_node: so many of this machine's cores for each node, given out in turn and from the start again
        when there are no more. Cores hold for scheduling (nproc, taskset); lscpu still shows them all.
    simulate_cpu: a CPU that lscpu shall see in the nodes; see `asroot.simulated_cpu`.
    disk_mib: size of a node's disk in MiB, taken from this machine's memory as it fills.
    """

    subnet: str | None = None
    link_rate: str | None = None
    cores: str | tuple[str, ...] | None = None
    cores_per_node: int | None = None
    simulate_cpu: str | None = None
    disk_mib: int = 8192

    def __post_init__(self) -> None:
        if isinstance(self.cores, list):  # as YAML gives it
            object.__setattr__(self, "cores", tuple(map(str, self.cores)))
        if self.cores is not None and self.cores_per_node is not None:
            raise SettingsError("local: give cores or cores_per_node, not both")
        for text in self._core_lists():
            parse_cores(text)
        if self.cores_per_node is not None and self.cores_per_node < 1:
            raise SettingsError(f"local: cores_per_node must be at least 1, not {self.cores_per_node}")
        if self.disk_mib < 64:
            raise SettingsError(f"local: disk_mib must be at least 64, not {self.disk_mib}")
        if self.simulate_cpu is not None and self.simulate_cpu not in CPUS:
            known = ", ".join(CPUS)
            raise SettingsError(f"local: no CPU {self.simulate_cpu!r} to simulate; there is {known}")
        self._check_subnet()
        self._check_rate()

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> LocalSettings:
        """From the inventory. Raises SettingsError naming what is unknown and what there is."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise SettingsError(f"local: no setting {', '.join(unknown)}; there are {', '.join(known)}")
        return cls(**settings)

    def cores_of(self, index: int, machine_cores: tuple[int, ...]) -> str | None:
        """Cores of the node with this index, as taskset takes them; None is all of them.

        >>> LocalSettings(cores_per_node=2).cores_of(1, (0, 1, 2))
        '0,2'
        """
        if self.cores_per_node:
            first, count = index * self.cores_per_node, min(self.cores_per_node, len(machine_cores))
            chosen = {machine_cores[(first + at) % len(machine_cores)] for at in range(count)}
            return ",".join(map(str, sorted(chosen)))
        lists = self._core_lists()
        return lists[index % len(lists)] if lists else None

    def _core_lists(self) -> tuple[str, ...]:
        if self.cores is None:
            return ()
        return self.cores if isinstance(self.cores, tuple) else (str(self.cores),)

    def _check_subnet(self) -> None:
        try:
            IPv4Network(self.subnet or "198.18.0.0/24")
        except ValueError as error:
            raise SettingsError(f"local: subnet {error}") from None

    def _check_rate(self) -> None:
        if self.link_rate is None:
            return
        try:
            bits_per_s(self.link_rate)
        except ValueError as error:
            raise SettingsError(f"local: link_rate {error}") from None


def parse_cores(text: str) -> frozenset[int]:
    """The cores of "0-3,8". Raises SettingsError.

    >>> sorted(parse_cores("0-2,8"))
    [0, 1, 2, 8]
    """
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise SettingsError(f"local: cores {text!r} is no list such as 0-3 or 0,2")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)

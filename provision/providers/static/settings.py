"""What the inventory may say of machines that stand already."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from provision.errors import SettingsError
from provision.model import Machine

# A machine's name becomes a line of /etc/hosts, a Host of ssh's configuration and part of file names.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class StaticSettings:
    """All optional. `machines` comes from the inventory's hosts, never from this block.

    group: the inventory's group whose hosts are the nodes; None is all hosts.
    head: the machine that mpirun starts on; None is the first.
    """

    group: str | None = None
    head: str | None = None
    machines: tuple[Machine, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "machines", tuple(map(_machine, self.machines)))
        names = [machine.name for machine in self.machines]
        for name in names:
            check_machine_name(name)
        if self.head is not None and names and self.head not in names:
            raise SettingsError(f"static: head {self.head!r} is not among the machines: {', '.join(names)}")

    @property
    def in_order(self) -> tuple[Machine, ...]:
        """The head, then the others as the inventory has them."""
        return tuple(sorted(self.machines, key=lambda machine: machine.name != self.head))

    def machine(self, name: str) -> Machine:
        """Raises SettingsError when the inventory has none of that name."""
        for machine in self.machines:
            if machine.name == name:
                return machine
        raise SettingsError(f"no machine {name!r} in the inventory; it has {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(machine.name for machine in self.in_order)


def check_machine_name(name: str) -> None:
    """Raises SettingsError unless a node can be called so."""
    if not _NAME.fullmatch(name):
        raise SettingsError(f"static: {name!r} cannot be a node's name; use letters, digits, '.' and '-'")
    try:
        ip_address(name)
    except ValueError:
        return
    raise SettingsError(
        f"static: {name} is an address; give the machine a name, and the address as its ansible_host"
    )


def _machine(value: Machine | Mapping[str, Any]) -> Machine:
    """From the record, which has plain values."""
    if isinstance(value, Machine):
        return value
    known = {field.name for field in fields(Machine)}
    machine = Machine(**{key: each for key, each in value.items() if key in known})
    identity = machine.identity_file
    return replace(
        machine, host_keys=tuple(machine.host_keys), identity_file=Path(identity) if identity else None
    )

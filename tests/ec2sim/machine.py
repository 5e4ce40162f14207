"""An instance as the fleet holds it: moto's record of it, and its host."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from moto.ec2.models.instances import Instance, InstanceState

from tests.ec2sim.hosts import SimulatedHost

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


@dataclass(frozen=True)
class Boot:
    """How a first boot goes: "" is well; see World.next_boot for the kinds."""

    kind: str = ""
    seconds: float = 0.0


@dataclass(eq=False)
class Machine:
    """An instance, and its host from the start of its boot to the end of its life."""

    instance: Instance
    region: str
    link: str
    boot: Boot
    born: float = field(default_factory=time.monotonic)
    host: SimulatedHost | None = None
    console: str = ""
    notice: dict[str, str] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def state(self) -> str:
        return str(self.instance._state.name)

    @state.setter
    def state(self, name: str) -> None:
        self.instance._state = InstanceState(name, CODES[name])


def host_name(address: str) -> str:
    """
    >>> host_name("172.31.16.4")
    'ip-172-31-16-4'
    """
    return "ip-" + address.replace(".", "-")

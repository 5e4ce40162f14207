"""Bringing up the nodes of one create(), several at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from provision.banner import wait_for_banner
from provision.errors import ProviderError, SettingsError
from provision.model import Node
from provision.providers import Progress, Wanted
from provision.providers.local import control
from provision.providers.local.asroot.accounts import USER
from provision.providers.local.settings import LocalSettings, parse_cores

# Starting a node is some forty short processes; more at once than this only makes each one slower.
STARTS_AT_ONCE = 2 * (os.cpu_count() or 1)
READY_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Start:
    """Brings single nodes of one create() up; called from several threads."""

    wanted: Wanted
    settings: LocalSettings
    cores: Mapping[str, str]
    standing: Mapping[str, Mapping[str, Any]]
    answering: frozenset[str]
    progress: Progress

    def node(self, name: str) -> Node:
        if name in self.answering:
            return self._as_node(self.standing[name])
        self.progress(name, "starting")
        found = self._started(name)
        if not wait_for_banner(str(found["address"]), READY_TIMEOUT_S):
            lines = control.ask_living(self.wanted.name, do="console", node=name, lines=3)["lines"]
            said = " / ".join(lines) or "nothing"
            raise ProviderError(
                f"{name}: its sshd does not answer after {READY_TIMEOUT_S:.0f} s; console: {said}"
            )
        self.progress(name, "ready")
        return self._as_node(found)

    def _started(self, name: str) -> Mapping[str, Any]:
        """One that stands and is silent is restarted, with its disk and the settings it was made with."""
        if name in self.standing:
            return control.ask_living(self.wanted.name, do="restart", node=name)
        return control.ask_living(
            self.wanted.name,
            do="start",
            node=name,
            public_key=self.wanted.public_key,
            settings={
                "disk_mib": self.settings.disk_mib,
                "link_rate": self.settings.link_rate,
                "simulate_cpu": self.settings.simulate_cpu,
                "cores": self.cores[name],
            },
        )

    def _as_node(self, found: Mapping[str, Any]) -> Node:
        return Node(
            name=str(found["name"]),
            address=str(found["address"]),
            user=USER,
            identity_file=self.wanted.identity_file,
            host_keys=(str(found["host_key"]),),
            provider_id=str(found["pid"]),
            core_share=core_share(str(found["name"]), self.cores),
        )


def in_parallel(start: Callable[[str], Node], names: Sequence[str]) -> tuple[Node, ...]:
    """When one fails, or the user interrupts, those under way are finished and no more are begun."""
    with ThreadPoolExecutor(STARTS_AT_ONCE) as pool:
        futures = [pool.submit(start, name) for name in names]
        try:
            return tuple(future.result() for future in futures)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def one_at_a_time(progress: Progress) -> Progress:
    """Who shows progress need not know that several threads report it."""
    lock = threading.Lock()

    def report(name: str, what: str) -> None:
        with lock:
            progress(name, what)

    return report


def cores_of_nodes(settings: LocalSettings, indexes: Mapping[str, int]) -> dict[str, str]:
    """Each node's cores, as taskset takes them; `indexes` are their places in the order of addresses.

    Raises SettingsError when a node would get a core that is not here.
    """
    machine = tuple(sorted(os.sched_getaffinity(0)))
    everything = ",".join(map(str, machine))
    cores = {name: settings.cores_of(index, machine) or everything for name, index in indexes.items()}
    for name, text in cores.items():
        if not parse_cores(text) <= set(machine):
            raise SettingsError(f"local: {name} cannot have cores {text}; this machine has {everything}")
    return cores


def core_share(name: str, cores: Mapping[str, str]) -> float:
    """The part of its cores that a node may count on when all nodes are busy.

    >>> core_share("n01", {"n01": "0,1", "n02": "1"})
    0.75
    """
    sets = {node: parse_cores(text) for node, text in cores.items()}
    users = [sum(core in other for other in sets.values()) for core in sets[name]]
    return sum(1 / count for count in users) / len(users)

"""Instances and their hosts: what happens between two states of an instance, each in a thread of its own.

The API's patches (see `api`) call launch(), terminate(), stop(), start(), reboot() and bake(), which return
at once. What moto knows about an instance is only touched under `lock`, which the API holds too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from moto.ec2.models.instances import Instance, StateReason

from provision.providers.local.asroot import Refused
from provision.providers.local.asroot.host import Place
from provision.providers.local.asroot.simulated_cpu import write as write_simulated_cpu
from tests.ec2sim.firewall import Guarded
from tests.ec2sim.hosts import Images, SimulatedHost
from tests.ec2sim.machine import Boot, Machine, host_name
from tests.ec2sim.settings import Settings

POWERED_OFF, RESTARTED = -2, -1
INTERNAL_ERROR = StateReason("Server.InternalError: Internal error on launch", "Server.InternalError")
SHUT_DOWN = StateReason(
    "Client.InstanceInitiatedShutdown: Instance initiated shutdown", "Client.InstanceInitiatedShutdown"
)


class Fleet:
    def __init__(self, folder: Path, settings: Settings, images: Images, lock: threading.RLock) -> None:
        self.settings = settings
        self.lock = lock
        self.machines: dict[str, Machine] = {}
        self.boots: deque[Boot] = deque()
        self.images = images
        # Set by the API: moto's own end of an instance, and what applies the security groups anew.
        self.release: Callable[[Instance], None] = lambda instance: None
        self.networks_changed: Callable[[], None] = lambda: None
        self._folder = folder
        self._links = 0
        self._simulated = self._simulate_cpu()

    def launch(self, instance: Instance, region: str) -> None:
        """For an instance that moto has just made."""
        self._links += 1
        boot = self.boots.popleft() if self.boots else Boot()
        machine = Machine(instance, region, f"h{self._links}", boot)
        machine.state = "pending"
        self.machines[instance.id] = machine
        _in_background(self._boot, machine)

    def terminate(self, instance: Instance, reason: StateReason | None = None) -> None:
        machine = self.machines[instance.id]
        if machine.state not in ("shutting-down", "terminated"):
            machine.state = "shutting-down"
            instance.state_reason = reason or StateReason(
                "Client.UserInitiatedShutdown: User initiated shutdown", "Client.UserInitiatedShutdown"
            )
            _in_background(self._end, machine, self.settings.terminate_delay_s)

    def stop(self, instance: Instance) -> None:
        machine = self.machines[instance.id]
        if machine.state in ("pending", "running"):
            machine.state = "stopping"
            _in_background(self._stop, machine)

    def start(self, instance: Instance) -> None:
        machine = self.machines[instance.id]
        machine.state = "pending"
        _in_background(self._boot, machine)

    def reboot(self, instance: Instance) -> None:
        machine = self.machines[instance.id]
        if machine.state == "running":
            _in_background(self._reboot, machine)

    def bake(self, instance: Instance, image_id: str, reboot: bool, baked: Callable[[], None]) -> None:
        """Copy the instance's disk; calls `baked` when the image may be used."""
        _in_background(self._bake, self.machines[instance.id], image_id, reboot, baked)

    def at(self, address: str) -> Machine | None:
        """The machine with this private address, as the metadata service sees its callers."""
        return next((one for one in self._alive() if one.instance.private_ip == address), None)

    def console(self, instance_id: str) -> str:
        machine = self.machines[instance_id]
        host = machine.host
        return host.console.read_text(errors="replace") if host and host.console.exists() else machine.console

    def guarded(self) -> list[Guarded]:
        """All hosts as the router needs them, those that will be included."""
        return [
            Guarded(
                link=machine.link,
                address=str(machine.instance.private_ip),
                public=str(machine.instance.public_ip or ""),
                groups=tuple(sorted(group.id for group in machine.instance.nics[0].group_set)),
            )
            for machine in self._alive()
        ]

    def running_hosts(self) -> list[str]:
        return [name for name, machine in self.machines.items() if machine.host and machine.host.alive]

    def _alive(self) -> Iterator[Machine]:
        return (
            one for one in list(self.machines.values()) if one.state != "terminated" and one.instance.nics
        )

    def _boot(self, machine: Machine) -> None:
        time.sleep(self.settings.boot_delay_s)
        with machine.lock:
            if machine.state != "pending":
                return
            try:
                self._bring_up(machine)
            except (Refused, OSError) as error:
                print(f"{machine.instance.id}: {error}", flush=True)
                with self.lock:
                    self.terminate(machine.instance, INTERNAL_ERROR)
                return
            with self.lock:
                if machine.state == "pending":
                    machine.state = "running"

    def _bring_up(self, machine: Machine) -> None:
        if machine.boot.kind == "dies":
            raise Refused("this boot was to fail")
        if machine.host is None:
            machine.host = self._new_host(machine)
            machine.host.make()
        self._start(machine, machine.host)

    def _start(self, machine: Machine, host: SimulatedHost) -> None:
        host.start()
        _in_background(self._watch, machine, host)

    def _watch(self, machine: Machine, host: SimulatedHost) -> None:
        """What the host does to itself. One that is stopped from here is in another state by then."""
        code = host.wait()
        with machine.lock:
            if machine.state != "running" or host.alive:
                return
            if code == RESTARTED:
                self._restart(machine)
            elif code == POWERED_OFF:
                self._shut_down(machine.instance)

    def _shut_down(self, instance: Instance) -> None:
        with self.lock:
            if instance.instance_initiated_shutdown_behavior == "terminate":
                self.terminate(instance, SHUT_DOWN)
            else:
                self.stop(instance)
                instance.state_reason = SHUT_DOWN

    def _restart(self, machine: Machine) -> None:
        if machine.host:
            machine.host.stop()
            self._start(machine, machine.host)

    def _reboot(self, machine: Machine) -> None:
        with machine.lock:
            if machine.state == "running":
                self._restart(machine)

    def _stop(self, machine: Machine) -> None:
        time.sleep(self.settings.terminate_delay_s)
        with machine.lock:
            if machine.state != "stopping":
                return
            if machine.host:
                machine.host.stop()
            with self.lock:
                for nic in machine.instance.nics.values():
                    nic.stop()  # a public address that was given out at launch is gone
                machine.state = "stopped"
                self.networks_changed()

    def _end(self, machine: Machine, delay_s: float) -> None:
        time.sleep(delay_s)
        with machine.lock:
            if machine.host:
                machine.console = self.console(machine.instance.id)
                machine.host.remove()
                machine.host = None
            with self.lock:
                reason = machine.instance.state_reason
                self.release(machine.instance)
                machine.instance.state_reason = reason
                machine.state = "terminated"
                self.networks_changed()

    def _bake(self, machine: Machine, image_id: str, reboot: bool, baked: Callable[[], None]) -> None:
        with machine.lock:
            host = machine.host
            if host is None:
                return
            again = reboot and machine.state == "running"
            if again:
                host.stop()
            self.images.bake(image_id, host)
            if again:
                self._start(machine, host)
        with self.lock:
            baked()

    def _new_host(self, machine: Machine) -> SimulatedHost:
        instance = machine.instance
        address, subnet = str(instance.private_ip), IPv4Network(instance.nics[0].subnet.cidr_block)
        image = self.images.of(str(instance.image_id))
        place = Place(
            address=IPv4Address(address),
            subnet=subnet,
            link=machine.link,
            bridge="",
            folder=self._folder / "hosts" / instance.id,
            image=image.layers,
            stacks=self.settings.stacks or "",
            simulated=self._simulated,
        )
        settings = {"disk_mib": self.settings.disk_mib}
        return SimulatedHost(host_name(address), place, settings, str(subnet[1]), image.root)

    def _simulate_cpu(self) -> str:
        folder = self._folder / "simulated-cpu"
        if self.settings.simulate_cpu:
            write_simulated_cpu(folder, self.settings.simulate_cpu)
            return str(folder)
        return ""


def _in_background(what: Callable[..., Any], *arguments: Any) -> None:
    threading.Thread(target=what, args=arguments, daemon=True).start()

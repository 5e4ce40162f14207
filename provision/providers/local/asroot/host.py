"""One node as the supervisor holds it: its folder, its process 1, its link."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, NamedTuple

from . import Refused, ip_batch, quietly, run
from .disk import fill_disk, make_disk
from .image import Image
from .network import bits_per_s, burst_bytes, mac

HERE = Path(__file__).parent
NEW_NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--")


# Root of a node may do what root of a server does, but not to the machine's kernel: no modules, no clock,
# no ports, no kernel log, no reboot.
DROPPED = ("sys_module", "sys_rawio", "sys_time", "sys_boot", "syslog")


class Place(NamedTuple):
    """What a node gets from its cluster. `link` is its end on the bridge, `stacks` the machine's folder."""

    address: IPv4Address
    subnet: IPv4Network
    link: str
    bridge: str
    folder: Path
    image: Image
    stacks: str
    simulated: str


class Host:
    """A node's life: make() once, start() and stop() as often as wanted, remove() in the end.

    A kind of host that differs (tests/ec2sim has one) overrides make(), link_commands() and these:
    `init` becomes process 1, `gateway` is the address of the router beyond the subnet, `dropped` are the
    capabilities that its root is without.
    """

    init: Path = HERE / "init.sh"
    gateway: str = ""
    dropped: tuple[str, ...] = DROPPED

    def __init__(self, name: str, place: Place, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.place = place
        self.settings = settings
        self.host_key = ""
        self.machine_pid = 0
        self.lock = threading.Lock()
        self._pid = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def console(self) -> Path:
        return self.place.folder / "console"

    def last_words(self, lines: int) -> list[str]:
        """The end of what the node's first processes printed, at most `lines`."""
        try:
            with self.console.open(errors="replace") as console:
                return [line.rstrip("\n") for line in deque(console, maxlen=lines)]
        except FileNotFoundError:
            return []

    def make(self, public_key: str) -> None:
        """Disk and keys of a fresh server."""
        disk = self.place.folder / "disk"
        make_disk(disk, int(self.settings["disk_mib"]))
        self.host_key = fill_disk(disk, self.place.image, self.name, str(self.place.address), public_key)

    def start(self) -> None:
        """Returns when sshd is about to start. Raises Refused with the console's last line."""
        with self.console.open("a") as console:
            process = subprocess.Popen(
                (*self._on_cores(), *NEW_NAMESPACES, "/bin/sh", str(HERE / "enter.sh")),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=console, text=True,
                env=self._environment(), cwd="/", start_new_session=True,
            )  # fmt: skip
        self._process = process
        assert process.stdin
        assert process.stdout
        try:
            with process.stdin, process.stdout:
                self._take_pids(process.stdout.readline())
                self._add_link(process.pid)
                process.stdin.write("go\n")
                process.stdin.flush()
                if process.stdout.readline() != "up\n":
                    raise BrokenPipeError
        except BrokenPipeError:
            self.stop()
            raise Refused(
                f"{self.name} did not start: {' / '.join(self.last_words(3)) or 'no output'}"
            ) from None

    def stop(self) -> None:
        """Kill process 1, and with it all of the node's; wait until they are gone."""
        if self._process is None:
            return
        if self._pid and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        elif not self._pid:
            self._process.kill()
        self._process.wait()
        self._process, self._pid, self.machine_pid = None, 0, 0
        quietly("ip", "link", "del", self.place.link)

    def remove(self) -> None:
        """Idempotent: also takes away what a broken make() left."""
        self.stop()
        quietly("umount", "-l", str(self.place.folder / "disk"))
        quietly("rm", "-rf", "--one-file-system", str(self.place.folder))

    def _on_cores(self) -> tuple[str, ...]:
        cores = self.settings.get("cores")
        return ("taskset", "--cpu-list", str(cores)) if cores else ()

    def _environment(self) -> dict[str, str]:
        place, rate = self.place, self.settings.get("link_rate") or ""
        return {
            "PATH": os.environ["PATH"],
            "INIT": str(self.init),
            "DROPPED": ",".join(f"-{name}" for name in self.dropped),
            "NAME": self.name,
            "ADDRESS": str(place.address),
            "PREFIX": str(place.subnet.prefixlen),
            "GATEWAY": self.gateway,
            "DISK": str(place.folder / "disk"),
            "LAYERS": " ".join(map(str, (*place.image.baked, place.image.layers))),
            "OVERLAID": " ".join(place.image.overlaid),
            "STACKS": place.stacks,
            "SIMULATED": place.simulated,
            "RATE": rate,
            "BURST": str(burst_bytes(bits_per_s(rate))) if rate else "",
        }

    def _take_pids(self, line: str) -> None:
        """NSpid as seen from the machine's /proc: the machine's pid ... ours, and 1."""
        pids = line.split()
        if len(pids) < 2:
            raise BrokenPipeError
        self.machine_pid, self._pid = int(pids[0]), int(pids[-2])

    def link_commands(self) -> list[str]:
        """For `ip`: what connects the host's link, which is there and down, to its network."""
        return [f"link set {self.place.link} master {self.place.bridge} up"]

    def _add_link(self, pid: int) -> None:
        """The veth is made straight into the node: as "eth0", so that parallel starts cannot collide."""
        place = self.place
        address = mac(place.address)
        ip_batch([
            f"link add {place.link} type veth peer name eth0 address {address} netns {pid}",
            *self.link_commands(),
        ])  # fmt: skip
        if self.settings.get("link_rate"):
            rate = str(self.settings["link_rate"])
            run("tc", "qdisc", "replace", "dev", place.link, "root", "tbf", "rate", rate,
                "burst", str(burst_bytes(bits_per_s(rate))), "latency", "25ms")  # fmt: skip

"""The one process that holds a cluster: its bridge, its nodes, their disks.

Process 1 of its own pid namespace, with network, mount and ipc namespaces of its own: when it dies,
however it dies, the kernel takes every process, mount and link of the cluster with it.

It listens on `control` in the cluster's runtime folder; a connection carries one request and one reply,
each one line of JSON. {"do": "state"} -> {"nodes": [...]}; a request that cannot be met -> {"error": "..."}.
Arguments: marker, runtime folder, settings as JSON (see `entry.start`).
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from . import Refused, ip_batch, run
from .host import Host, Place
from .image import Image, prepare
from .network import free_address, link_name
from .simulated_cpu import write as write_simulated_cpu

Reply = dict[str, Any]


class Supervisor:
    """Requests are methods named `do_...`; each may be called from several threads at once."""

    def __init__(self, runtime_dir: str, settings: Mapping[str, Any]) -> None:
        self.runtime = Path(runtime_dir)
        self.folder = self.runtime / "inside"
        self.subnet = IPv4Network(settings["subnet"])
        self.stacks = str(settings["stacks"])
        self.bridge = link_name(runtime_dir, "br")
        self.hosts: dict[str, Host] = {}
        self.addresses: dict[str, str] = _known_addresses(self.runtime, self.subnet)
        self._lock = threading.Lock()
        self.image = self._prepare()

    def do_state(self, request: Mapping[str, Any]) -> Reply:
        """{} -> pid of the supervisor, subnet, and all nodes."""
        return {
            "pid": machine_pid(),
            "subnet": str(self.subnet),
            "nodes": [self._describe(host) for host in list(self.hosts.values())],
        }

    def do_reserve(self, request: Mapping[str, Any]) -> Reply:
        """{"nodes": [names]} -> indexes (0 is the lowest address), given out in that order.

        A name keeps its address until the node is removed.
        """
        with self._lock:
            addresses = dict(self.addresses)
            for name in request["nodes"]:
                if name not in addresses:
                    addresses[name] = str(free_address(self.subnet, addresses.values()))
            self.addresses = addresses
            self._save_addresses()
            return {"indexes": {name: self._number(name) - 2 for name in request["nodes"]}}

    def do_start(self, request: Mapping[str, Any]) -> Reply:
        """{"node", "settings", "public_key"} -> the node, made and started; one that runs is left alone."""
        host = self._host(str(request["node"]), request["settings"])
        with host.lock:
            if host.host_key and not host.alive:
                host.stop()
                host.start()
            elif not host.host_key:
                self._first_start(host, str(request["public_key"]))
        return self._describe(host)

    def do_restart(self, request: Mapping[str, Any]) -> Reply:
        """{"node"} -> the node, all its processes ended and started again on the same disk."""
        host = self._known(str(request["node"]))
        with host.lock:
            host.stop()
            host.start()
        return self._describe(host)

    def do_remove(self, request: Mapping[str, Any]) -> Reply:
        """{"node"}: gone with its disk and address; absence is fine."""
        host = self.hosts.get(str(request["node"]))
        if host:
            with host.lock:
                self._forget(host)
        with self._lock:
            self.addresses.pop(str(request["node"]), None)
            self._save_addresses()
        return {}

    def do_console(self, request: Mapping[str, Any]) -> Reply:
        """{"node", "lines"} -> what its first processes and sshd printed last."""
        return {"lines": self._known(str(request["node"])).last_words(int(request["lines"]))}

    def _prepare(self) -> Image:
        """Folder of all that is on this machine only while the supervisor lives, and the bridge."""
        self.folder.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "mode=700,size=512m", "clusterctl", str(self.folder))
        (self.folder / "nodes").mkdir()
        (self.folder / "layers").mkdir()
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
        ip_batch(["link set lo up", f"link add {self.bridge} type bridge", f"link set {self.bridge} up"])
        return prepare(self.folder / "layers", _sshd_extra())

    def _host(self, name: str, settings: Mapping[str, Any]) -> Host:
        self.do_reserve({"nodes": [name]})
        with self._lock:
            if name not in self.hosts:
                self.hosts[name] = Host(name, self._place(name, settings), settings)
            return self.hosts[name]

    def _place(self, name: str, settings: Mapping[str, Any]) -> Place:
        address = IPv4Address(self.addresses[name])
        return Place(
            address=address,
            subnet=self.subnet,
            link=link_name(str(self.runtime), f"n{self._number(name)}"),
            bridge=self.bridge,
            folder=self.folder / "nodes" / name,
            image=self.image,
            stacks=self.stacks,
            simulated=self._simulated(settings.get("simulate_cpu")),
        )

    def _number(self, name: str) -> int:
        """The node's place in the subnet; the machine has number 1."""
        return int(IPv4Address(self.addresses[name])) - int(self.subnet.network_address)

    def _simulated(self, name: str | None) -> str:
        folder = self.folder / "simulated" / str(name)
        if name and not folder.exists():
            write_simulated_cpu(folder, name)
        return str(folder) if name else ""

    def _first_start(self, host: Host, public_key: str) -> None:
        """A node that never came up is forgotten, so that other settings may be tried."""
        try:
            host.make(public_key)
            host.start()
        except BaseException:
            self._forget(host)
            raise

    def _known(self, name: str) -> Host:
        if name not in self.hosts:
            raise Refused(f"there is no node {name}")
        return self.hosts[name]

    def _forget(self, host: Host) -> None:
        host.remove()
        with self._lock:
            self.hosts.pop(host.name, None)

    def _describe(self, host: Host) -> Reply:
        return {
            "name": host.name,
            "address": str(host.place.address),
            "host_key": host.host_key,
            "alive": host.alive,
            "pid": host.machine_pid,
        }

    def _save_addresses(self) -> None:
        new = self.runtime / "addresses.new"
        new.write_text(json.dumps(self.addresses))
        new.replace(self.runtime / "addresses.json")


class _Server(socketserver.ThreadingUnixStreamServer):
    request_queue_size = 128
    daemon_threads = True
    supervisor: Supervisor


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        line = self.rfile.readline()
        if line:
            self.wfile.write(json.dumps(answer(self.server.supervisor, line)).encode() + b"\n")


def answer(supervisor: Supervisor, line: bytes) -> Reply:
    """The reply to one request; nothing that a request does may end the supervisor."""
    try:
        request = json.loads(line)
        action: Callable[[Mapping[str, Any]], Reply] = getattr(supervisor, f"do_{request['do']}")
        return action(request)
    except Refused as refused:
        return {"error": str(refused)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def machine_pid() -> int:
    """This process as the machine knows it; /proc here is still the machine's."""
    return int(Path("/proc/self").readlink().name)


def _known_addresses(runtime: Path, subnet: IPv4Network) -> dict[str, str]:
    """Those of a cluster that stood here before, as far as they fit the subnet."""
    try:
        known = json.loads((runtime / "addresses.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {name: address for name, address in known.items() if IPv4Address(address) in subnet}


def _sshd_extra() -> str:
    """Since OpenSSH 9.8 sshd shuts out addresses that connect without logging in, as our probes do."""
    answer = subprocess.run(("ssh", "-V"), capture_output=True, text=True, check=False).stderr
    version = re.match(r"OpenSSH_(\d+)\.(\d+)", answer)
    recent = version and (int(version[1]), int(version[2])) >= (9, 8)
    return "PerSourcePenalties no\n" if recent else ""


def main() -> None:
    _, runtime_dir, text = sys.argv[1:]
    settings = json.loads(text)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    threading.stack_size(512 * 1024)
    supervisor = Supervisor(runtime_dir, settings)
    control = Path(runtime_dir) / "control"
    control.unlink(missing_ok=True)
    os.umask(0o177)
    server = _Server(str(control), _Connection)
    os.umask(0o022)
    os.chown(control, int(settings["uid"]), -1)
    server.supervisor = supervisor
    server.serve_forever()

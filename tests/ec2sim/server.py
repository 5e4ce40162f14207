"""The world's process: process 1 of its own pid, network, mount and ipc namespaces.

When it dies, however it dies, the kernel takes all hosts, mounts and links with it. Started by
`client.World.start` as `python -m tests.ec2sim.server MARKER FOLDER SETTINGS`.
"""

from __future__ import annotations

import http.server
import json
import logging
import os
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Read when moto is imported: only our own image, and no instance type that is none.
os.environ |= {"MOTO_EC2_LOAD_DEFAULT_AMIS": "false", "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "1"}

from moto.ec2.models.instances import StateReason
from moto.server import ThreadedMotoServer

from provision.providers.local.asroot import Refused, run
from provision.providers.local.asroot.image import prepare
from tests.ec2sim import api, router
from tests.ec2sim.api.cloud import Cloud, Fault
from tests.ec2sim.api.inventory import resources
from tests.ec2sim.api.offers import gateways
from tests.ec2sim.fleet import Fleet
from tests.ec2sim.hosts import Images
from tests.ec2sim.machine import Boot
from tests.ec2sim.metadata import Service
from tests.ec2sim.settings import Settings

API_PORT, ADDRESS_PORT = 5000, 5002
INTERRUPTED = StateReason(
    "Server.SpotInstanceTermination: Instance terminated by a Spot interruption",
    "Server.SpotInstanceTermination",
)
KINDS = ("wrong-host-key", "no-sshd", "dies", "slow")

Reply = dict[str, Any]


class Control:
    """Requests are methods named `do_...`; see client.World for what they do."""

    def __init__(self, cloud: Cloud, outsides: Mapping[str, int]) -> None:
        self.cloud = cloud
        self.outsides = dict(outsides)

    def do_state(self, request: Mapping[str, Any]) -> Reply:
        return {"outsides": self.outsides}

    def do_fault(self, request: Mapping[str, Any]) -> Reply:
        self.cloud.faults.append(Fault(**request["fault"]))
        return {}

    def do_clear_faults(self, request: Mapping[str, Any]) -> Reply:
        self.cloud.faults.clear()
        return {}

    def do_calls(self, request: Mapping[str, Any]) -> Reply:
        with self.cloud.lock:
            return {"calls": [[*call, count] for call, count in sorted(self.cloud.calls.items())]}

    def do_reset_calls(self, request: Mapping[str, Any]) -> Reply:
        self.cloud.calls.clear()
        return {}

    def do_resources(self, request: Mapping[str, Any]) -> Reply:
        with self.cloud.lock:
            hosts = self.cloud.fleet.running_hosts()
            return {"resources": resources() | ({"hosts": hosts} if hosts else {})}

    def do_next_boot(self, request: Mapping[str, Any]) -> Reply:
        if request["kind"] not in KINDS:
            raise Refused(f"no such boot: {request['kind']}; there are {', '.join(KINDS)}")
        boot = Boot(str(request["kind"]), float(request["seconds"]))
        self.cloud.fleet.boots.extend([boot] * int(request["count"]))
        return {}

    def do_host(self, request: Mapping[str, Any]) -> Reply:
        """The pid, on the machine, of process 1 of an instance's host."""
        machine = self.cloud.fleet.machines.get(str(request["instance"]))
        if machine is None or machine.host is None or not machine.host.alive:
            raise Refused(f"no host of {request['instance']} is running")
        return {"pid": machine.host.machine_pid}

    def do_interrupt(self, request: Mapping[str, Any]) -> Reply:
        """The notice is given now, the instance taken `notice_s` later."""
        machine = self.cloud.fleet.machines.get(str(request["instance"]))
        if machine is None or machine.instance.lifecycle != "spot":
            raise Refused(f"{request['instance']} is no spot instance of this world")
        notice_s = float(request["notice_s"])
        now, end = _timestamp(0), _timestamp(notice_s)
        machine.notice = {
            "events/recommendations/rebalance": json.dumps({"noticeTime": now}),
            "spot/instance-action": json.dumps({"action": "terminate", "time": end}),
            "spot/termination-time": end,
        }
        timer = threading.Timer(notice_s, self._take, (machine.instance,))
        timer.daemon = True
        timer.start()
        return {}

    def _take(self, instance: Any) -> None:
        with self.cloud.lock:
            self.cloud.fleet.terminate(instance, INTERRUPTED)


class AddressService(http.server.BaseHTTPRequestHandler):
    """What checkip.amazonaws.com does: the caller's address as text."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(f"{self.client_address[0]}\n".encode())


class _Server(socketserver.ThreadingUnixStreamServer):
    request_queue_size = 128
    daemon_threads = True
    control: Control


class _Connection(socketserver.StreamRequestHandler):
    """One request and one reply, each a line of JSON."""

    server: _Server

    def handle(self) -> None:
        line = self.rfile.readline()
        if line:
            self.wfile.write(json.dumps(_answer(self.server.control, line)).encode() + b"\n")


def _answer(control: Control, line: bytes) -> Reply:
    try:
        request = json.loads(line)
        action: Callable[[Mapping[str, Any]], Reply] = getattr(control, f"do_{request['do']}")
        return action(request)
    except Refused as refused:
        return {"error": str(refused)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _timestamp(from_now_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + from_now_s))


def _make_cloud(folder: Path, settings: Settings) -> Cloud:
    """The folder is this process's own mount: nothing of it is ever on the machine."""
    folder.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "mode=700,size=8g", "ec2sim", str(folder))
    for name in ("layers", "hosts", "images"):
        (folder / name).mkdir()
    lock = threading.RLock()
    images = Images(folder / "images", prepare(folder / "layers"))
    cloud = Cloud(settings, Fleet(folder, settings, images, lock), lock)
    api.install(cloud)
    return cloud


def _serve(server: socketserver.BaseServer) -> None:
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    _, folder, text = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a test's Ctrl-C ends the test first
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    cloud = _make_cloud(Path(folder) / "inside", Settings.from_json(text))
    outsides = router.set_up(gateways())
    _serve(Service(router.METADATA, cloud.fleet))
    _serve(http.server.ThreadingHTTPServer((router.API_ADDRESS, ADDRESS_PORT), AddressService))
    ThreadedMotoServer(ip_address=router.API_ADDRESS, port=API_PORT, verbose=False).start()
    os.chdir(folder)  # the path of a socket has 107 bytes at most
    Path("control").unlink(missing_ok=True)
    server = _Server("control", _Connection)
    server.control = Control(cloud, outsides)
    print(f"simulated EC2 at http://{router.API_ADDRESS}:{API_PORT}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

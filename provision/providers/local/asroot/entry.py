"""Starting and stopping a cluster's supervisor: run as root, in the operator's namespaces.

`entry start JSON` prints {"subnet": ...}, `entry stop JSON` prints {}; either may print {"error": ...}.
Both may be run again at any time. One lock orders them over all clusters of this machine, so that two
which start at the same moment do not choose the same subnet.

A cluster's runtime folder (/run/clusterctl/UID/NAME) holds: network.json (the subnet whose guard is or was
set, written before the guard is), addresses.json, control (the socket), log.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from . import Refused, ip_batch, quietly, run
from .network import (
    Use,
    add_guard,
    check_subnet,
    choose_subnet,
    link_name,
    machine_address,
    networks_in_use,
    remove_guard,
)

MARKER = "clusterctl-local-supervisor"
NEW_NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--")
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0


def start(request: Mapping[str, Any]) -> dict[str, Any]:
    """{"runtime", "uid", "name", "subnet" or null, "stacks"}: idempotent.

    Raises Refused: the subnet is in use, or the supervisor does not come up.
    """
    runtime = str(request["runtime"])
    _check_overlay()
    with _lock(Path(runtime)):
        Path(runtime).mkdir(parents=True, exist_ok=True)
        standing = hello(runtime)
        if standing:
            return _complete(runtime, standing, request["subnet"])
        _clear(runtime)
        subnet = _settle_subnet(request)
        add_guard(str(subnet))
        process = _spawn(runtime, {**request, "subnet": str(subnet)})
        _add_uplink(runtime, subnet, _wait_for(runtime, process))
        return {"subnet": str(subnet)}


def stop(request: Mapping[str, Any]) -> dict[str, Any]:
    """{"runtime"}: nothing of the cluster is left when this returns; absence is fine.

    Raises Refused when processes outlive their kill.
    """
    runtime = str(request["runtime"])
    with _lock(Path(runtime)):
        subnet = _recorded_subnet(runtime)
        _clear(runtime)
        if subnet:
            remove_guard(str(subnet))
        shutil.rmtree(runtime, ignore_errors=True)
        with contextlib.suppress(OSError):  # other clusters of this user
            Path(runtime).parent.rmdir()
    return {}


def hello(runtime: str) -> dict[str, Any] | None:
    """The supervisor's state, or None when none answers."""
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(f"{runtime}/control")
        connection.sendall(b'{"do": "state"}\n')
        with connection.makefile("rb") as reply:
            return dict(json.loads(reply.readline()))
    return None


def supervisors(runtime: str) -> list[int]:
    """Processes that hold this cluster: `unshare` and the supervisor, known by their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                if MARKER.encode() in arguments and runtime.encode() in arguments:
                    found.append(int(entry.name))
    return found


@contextlib.contextmanager
def _lock(runtime: Path) -> Iterator[None]:
    top = runtime.parent.parent
    top.mkdir(parents=True, exist_ok=True)
    with (top / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_overlay() -> None:
    def known() -> bool:
        return "\toverlay\n" in Path("/proc/filesystems").read_text()

    if not known() and not (quietly("modprobe", "overlay") and known()):
        raise Refused("local nodes need the overlay file system, which this kernel does not have")


def _complete(runtime: str, state: Mapping[str, Any], wanted: str | None) -> dict[str, Any]:
    """For a supervisor that lives: the guard and the uplink, which a start that was cut short may lack."""
    subnet = IPv4Network(state["subnet"])
    if wanted and IPv4Network(wanted) != subnet:
        raise Refused(f"the cluster stands on subnet {subnet}, not {wanted}; destroy it first to move it")
    add_guard(str(subnet))
    if not Path(f"/sys/class/net/{link_name(runtime, 'up')}").exists():
        _add_uplink(runtime, subnet, int(state["pid"]))
    return {"subnet": str(subnet)}


def _settle_subnet(request: Mapping[str, Any]) -> IPv4Network:
    """The wanted subnet, or the one it had before, or a new one; recorded before it is used."""
    runtime, before = str(request["runtime"]), _recorded_subnet(str(request["runtime"]))
    uses = [use for use in networks_in_use() if not _own_guard(use, before)]
    free_again = before and not any(use.network.overlaps(before) for use in uses)
    if request["subnet"]:
        subnet = check_subnet(str(request["subnet"]), uses)
    else:
        subnet = before if before and free_again else choose_subnet(str(request["name"]), uses)
    if before and before != subnet:
        remove_guard(str(before))
    (Path(runtime) / "network.json").write_text(json.dumps({"subnet": str(subnet)}))
    return subnet


def _own_guard(use: Use, before: IPv4Network | None) -> bool:
    return use.network == before and "(unreachable)" in use.what


def _recorded_subnet(runtime: str) -> IPv4Network | None:
    try:
        return IPv4Network(json.loads((Path(runtime) / "network.json").read_text())["subnet"])
    except (OSError, ValueError, KeyError):
        return None


def _spawn(runtime: str, settings: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """The same interpreter as ours, bare; it has a session of its own and outlives the command."""
    folder = str(Path(__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); import asroot.supervisor as s; s.main()"
    python = (sys.executable, "-I", "-S", "-B", "-c", code)
    with (Path(runtime) / "log").open("w") as log:
        return subprocess.Popen(
            (*NEW_NAMESPACES, *python, MARKER, runtime, json.dumps(settings)),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
        )  # fmt: skip


def _wait_for(runtime: str, process: subprocess.Popen[bytes]) -> int:
    """Pid of the supervisor once it answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        state = hello(runtime)
        if state:
            return int(state["pid"])
        time.sleep(0.01)
    lines = (Path(runtime) / "log").read_text().split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
    raise Refused(f"the supervisor of the nodes did not start: {last}")


def _add_uplink(runtime: str, subnet: IPv4Network, pid: int) -> None:
    """The only link into this machine: our end has the subnet's first address."""
    here, there = link_name(runtime, "up"), link_name(runtime, "in")
    ip_batch([
        f"link add {here} type veth peer name {there} netns {pid}",
        f"link set {here} addrgenmode none",
        f"address add {machine_address(subnet)}/{subnet.prefixlen} brd + dev {here}",
        f"link set {here} up",
    ])  # fmt: skip
    bridge = link_name(runtime, "br")
    # A node's link may take some milliseconds to pass packets. The kernel asks again for a neighbour after
    # 1 s, which would be most of a start.
    Path(f"/proc/sys/net/ipv4/neigh/{here}/retrans_time_ms").write_text("100")
    run("nsenter", f"--net=/proc/{pid}/ns/net", "ip", "link", "set", there, "master", bridge, "up")


def _clear(runtime: str) -> None:
    """End what is left of the cluster: processes, and with them mounts and nodes; then the uplink."""
    pids = supervisors(runtime)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(_lives(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise Refused(
                f"process {pids[0]}, which holds the nodes, does not end; see /proc/{pids[0]}/stack"
            )
        time.sleep(0.005)
    quietly("ip", "link", "del", link_name(runtime, "up"))


def _lives(pid: int) -> bool:
    """Process 1 of a pid namespace turns zombie only after every other process in it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main() -> None:
    # A Ctrl-C reaches us too; what is half done here is better finished.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)
    action, text = sys.argv[1:]
    try:
        reply = {"start": start, "stop": stop}[action](json.loads(text))
    except Refused as refused:
        reply = {"error": str(refused)}
    print(json.dumps(reply))

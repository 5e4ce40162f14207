"""What a node says of itself before a run. Self-contained: run by the stack's Python, it needs nothing else.

    python - '{"peers": [...], ...}' < probe.py

Prints one JSON object; every look has its own limit of a few seconds and they run side by side.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REACH_TIMEOUT_S = 3.0
SSH_TIMEOUT_S = 10.0
NOTICE = Path("/run/clusterctl/notice")
STALE_S = 600.0  # as rank.py: so long past its end a notice was about something else


def resolve(name: str) -> list[str]:
    """IPv4 addresses of a name, [] when it has none."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(entry[4][0]) for entry in found})


def reach(address: str, port: int) -> str:
    """Why no TCP connection can be made; "" when it can."""
    try:
        socket.create_connection((address, port), timeout=REACH_TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def try_ssh(name: str) -> str:
    """Why ssh to a node of the mesh fails; "" when it works."""
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", name, "true"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SSH_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return "" if done.returncode == 0 else lines[-1]


def free_port(address: str) -> int:
    """A port nobody listens on there; 0 when the address is none of this node's."""
    with socket.socket() as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            return 0
        return int(listener.getsockname()[1])


def active_runs(processes: Path = Path("/proc")) -> list[str]:
    """Run ids whose rank.py or head.py is alive here."""
    found = set()
    for path in processes.glob("[0-9]*/environ"):
        try:
            text = path.read_bytes()
        except OSError:  # another user's, or gone
            continue
        found |= set(re.findall(rb"(?:^|\0)CLUSTERCTL_RUN_ID=([^\0]+)", text))
    return sorted(run.decode() for run in found)


def stack_digest(stack_dir: str) -> str:
    """SHA-256 of the stack's description; "" when it cannot be read."""
    try:
        return hashlib.sha256((Path(stack_dir) / "clusterctl-stack.json").read_bytes()).hexdigest()
    except OSError:
        return ""


def read_notice(path: Path = NOTICE) -> dict[str, Any] | None:
    """What the node is told of its end; None when nothing, or of an end that is long past."""
    try:
        told = json.loads(path.read_text())
        reason, ends_at = str(told["reason"]), float(told["ends_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {"reason": reason, "ends_at": ends_at} if ends_at > time.time() - STALE_S else None


def read_hostfile() -> list[str] | None:
    """Names in ~/hosts; None when there is no such file."""
    path = Path.home() / "hosts"
    if not path.is_file():
        return None
    return [line.strip() for line in path.read_text().splitlines() if line.strip() and line[0] != "#"]


def look(asked: Mapping[str, Any]) -> dict[str, Any]:
    peers: Sequence[Mapping[str, Any]] = asked["peers"]
    with ThreadPoolExecutor(max_workers=32) as pool:
        reached = pool.map(lambda peer: reach(peer["address"], peer["port"]), peers)
        over_ssh = pool.map(try_ssh, asked["ssh_to"])
        about_peers = {
            peer["name"]: {"resolved": resolve(peer["name"]), "unreached": why}
            for peer, why in zip(peers, reached, strict=True)
        }
        ssh_failed = {name: why for name, why in zip(asked["ssh_to"], over_ssh, strict=True) if why}
    return {
        "home": str(Path.home()),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "peers": about_peers,
        "ssh_failed": ssh_failed,
        "stack_digest": stack_digest(asked["stack_dir"]),
        "has_mpirun": os.access(f"{asked['stack_dir']}/bin/mpirun", os.X_OK),
        "free_gib": shutil.disk_usage(Path.home()).free / (1 << 30),
        "active_runs": active_runs(),
        "free_port": free_port(asked["own_address"]),
        "hostfile": read_hostfile(),
        "notice": read_notice(),
        "clock_s": time.time(),
    }


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]))))

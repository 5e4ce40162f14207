"""Talking to a cluster's supervisor, and to the program that starts and stops it as root."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision.errors import ProviderError
from provision.providers.local.requirements import TOOL_PATH, root_prefix

RUNTIME = Path("/run/clusterctl")
ENTRY_TIMEOUT_S = 60.0
# Names become folders, and the longest path of a socket is 107 bytes.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")

Reply = Mapping[str, Any]


def runtime_dir(cluster: str) -> Path:
    """The cluster's folder; the user is part of it, so that two users' clusters may have one name.

    Raises ProviderError when the name cannot be a folder's.
    """
    if not NAME.fullmatch(cluster):
        raise ProviderError(f"cluster name {cluster!r}: use up to 50 letters, digits, '.', '_' and '-'")
    return RUNTIME / str(os.getuid()) / cluster


def stack_store() -> Path:
    """The folder that every local node sees, read-only, at /opt/clusterctl/stacks. Made when missing."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    store = base / "clusterctl" / "stacks"
    store.mkdir(parents=True, exist_ok=True)
    return store


def ask(cluster: str, timeout_s: float = 30.0, **request: Any) -> Reply | None:
    """The supervisor's reply, or None when no supervisor lives.

    Raises ProviderError when it refuses, or does not answer in time.
    """
    path = runtime_dir(cluster) / "control"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as replies:
                line = replies.readline()
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        return None
    except OSError as error:
        raise ProviderError(f"{cluster}: its supervisor does not answer at {path}: {error}") from None
    return _checked(cluster, json.loads(line)) if line else None


def ask_living(cluster: str, **request: Any) -> Mapping[str, Any]:
    """For requests that make no sense without a supervisor, which create() has started before."""
    reply = ask(cluster, **request)
    if reply is None:
        raise ProviderError(f"{cluster}: its supervisor has just died; see /run/clusterctl, and try again")
    return reply


def start_supervisor(cluster: str, subnet: str | None) -> None:
    """Idempotent. Raises ProviderError."""
    request = {"uid": os.getuid(), "name": cluster, "subnet": subnet, "stacks": str(stack_store())}
    _as_root(cluster, "start", request)


def stop_supervisor(cluster: str) -> None:
    """End the cluster with all that belongs to it. Idempotent. Raises ProviderError."""
    _as_root(cluster, "stop", {})


def _as_root(cluster: str, action: str, request: Reply) -> None:
    folder = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); import asroot.entry as e; e.main()"
    text = json.dumps({**request, "runtime": str(runtime_dir(cluster))})
    argv = (*root_prefix(), sys.executable, "-I", "-S", "-B", "-c", code, action, text)
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=ENTRY_TIMEOUT_S,
            stdin=subprocess.DEVNULL, env={**os.environ, "PATH": TOOL_PATH},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ProviderError(f"{cluster}: `{action}` took more than {ENTRY_TIMEOUT_S:.0f} s") from None
    try:
        _checked(cluster, json.loads(done.stdout))
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ProviderError(f"{cluster}: `{action}` ended with exit code {done.returncode}: {last}") from None


def _checked(cluster: str, reply: Reply) -> Reply:
    if "error" in reply:
        raise ProviderError(f"{cluster}: {reply['error']}")
    return reply

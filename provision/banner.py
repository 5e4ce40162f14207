"""Does a node's sshd answer? The truth from where the operator stands, without logging in."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

PROBE_TIMEOUT_S = 1.5
POLL_S = 0.01


def shows_banner(address: str, timeout_s: float = PROBE_TIMEOUT_S, port: int = 22) -> bool:
    """True when an ssh server greets within `timeout_s`."""
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            return connection.recv(4).startswith(b"SSH-")
    except OSError:
        return False


def wait_for_banner(address: str, timeout_s: float) -> bool:
    """Poll until the greeting comes or `timeout_s` have passed."""
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        if shows_banner(address, min(left, PROBE_TIMEOUT_S)):
            return True
        time.sleep(POLL_S)
    return False


def which_answer(addresses: Mapping[str, str]) -> frozenset[str]:
    """Names whose address greets, asked all at once: never longer than a few PROBE_TIMEOUT_S."""
    if not addresses:
        return frozenset()
    with ThreadPoolExecutor(min(64, len(addresses))) as pool:
        answers = pool.map(shows_banner, addresses.values())
        return frozenset(name for name, answer in zip(addresses, answers, strict=True) if answer)

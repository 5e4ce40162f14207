"""Ctrl-C and SIGTERM, counted instead of raised, so that what runs elsewhere is ended in good order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def counted_interrupts() -> Iterator[list[int]]:
    """A list that grows by each signal's number."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda signum, frame: received.append(signum))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

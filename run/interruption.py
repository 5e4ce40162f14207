"""Nodes that are about to end, and how far a run came that had to end before them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

STOP_BEFORE_S = 20.0
"""So long before a node's end a run without a new checkpoint is stopped: 5 s for the ranks, the rest to bring
home what the head has."""
STOPPED_CODE = 130
"""Of a run that the user stopped: what shells report for Ctrl-C."""
INTERRUPTED_CODE = 75
"""What a command ends with: EX_TEMPFAIL of sysexits.h, nothing is wrong, try again."""
YEAR_3000_S = 32503680000.0
TIME_IS_OVER = "time to live is over"
"""The reason of a notice that is no accident: nobody should pay for the node any longer."""


@dataclass(frozen=True)
class Notice:
    """A node will end; `ends_at` is in seconds since 1970, by its own clock."""

    node: str
    reason: str
    ends_at: float

    @property
    def is_accident(self) -> bool:
        """Whether another node may take its place without asking."""
        return self.reason != TIME_IS_OVER

    def __str__(self) -> str:
        return f"{self.node} {ending(self.reason, self.ends_at)}"


@dataclass(frozen=True)
class Checkpoint:
    """`path` is in the run folder of the head."""

    step: int
    path: str


@dataclass(frozen=True)
class Interruption:
    """A run that ended because nodes of it were about to.

    `checkpoint` is its last one, None where there is none; `is_fresh`: it was made for this end, nothing is
    lost. `at_home`: it was brought here, because the head is among the nodes; `trouble` says why not.
    """

    notices: tuple[Notice, ...]
    checkpoint: Checkpoint | None
    is_fresh: bool
    at_home: bool = False
    trouble: str = ""

    def __str__(self) -> str:
        return f"{told(self.notices)}: {self._saved()}" + (f"; {self.trouble}" if self.trouble else "")

    def _saved(self) -> str:
        if self.checkpoint is None:
            return "no checkpoint came in time"
        if self.is_fresh:
            return f"checkpointed at step {self.checkpoint.step}"
        return f"no checkpoint came in time; the last one is of step {self.checkpoint.step}"


def ending(reason: str, ends_at: float) -> str:
    """
    >>> ending("spot interruption", 1795269790)
    'will end at 14:03:10 UTC (spot interruption)'
    """
    return f"will end at {datetime.fromtimestamp(ends_at, timezone.utc):%H:%M:%S} UTC ({reason})"


def told(notices: Sequence[Notice]) -> str:
    """One clause for all: nodes that end together are named together.

    >>> told([Notice("n1", "spot interruption", 0), Notice("n2", "spot interruption", 0)])
    'n1, n2 will end at 00:00:00 UTC (spot interruption)'
    """
    nodes: dict[str, list[str]] = {}
    for notice in notices:
        nodes.setdefault(ending(notice.reason, notice.ends_at), []).append(notice.node)
    return "; ".join(f"{', '.join(names)} {end}" for end, names in nodes.items())


def parse_notice(node: str, data: Mapping[str, Any]) -> Notice | None:
    """The notice in an event's or a probe's fields; None when they are none."""
    try:
        notice = Notice(node, str(data["reason"]), float(data["ends_at"]))
    except (KeyError, TypeError, ValueError):
        return None
    return notice if 0 <= notice.ends_at < YEAR_3000_S else None

"""What a person or a script sees while playbooks run: a live table, plain lines, or JSON lines.

Then the RECAP that Ansible's users know. All are Watchers: told of steps from many threads.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from provision.step import Status, StepResult

if TYPE_CHECKING:
    from rich.table import Table


class Report(AbstractContextManager["Report"], Protocol):
    """A Watcher that is shown. `progress` tells what a provider does with a node, `note` one line of news."""

    def started(self, node: str, play: str, step: str) -> None: ...

    def ended(self, result: StepResult) -> None: ...

    def progress(self, node: str, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def paused(self) -> AbstractContextManager[None]:
        """The terminal is somebody else's meanwhile: to ask a person."""


def report_for(*, as_json: bool, nodes: Iterable[str]) -> Report:
    """JSON lines where asked for, a live table in a terminal, plain lines otherwise."""
    if as_json:
        return JsonReport()
    return LiveReport(tuple(nodes)) if sys.stdout.isatty() else PlainReport()


@dataclass
class _Row:
    """What the live table knows of a node."""

    doing: str = "waiting"
    counts: Counter[Status] = field(default_factory=Counter)
    since: float = field(default_factory=time.monotonic)
    failed: bool = False
    ended: float | None = None


class LiveReport:
    """A table with a row per node: the step it is at, how many were ok, changed, failed, and seconds."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rows = {node: _Row() for node in nodes}
        self._lock = threading.Lock()
        self._console = Console()
        self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=8)

    def __enter__(self) -> LiveReport:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for row in self._rows.values():
            row.ended = row.ended or time.monotonic()
            row.doing = row.doing if row.failed else ("stopped" if kind else "done")
        self._live.__exit__(kind, error, trace)

    def started(self, node: str, play: str, step: str) -> None:
        with self._lock:
            self._row(node).doing = step

    def ended(self, result: StepResult) -> None:
        with self._lock:
            row = self._row(result.node)
            row.counts[result.status] += 1
            if result.status is Status.FAILED:
                row.failed, row.doing, row.ended = True, f"FAILED {result.detail}", time.monotonic()

    def progress(self, node: str, text: str) -> None:
        with self._lock:
            self._row(node).doing = text

    def note(self, text: str) -> None:
        self._live.console.print(text, highlight=False, markup=False)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def _row(self, node: str) -> _Row:
        return self._rows.setdefault(node, _Row())

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, expand=False)
        table.add_column("NODE", no_wrap=True)
        # Cut, not wrapped: the whole of an error stands below the table.
        table.add_column("STEP", no_wrap=True, overflow="ellipsis", ratio=1)
        for heading in ("OK", "CHANGED", "FAILED", "SECONDS"):
            table.add_column(heading, justify="right", no_wrap=True)
        with self._lock:
            for name, row in self._rows.items():
                seconds = (row.ended or time.monotonic()) - row.since
                counts = [str(row.counts[status]) for status in (Status.OK, Status.CHANGED, Status.FAILED)]
                style = "red" if row.failed else "yellow" if row.counts[Status.CHANGED] else "green"
                table.add_row(Text(name, style), Text(row.doing), *counts, f"{seconds:.1f}")
        return table


class PlainReport:
    """A line for everything that changed or failed; what was ok is counted in the recap.

    A playbook's heading comes with its first news. Nodes go at their own speed: a later line may be of an
    earlier playbook, and says so.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plays: set[str] = set()

    def __enter__(self) -> PlainReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def started(self, node: str, play: str, step: str) -> None:
        return None

    def ended(self, result: StepResult) -> None:
        if result.status in (Status.CHANGED, Status.FAILED):
            line = f"{result.status.value}: [{result.node}] {result.play}: {result.step}"
            lines = [f"{line}: {result.detail}" if result.detail else line, result.diff]
            with self._lock:
                heading = [] if result.play in self._plays else ["", f"PLAY [{result.play}]"]
                self._plays.add(result.play)
                print("\n".join((*heading, *filter(None, lines))), flush=True)

    def progress(self, node: str, text: str) -> None:
        self._print(f"{node}: {text}")

    def note(self, text: str) -> None:
        self._print(text)

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _print(self, text: str) -> None:
        with self._lock:
            print(text, flush=True)


class JsonReport(PlainReport):
    """Every event as one JSON object a line."""

    def ended(self, result: StepResult) -> None:
        event = {
            "event": "step",
            "node": result.node,
            "play": result.play,
            "step": result.step,
            "status": result.status.value,
            "detail": result.detail,
            "seconds": round(result.seconds, 3),
        }
        self._print(json.dumps(event | ({"diff": result.diff} if result.diff else {})))

    def progress(self, node: str, text: str) -> None:
        self._print(json.dumps({"event": "progress", "node": node, "text": text}))

    def note(self, text: str) -> None:
        self._print(json.dumps({"event": "note", "text": text}))


_COUNTED = ("ok", "changed", "unreachable", "failed", "skipped")


def counts_by_node(results: Iterable[StepResult]) -> dict[str, dict[str, int]]:
    """Ansible's recap: ok (changed ones included, as Ansible counts), changed, unreachable, failed, skipped.

    Unreachable is a node that could not be looked at; skipped are steps that were left out.
    """
    recap: dict[str, dict[str, int]] = {}
    for result in results:
        row = recap.setdefault(result.node, dict.fromkeys(_COUNTED, 0))
        if result.status is Status.FAILED:
            row["unreachable" if result.play == "facts" else "failed"] += 1
        elif result.status is Status.SKIPPED:
            row["skipped"] += 1
        else:
            row["ok"] += 1
            row["changed"] += result.status is Status.CHANGED
    return recap


def recap_lines(recap: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The recap as text.

    >>> recap_lines({"n1": {"ok": 3, "changed": 1, "unreachable": 0, "failed": 0}})
    ['PLAY RECAP', 'n1 : ok=3    changed=1    unreachable=0    failed=0']
    """
    width = max((len(name) for name in recap), default=0)
    rows = [
        f"{name:<{width}} : " + " ".join(f"{key}={count:<4}" for key, count in counts.items())
        for name, counts in recap.items()
    ]
    return ["PLAY RECAP", *(row.rstrip() for row in rows)]

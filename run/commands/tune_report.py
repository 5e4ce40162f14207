"""What train --tune shows: a live line for each trial, a row as soon as it is known, the end; or JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from run.commands.common import count, print_json
from run.events import Event
from run.kept import even_ppn, kept_file
from run.smoke import duration
from run.timing import STEADY_S
from run.tune import BF16, FP32, Candidate, Row, Space, Verdict

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

TRIAL_S = STEADY_S + 15
"""What a trial takes, by and large: ranks that start and import torch, first steps, and the steady ones."""
WIDTH = 80
HEADINGS = ("RANKS", "THREADS", "PRECISION", "BATCH", "SAMPLES/S", "TIMES", "ROUNDING", "")
COLUMNS = "{:>5}  {:>7}  {:<9}  {:<7}  {:>9}  {:>5}  {:<8}  {}"
LEFT = 36
"""Of a row what is known before its trial; a problem takes the room of the rest."""


class TrialDisplay:
    """What a trial does, on one live line in a terminal; else nothing."""

    def __init__(self, doing: str, left_s: float, *, is_live: bool) -> None:
        self._doing, self._ends_s = doing, time.monotonic() + left_s
        self._status: Status | None = None
        if is_live:
            from rich.console import Console

            self._status = Console(highlight=False, markup=False).status(self._text("starting ranks"))

    def __enter__(self) -> TrialDisplay:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, event: Event) -> None:
        if self._status is not None and event.name in ("phase", "progress"):
            step = event.data.get("step")
            where = f"step {step}" if event.name == "progress" else str(event.data.get("name"))
            self._status.update(self._text(where.partition(" on ")[0]))

    def _text(self, where: str) -> Text:
        from rich.text import Text

        left_s = round(max(self._ends_s - time.monotonic(), 0))
        told = f"{self._doing}: {where}; {left_s // 60}:{left_s % 60:02d} left at most"
        return Text(told, no_wrap=True, overflow="ellipsis")


@dataclass
class Report:
    """For one tuning. `took_s` has the seconds of each trial so far."""

    space: Space
    program: str
    logs: Path
    shares_machine: bool
    as_json: bool
    took_s: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def _is_live(self) -> bool:
        return sys.stdout.isatty() and not self.as_json

    def begin(self) -> None:
        if self.as_json:
            return
        most, nodes = self.space.most_trials(), count(len(self.space.facts), "node")
        print(f"tuning {self.program} on {nodes}, global batch {self.space.global_batch} in all trials")
        print(
            f"at most {count(most, 'trial')}, some {duration(most * TRIAL_S)}; Ctrl-C keeps the best so far"
        )
        print(COLUMNS.format(*HEADINGS).rstrip(), flush=True)

    def display(self, candidate: Candidate) -> TrialDisplay:
        """For the trial that comes next."""
        shown = replace(candidate, ppn=even_ppn(self.space, candidate.ppn))
        left = self.space.most_trials() - len(self.rows)
        doing = f"trial {len(self.rows) + 1}: {shown}"
        return TrialDisplay(doing, left * max(self.took_s, default=TRIAL_S), is_live=self._is_live)

    def show(self, row: Row) -> None:
        self.rows.append(row)
        if self.as_json:
            print_json({"event": "trial", **self._row_json(row)})
        else:
            print(self._line(row), flush=True)

    def _line(self, row: Row) -> str:
        default = self.rows[0]
        note = "once more" if row.again else "the default" if row is default else ""
        cells = _cells(row.candidate, row.dtype or default.dtype, self.space)
        if row.samples_per_s is None:
            room = WIDTH - LEFT
            told = row.problem if len(row.problem) <= room else f"{row.problem[: room - 1]}…"
            return f"{COLUMNS.format(*cells, '', '', '', ''):<{LEFT}.{LEFT}}{told}"
        speed, times = f"{row.samples_per_s:.1f}", f"{self._times(row):.2f}"
        return COLUMNS.format(*cells, speed, times, _rounding(row, default), note).rstrip()

    def _times(self, row: Row) -> float:
        """How many times as fast as the default; as its second trial, for what is tried once more."""
        first = next((each for each in self.rows if each.again), None) if row.again else None
        return (row.samples_per_s or 0) / ((first or self.rows[0]).samples_per_s or 1)

    def end(self, verdict: Verdict | None, *, is_whole: bool) -> None:
        if self.as_json:
            kept = self._kept_json(verdict) if verdict and verdict.is_kept else None
            told = {"event": "tune", "global_batch": self.space.global_batch, "whole": is_whole}
            print_json({**told, "kept": kept})
            return
        if not is_whole:
            print(f"interrupted after {count(len(self.rows), 'trial')}")
        print("\n".join(self._ending(verdict)))

    def _ending(self, verdict: Verdict | None) -> list[str]:
        lines = []
        if any(row.problem for row in self.rows):
            lines.append(f"logs of what failed: {self.logs}")
        if self.shares_machine:
            lines.append("These nodes share one machine's cores: on machines of their own it may differ.")
        if verdict is not None and verdict.is_busy:
            lines.append("The default was not as fast again: what else ran there? Tune once more.")
        if verdict is None:
            return [*lines, "nothing is kept: for that the default and another one have to be measured"]
        if verdict.times == 1:
            fell = "once more beside it, what was faster was not: " if verdict.fell else ""
            where = "here" if verdict.is_whole else "so far"
            return [*lines, f"{fell}the default is the best {where}, and stays"]
        return [
            *lines,
            f"the best: {verdict.best}, {verdict.times:.2f} times the default",
            f"kept: the next `clusterctl train {self.program}` like this uses it; --no-tuned does not",
        ]

    def _row_json(self, row: Row) -> dict[str, Any]:
        is_measured = row.samples_per_s is not None
        return {
            **row.candidate.to_json(),
            "ranks": self.space.ranks(row.candidate.ppn),
            "dtype": row.dtype,
            "rounding": _rounding(row, self.rows[0]) if row.dtype else None,
            "samples_per_s": round(row.samples_per_s or 0, 3) if is_measured else None,
            "times": round(self._times(row), 3) if is_measured else None,
            "again": row.again,
            "problem": row.problem or None,
        }

    def _kept_json(self, verdict: Verdict) -> dict[str, Any]:
        times = round(verdict.times, 3)
        return {**verdict.best.to_json(), "times": times, "file": str(kept_file())}


def show_candidates(space: Space, *, as_json: bool) -> None:
    """What would be tried, as if the default stayed the best."""
    default = space.default
    found = (default, *space.ppns(default), *space.precisions(default), *space.batches(default))
    if as_json:
        for candidate in found:
            ranks = space.ranks(candidate.ppn)
            print_json({"event": "candidate", **candidate.to_json(), "ranks": ranks})
        return
    print(f"global batch {space.global_batch} in all; precision and batch go on from the best so far")
    print(COLUMNS.format(*HEADINGS[:4], "", "", "", "").rstrip())
    for candidate in found:
        note = "the default" if candidate == default else ""
        print(f"{COLUMNS.format(*_cells(candidate, None, space), '', '', '', ''):.{LEFT}}{note}".rstrip())


def _cells(candidate: Candidate, dtype: str | None, space: Space) -> tuple[str, str, str, str]:
    layouts = space.layouts(candidate.ppn).values()
    ranks = sorted({layout.ppn for layout in layouts})
    threads = sorted({rank.threads for layout in layouts for rank in layout.ranks})
    precision = {"true": BF16, "false": FP32}.get(candidate.bf16 or "") or dtype or "as it is"
    batch = f"{candidate.per_device} x {candidate.accumulation}"
    return _each(ranks), _each(threads), precision.replace(FP32, "float32"), batch


def _each(numbers: Sequence[int]) -> str:
    return "/".join(map(str, numbers))


def _rounding(row: Row, default: Row) -> str:
    """What the precision does to the results, beside the default's."""
    return "same" if row.dtype == default.dtype else "coarser" if row.dtype == BF16 else "finer"

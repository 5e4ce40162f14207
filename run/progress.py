"""A run as it is watched: a live line in a terminal, plain lines when piped, JSON lines for scripts."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

from run.events import Event
from run.interruption import parse_notice

PLAIN_EVERY_S = 5.0
_RANKS_OWN = re.compile(r"\[\d+\] ")


class Display(AbstractContextManager["Display"], Protocol):
    """Shown every event of a run."""

    def show(self, event: Event) -> None: ...


def display_for(*, as_json: bool, ranks: int, echo: bool = False) -> Display:
    """JSON lines where asked for, a live line in a terminal, plain lines otherwise.

    With `echo`, what the ranks print is shown too: somebody's own program tells of itself in no other way.
    """
    if as_json:
        return JsonDisplay(echo=echo)
    return LiveDisplay(ranks, echo=echo) if sys.stdout.isatty() else PlainDisplay(ranks, echo=echo)


class PlainDisplay:
    """A line for each phase and warning, and one every few seconds for the progress."""

    def __init__(self, ranks: int, *, echo: bool = False) -> None:
        self._ranks = ranks
        self._echo = echo
        self._met = 0
        self._next_s = 0.0
        self._is_stopping = False

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, event: Event) -> None:
        if event.name == "progress":
            self._progress(event.data)
        elif event.name == "ready":
            self._met += 1
            if self._met == self._ranks:
                self._say(f"all {self._ranks} ranks have met")
        elif event.name == "output" and self._echo:
            if _RANKS_OWN.match(event.text):
                self._say(event.text)
        elif not (event.name == "agent_exit" and self._is_stopping):  # then all agents end
            self._is_stopping = self._is_stopping or event.name == "stop"
            text = news(event)
            if text:
                self._say(text)

    def _progress(self, data: Mapping[str, Any]) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PLAIN_EVERY_S
            self._say(progress_text(data))

    def _say(self, text: str) -> None:
        print(text, flush=True)


class JsonDisplay(PlainDisplay):
    """Every event but plain output as one JSON object a line."""

    def __init__(self, *, echo: bool = False) -> None:
        super().__init__(0, echo=echo)

    def show(self, event: Event) -> None:
        if event.name == "heartbeat" or (event.name == "output" and not self._echo):
            return
        about = {"event": event.name, "rank": event.rank, "node": event.node, **event.data}
        self._say(json.dumps({key: value for key, value in about.items() if value is not None}))


class LiveDisplay(PlainDisplay):
    """Phases scroll by, the progress stays on one line."""

    def __init__(self, ranks: int, *, echo: bool = False) -> None:
        from rich.console import Console
        from rich.status import Status

        super().__init__(ranks, echo=echo)
        self._console = Console(highlight=False, markup=False)
        self._status = Status(f"starting {ranks} ranks", console=self._console)

    def __enter__(self) -> LiveDisplay:
        self._status.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.__exit__(kind, error, trace)

    def show(self, event: Event) -> None:
        super().show(event)
        if event.name == "phase":
            self._status.update(str(event.data.get("name", "")))

    def _progress(self, data: Mapping[str, Any]) -> None:
        self._status.update(progress_text(data))

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def news(event: Event) -> str:
    """The line that an event is worth; empty when none.

    >>> news(Event("warning", data={"text": "3 answers skipped"}))
    'warning: 3 answers skipped'
    """
    if event.name == "phase":
        return f"phase: {event.data.get('name')}"
    if event.name == "warning":  # an error is told once, as the reason for the run's end
        return f"warning: {event.text}"
    if event.name == "stop":
        return (
            "stopping the ranks on every node" if event.text == "stop" else "killing the ranks on every node"
        )
    if event.name == "notice":
        notice = parse_notice(event.node or "", event.data)
        return f"{notice}: a checkpoint is wanted" if notice else ""
    if event.name == "checkpoint":
        return f"checkpoint at step {event.data.get('step')}"
    if event.name == "agent_exit":
        return f"warning: {event.node}: its agent ended with exit code {event.data.get('code')}"
    return event.text if event.name == "sweep" else ""


def progress_text(data: Mapping[str, Any]) -> str:
    """One line of progress.

    >>> progress_text({"step": 5, "steps": 20, "epoch": 0.5, "loss": 2.0, "samples_per_s": 30.0, "eta_s": 65})
    'step 5/20  epoch 0.50  loss 2.000  30.0 samples/s  1:05 to go'
    """
    parts = [f"step {data.get('step')}/{data.get('steps')}"]
    for key, shown in (
        ("epoch", "epoch {:.2f}"),
        ("loss", "loss {:.3f}"),
        ("samples_per_s", "{:.1f} samples/s"),
    ):
        value = data.get(key)
        if isinstance(value, int | float):
            parts.append(shown.format(value))
    eta_s = data.get("eta_s")
    if isinstance(eta_s, int | float):
        parts.append(f"{int(eta_s) // 60}:{int(eta_s) % 60:02d} to go")
    return "  ".join(parts)

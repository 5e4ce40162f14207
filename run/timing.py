"""How fast a trial of --tune is: fed with its events, says when it has seen enough. Pure.

All trials of a tuning train on the same batches in the same order, so each is timed over the same steps as
the default: longer rows in some steps cannot decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from run.events import Event

SKIPPED_STEPS = 3
"""Kernels are chosen and memory is touched for the first time; the recipes' own rates leave out as many."""
STEADY_S = 15.0
"""Of the default. A minute would be surer, and a tuning of ten trials nothing to try in between."""
LEAST_STEPS = 2
LEAST_S = 5.0
"""Of the others, when the default was slow: three of its steps may be over in a second."""
GIVE_UP_S = 300.0  # for the first STEADY_S of the default
SLOWEST = 3.0
"""So many times as long as the default a trial may train; then it is told as slow as it was."""


@dataclass(frozen=True)
class Window:
    """The steps that are timed: from the end of one to the end of another. `trained_s` is how long the trial
    trained until then, the skipped steps included.
    """

    first: int
    last: int
    trained_s: float


@dataclass
class Timing:
    """`like` is the default's window, None for the default itself. `now_s` is a monotonic clock."""

    now_s: Callable[[], float]
    like: Window | None = None
    dtype: str | None = None
    global_batch: int | None = None
    step: int = 0
    _began_s: float | None = None
    _skip_to: int | None = None
    _ends: list[tuple[float, int]] = field(default_factory=list)  # moment, step

    def feed(self, event: Event) -> None:
        if event.name == "setup":
            self.dtype, self.global_batch = event.data.get("dtype"), event.data.get("global_batch")
        elif event.name == "phase" and str(event.data.get("name")).startswith("train"):
            self._began_s = self.now_s()
        elif event.name == "progress" and isinstance(event.data.get("step"), int) and not self.is_over:
            self._take(event.data["step"])

    def _take(self, step: int) -> None:
        self.step = step
        if self._skip_to is None:  # a run that goes on from a checkpoint does not begin at 1
            self._skip_to = self.like.first if self.like else step - 1 + SKIPPED_STEPS
        if step >= self._skip_to:
            self._ends.append((self.now_s(), step))

    @property
    def is_over(self) -> bool:
        if self._began_s is None:
            return False
        limit_s = SLOWEST * self.like.trained_s if self.like else GIVE_UP_S
        return self._has_all or self.now_s() - self._began_s >= limit_s

    @property
    def _has_all(self) -> bool:
        if not self._ends:
            return False
        (began_s, first), (ended_s, last) = self._ends[0], self._ends[-1]
        if self.like is not None:
            return last >= max(self.like.last, first + 1) and ended_s - began_s >= LEAST_S
        return ended_s - began_s >= STEADY_S and last - first >= LEAST_STEPS

    @property
    def window(self) -> Window | None:
        """What was timed; None when no step was."""
        if self._began_s is None or len(self._ends) < 2:
            return None
        return Window(self._ends[0][1], self._ends[-1][1], self._ends[-1][0] - self._began_s)

    @property
    def steps_per_s(self) -> float | None:
        """None when no step was timed."""
        if len(self._ends) < 2:
            return None
        (began_s, first), (ended_s, last) = self._ends[0], self._ends[-1]
        return (last - first) / max(ended_s - began_s, 1e-9)

"""--smoke: a minute of training on one node, and what an epoch would take on more of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from run.events import Event

SMOKE_S = 60.0
SKIPPED_STEPS = 1
"""The first step of a process is slower: kernels are chosen and memory is touched for the first time."""


@dataclass
class Smoke:
    """Fed with a run's events; says when it has seen enough. `now_s` is a monotonic clock."""

    now_s: Callable[[], float]
    limit_s: float = SMOKE_S
    _seen: list[tuple[float, int, float]] = field(default_factory=list)  # moment, step, epochs so far

    def feed(self, event: Event) -> None:
        if event.name != "progress":
            return
        step, epochs = event.data.get("step"), float(event.data.get("epoch") or 0)
        if isinstance(step, int) and epochs > 0:
            self._seen.append((self.now_s(), step, epochs))

    @property
    def is_over(self) -> bool:
        return bool(self._seen) and self.now_s() - self._seen[0][0] >= self.limit_s

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch on the one node; None when too few steps were seen."""
        rows = self._seen[SKIPPED_STEPS:]
        if len(rows) < 2 or rows[-1][1] == rows[0][1]:
            return None
        (began_s, first, _), (ended_s, last, epochs) = rows[0], rows[-1]
        return (ended_s - began_s) / (last - first) * last / epochs

    def lines(self, nodes: int) -> Iterator[str]:
        """For people, up to twice the nodes there are."""
        if self.epoch_s is None:
            yield "too few steps in the time there was; give it a smaller batch, or no --smoke"
            return
        counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= max(2 * nodes, 4)]
        yield "an epoch takes, at best:"
        for count in counts:
            yield f"  {count:>3} {'node ' if count == 1 else 'nodes'}  {duration(self.epoch_s / count):>10}"
        yield "what the network adds, the summary of a run on several nodes says"


def duration(seconds: float) -> str:
    """
    >>> duration(7.2), duration(450), duration(12600)
    ('7.2 s', '7 min 30 s', '3 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"

"""Where the time of a training goes: compute, all-reduce, waiting, data; and what share of the peak.

    times = StepTimes()
    speed.send_gradients(ddp_model, times=times)      # or compress_gradients(ddp_model, times=times)
    for each step: times.fetched(seconds); times.worked(operations); backward; times.arrived(); times.step()
    split([of every rank])

What it takes: a few clock readings a step. DDP sends buckets of gradients while the backward pass goes on;
the time from the last bucket's readiness to the end of the backward pass is what sending cost beyond that.
The rank that came last waits for nobody: the least of these times over all ranks is the all-reduce, what
others spent beyond it is waiting for the slowest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WARM_UP_STEPS = 3
"""The first steps allocate memory and choose kernels; left out where there are more."""


class StepTimes:
    """One rank's steps, four float32 each: seconds, of these data, of these sending; and operations."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float, float]] = []
        self.start()

    def start(self) -> None:
        """The first step begins now."""
        self.last = time.perf_counter()
        self._clear()

    def _clear(self) -> None:
        self.data_s = self.sending_s = self.operations = 0.0
        self.ready: float | None = None

    def fetched(self, seconds: float) -> None:
        """A batch has come after so long."""
        self.data_s += seconds

    def worked(self, operations: float) -> None:
        """Multiplications and additions of a batch, forward and backward."""
        self.operations += operations

    def bucket(self) -> None:
        """Gradients are ready to be sent; what was counted as the last before was not the last."""
        self.ready = time.perf_counter()

    def blocked(self, seconds: float) -> None:
        """The backward pass stood still for so long, for others; the next bucket is not ready before."""
        self.sending_s += seconds
        self.ready = time.perf_counter()

    def arrived(self) -> None:
        """The backward pass has ended, with the gradients of all ranks if they were sent."""
        if self.ready is not None:
            self.sending_s += time.perf_counter() - self.ready
            self.ready = None

    def step(self) -> None:
        """The step has ended, and the next begins."""
        now = time.perf_counter()
        self.rows.append((now - self.last, self.data_s, self.sending_s, self.operations))
        self.last = now
        self._clear()

    def array(self) -> np.ndarray:
        """(steps, 4), to be gathered."""
        return np.array(self.rows, np.float32).reshape(-1, 4)


@dataclass(frozen=True)
class Split:
    """Shares of the time of all ranks, together 1; `peak_share` is 0 where no peak is known.

    `slowest` is the rank that the others wait for most.
    """

    compute: float
    all_reduce: float
    waiting: float
    data: float
    peak_share: float
    gflop_per_s: float
    slowest: int

    def rounded(self) -> dict[str, float | int]:
        return {name: round(value, 4) for name, value in vars(self).items()}


def split(steps: Sequence[np.ndarray], peaks: Sequence[float] = ()) -> Split | None:
    """What all ranks' steps, (steps, 4) each, come to; None without any.

    `peaks`: GFLOP/s that each rank's CPUs reach in a product of matrices.
    """
    count = min(len(each) for each in steps)
    if not count:
        return None
    whole = np.stack([each[WARM_UP_STEPS if count > WARM_UP_STEPS else 0 : count] for each in steps])
    total_s, data_s, sending_s, operations = whole.astype(np.float64).transpose(2, 0, 1)
    least = sending_s.min(axis=0)
    all_s = max(float(total_s.sum()), 1e-9)
    data, all_reduce = float(data_s.sum()) / all_s, float(least.sum()) * len(whole) / all_s
    waiting = float((sending_s - least).sum()) / all_s
    seconds = float(total_s.sum(axis=1).mean())
    rate = float(operations.sum()) / 1e9 / max(seconds, 1e-9)
    return Split(
        compute=1 - data - all_reduce - waiting,
        all_reduce=all_reduce,
        waiting=waiting,
        data=data,
        peak_share=rate / sum(peaks) if len(peaks) == len(whole) and sum(peaks) > 0 else 0.0,
        gflop_per_s=rate,
        slowest=int(sending_s.sum(axis=1).argmin()),
    )

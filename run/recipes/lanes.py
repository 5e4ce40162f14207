"""Which row is trained at which step, for any number of ranks and workers. Needs numpy.

A function of nothing but the text, the seed, the epoch and the global batch:

1. An epoch is a random order of the text's blocks, and within each block of its rows (see rows.py).
2. That order is cut into as many lanes as a step has rows, which differ by one row at most.
3. A step takes the next row of every lane. So every rank does the same number of steps, each row comes once,
   and only the last step of an epoch may have lanes that are over: there an empty row counts for nothing.
4. A lane belongs to one worker of one rank, which reads its blocks one after the other and no others.

Where to go on after a checkpoint follows from the number of its step alone. The rows of a batch come from as
many places of the text; those that follow each other in a lane are of one block until it is over. A block at
the end of one lane and the beginning of the next is read by both, each for rows of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

BLOCKS, ROWS, MASKS = 1, 2, 3
"""What randomness is drawn for: the first number of its seed."""


@dataclass(frozen=True)
class Deal:
    """How `global_batch` rows a step are dealt: `per_device` a rank and micro-batch, `accumulation`
    micro-batches a step. Ranks may have room for more.
    """

    global_batch: int
    ranks: int
    rank: int
    per_device: int
    accumulation: int

    def lanes(self) -> range:
        """This rank's lanes: `per_device` for each micro-batch of a step, one after the other.

        Those from `global_batch` on have no rows.
        """
        return range(self.rank, self.ranks * self.per_device * self.accumulation, self.ranks)


@dataclass(frozen=True)
class Part:
    """Rows [`first`, `last`) of a block, in the epoch's order of its rows."""

    block: int
    first: int
    last: int


@dataclass(frozen=True)
class Order:
    """An epoch's order. `rows` has the number of rows of each block."""

    rows: np.ndarray
    seed: int
    epoch: int

    @cached_property
    def blocks(self) -> np.ndarray:
        return np.random.default_rng([BLOCKS, self.seed, self.epoch]).permutation(len(self.rows))

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each block's rows begin in the order, and where the last one's end."""
        return np.concatenate([[0], np.cumsum(self.rows[self.blocks], dtype=np.int64)])

    def rows_of(self, block: int) -> np.ndarray:
        """The numbers of a block's rows, in this epoch's order."""
        random = np.random.default_rng([ROWS, self.seed, self.epoch, block])
        return random.permutation(int(self.rows[block]))

    def parts(self, begin: int, end: int) -> Iterator[Part]:
        """The blocks that make up the rows [begin, end) of the order."""
        while begin < end:
            at = int(np.searchsorted(self.starts, begin, side="right")) - 1  # never one without rows
            until = min(end, int(self.starts[at + 1]))
            yield Part(int(self.blocks[at]), begin - int(self.starts[at]), until - int(self.starts[at]))
            begin = until


def steps_per_epoch(rows: int, lanes: int) -> int:
    return -(-rows // lanes)


def lane_rows(lane: int, lanes: int, rows: int) -> tuple[int, int]:
    """The rows [begin, end) of the order that a lane has.

    >>> [lane_rows(lane, 3, 7) for lane in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    """
    return lane * rows // lanes, (lane + 1) * rows // lanes

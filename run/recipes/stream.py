"""The text as an IterableDataset: this rank's micro-batches, from any step on, with any number of workers.

Why not what the libraries have: datasets' split_dataset_by_node gives a rank whole files, or has every rank
read everything and keep its share; its position is a state of every worker, good for the same number of them
only; torchdata's StatefulDataLoader (not in the stack) keeps such states. Here a position is the number of a
step (see lanes.py), so torch's own DataLoader does. accelerate would have rank 0 read and send to the others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from lanes import MASKS, Deal, Order, lane_rows, steps_per_epoch
from rows import Cutter, MaskedRow, Masker, collate, empty_row
from text import Block, read_lines
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

EVALUATION = 2**31
"""The epoch that masks for evaluation are drawn for: never one of training."""


@dataclass(frozen=True)
class Source:
    """A text and how it becomes masked rows. A RuntimeError tells of a text that is changed meanwhile."""

    blocks: Sequence[Block]
    cutter: Cutter
    masker: Masker

    def rows(self, order: Order, begin: int, end: int) -> Iterator[MaskedRow]:
        """The rows [begin, end) of an epoch's order; a block is read when its first row is asked for."""
        for part in order.parts(begin, end):
            rows = self.cutter.cut(read_lines(self.blocks[part.block]))
            if len(rows) != order.rows[part.block]:
                raise RuntimeError(f"{self.blocks[part.block].path} has changed since its rows were counted")
            for number in order.rows_of(part.block)[part.first : part.last]:
                yield self.masker.mask(
                    rows[number], (MASKS, order.seed, order.epoch, part.block, int(number))
                )

    def all_rows(self, block: int, seed: int) -> Iterator[MaskedRow]:
        """A block's rows as they stand, masked for evaluation."""
        for number, ids in enumerate(self.cutter.cut(read_lines(self.blocks[block]))):
            yield self.masker.mask(ids, (MASKS, seed, EVALUATION, block, number))


class LaneRows(IterableDataset):
    """The rest of an epoch: for each micro-batch the rows of those lanes that are this worker's.

    With n workers the i-th lane of the rank is worker i % n's, for good: each reads blocks of its own.
    DataLoader asks the workers in turn, so n items in a row are a micro-batch.
    """

    def __init__(self, source: Source, deal: Deal, order: Order, first_step: int):
        self.source, self.deal, self.order, self.first_step = source, deal, order, first_step

    def __iter__(self) -> Iterator[list[tuple[int, MaskedRow]]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        total, count = int(self.order.starts[-1]), self.deal.global_batch
        lanes: dict[int, Iterator[MaskedRow]] = {}
        for place, lane in islice(enumerate(self.deal.lanes()), number, None, workers):
            begin, end = lane_rows(lane, count, total) if lane < count else (0, 0)
            lanes[place] = self.source.rows(self.order, begin + self.first_step, end)
        nothing = empty_row(self.source.cutter)
        size = self.deal.per_device
        for _ in range(self.first_step, steps_per_epoch(total, count)):
            for first in range(0, size * self.deal.accumulation, size):
                mine = [place for place in range(first, first + size) if place in lanes]
                yield [(place, next(lanes[place], nothing)) for place in mine]


class Stream(IterableDataset):
    """This rank's micro-batches of an epoch, ready for the model; begin_at() says from which step on.

    Trainer throws away as many batches as the interrupted epoch had: for those there is None, and nothing is
    read.
    """

    def __init__(self, source: Source, deal: Deal, rows, seed: int, pad_id: int, workers: int):
        self.source, self.deal, self.rows, self.seed = source, deal, rows, seed
        self.pad_id, self.workers = pad_id, workers
        self.total = int(rows.sum())
        self.steps = steps_per_epoch(self.total, deal.global_batch)
        self.step = 0

    def begin_at(self, step: int) -> None:
        """The next iteration is of the epoch with this step, counted from the first epoch's first."""
        self.step = step

    def __len__(self) -> int:
        """Micro-batches of an epoch."""
        return self.steps * self.deal.accumulation

    @property
    def empty_rows(self) -> int:
        """How many an epoch's last step has, over all ranks."""
        return self.steps * self.deal.global_batch - self.total

    def __iter__(self) -> Iterator[dict[str, torch.Tensor] | None]:
        epoch, done = divmod(self.step, self.steps)
        yield from [None] * (done * self.deal.accumulation)
        lanes = LaneRows(self.source, self.deal, Order(self.rows, self.seed, epoch), done)
        loader = iter(
            DataLoader(
                lanes,
                batch_size=None,
                collate_fn=keep,
                num_workers=self.workers,
                worker_init_fn=begin_worker,
                generator=torch.Generator(),  # the global one is the dropout's
            )
        )
        while items := list(islice(loader, max(1, self.workers))):
            rows = sorted((pair for item in items for pair in item), key=lambda pair: pair[0])
            yield collate([row for _, row in rows], self.pad_id)


def keep(item: object) -> object:
    """As it is: DataLoader would make a tensor in shared memory of every array."""
    return item


def begin_worker(_number: int) -> None:
    # The parent has used the tokenizer's threads, which a fork does not have: it would wait for them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})

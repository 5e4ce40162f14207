"""Gradients sent between ranks as bf16, and of an embedding's table only the rows that were used.

Half of MiniLM-L6's gradient is the table of 30522 words, of which a batch uses a few hundred; and it is the
last to be ready, so that nothing hides the time it takes. Per step fp32 sends 91 MB a rank; bf16 alone
sends 45 MB, with rows about 23 MB. torch's own bf16_compress_hook is refused on CPUs.

What changes: a gradient is rounded to bf16 (8 bits) once on its way and once for each rank it is added to;
Adam's moments and the weights stay fp32. All ranks get the same numbers, so they stay equal. With
kind=torch.float32 only the unused rows are left out, and nothing changes.

While the backward pass goes on, earlier buckets are on their way already, as with DDP's own sums. Under
gradient accumulation only the last micro-batch sends (Trainer and accelerate use DDP.no_sync; plain loops
must do so themselves).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .times import StepTimes

TABLE_SIZE = 1 << 20
"""Embeddings with fewer numbers are sent whole: to find their used rows is not worth it."""


def compress_gradients(
    model: DistributedDataParallel, kind: torch.dtype = torch.bfloat16, times: StepTimes | None = None
) -> DistributedDataParallel:
    """The same DDP model, its gradients summed over ranks as `kind`. Before the first backward pass."""
    model.register_comm_hook(Wire(model.process_group, large_tables(model), kind, times), average)
    return model


def large_tables(model: nn.Module) -> frozenset[int]:
    """Embeddings (id of the weight) worth looking through for used rows: large, and no layer's weight too.

    A model that guesses words multiplies with its table, so every row of it has a gradient.
    """
    modules = list(model.modules())
    tied = {id(module.weight) for module in modules if isinstance(module, nn.Linear)}
    tables = [module.weight for module in modules if isinstance(module, nn.Embedding)]
    return frozenset(id(table) for table in tables if table.numel() >= TABLE_SIZE) - tied


def send_gradients(model: DistributedDataParallel, times: StepTimes) -> DistributedDataParallel:
    """The same DDP model, gradients sent whole as DDP would, and the time of it noted."""
    model.register_comm_hook(Wire(model.process_group, frozenset(), None, times), average)
    return model


@dataclass(frozen=True)
class Wire:
    """What the hook needs: the group of ranks, which parameters (by id) are large embeddings' tables, and the
    type that is sent; None: the gradient's own, in place."""

    group: dist.ProcessGroup
    tables: frozenset[int]
    kind: torch.dtype | None
    times: StepTimes | None


# torch compares the annotations of a hook's arguments, and wants the second named `bucket`.
def average(wire: Wire, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The bucket's mean over ranks, once it has come."""
    whole = bucket.buffer()
    if wire.times:
        wire.times.bucket()
    if wire.kind is None:
        return sent(whole.div_(wire.group.size()), wire).then(lambda answer: answer.value()[0])
    pieces = split(whole, tables_of(wire, bucket), wire)
    message = torch.cat([piece.read().to(wire.kind) for piece in pieces]).div_(wire.group.size())

    def store(_: object) -> torch.Tensor:
        for piece, part in zip(pieces, message.split([piece.count for piece in pieces]), strict=True):
            piece.write(part)
        return whole

    return sent(message, wire).then(store)


def sent(message: torch.Tensor, wire: Wire) -> torch.futures.Future[list[torch.Tensor]]:
    """The sum over ranks, in place, on its way."""
    return dist.all_reduce(message, group=wire.group, async_op=True).get_future()


average.__annotations__ = {
    "bucket": dist.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}


@dataclass(frozen=True)
class Piece:
    """A part of a bucket: all of `values`, or of a table (n, H) only `rows`."""

    values: torch.Tensor
    rows: torch.Tensor | None = None

    @property
    def count(self) -> int:
        return self.values.numel() if self.rows is None else len(self.rows) * self.values.shape[1]

    def read(self) -> torch.Tensor:
        return self.values if self.rows is None else self.values[self.rows].flatten()

    def write(self, part: torch.Tensor) -> None:
        if self.rows is None:
            self.values.copy_(part)
        else:
            self.values.index_copy_(0, self.rows, part.view(len(self.rows), -1).to(self.values.dtype))


def tables_of(wire: Wire, bucket: dist.GradBucket) -> list[torch.Tensor]:
    """Gradients of large embeddings in this bucket, as views of it, in their order there."""
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    found = [grad for parameter, grad in pairs if id(parameter) in wire.tables]
    return sorted(found, key=lambda grad: grad.storage_offset())


def split(whole: torch.Tensor, tables: Sequence[torch.Tensor], wire: Wire) -> list[Piece]:
    """The bucket as pieces, from its beginning to its end."""
    pieces, at = [], 0
    for table in tables:
        begin = table.storage_offset() - whole.storage_offset()
        pieces += [Piece(whole[at:begin]), Piece(table, used_rows(table, wire))]
        at = begin + table.numel()
    return [*pieces, Piece(whole[at:])]


def used_rows(table: torch.Tensor, wire: Wire) -> torch.Tensor:
    """Rows that are not zero on some rank; all ranks ask at the same place."""
    # Not `table != 0`: that and any() take three times as long. Rows below 1e-22 count as zero.
    used = (torch.linalg.vector_norm(table, dim=1) != 0).to(torch.uint8)
    begun = time.perf_counter()
    dist.all_reduce(used, dist.ReduceOp.MAX, group=wire.group)
    if wire.times:
        wire.times.blocked(time.perf_counter() - begun)
    return used.nonzero().squeeze(1)

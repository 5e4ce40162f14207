"""The parts of `speed` as the recipe uses them: which are on, what they are told, what came of them.

`speed` lies beside the folder of the recipes; on a node rank.py has told Python where.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from ranks import Place, gather
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[1]))
import speed
from speed.precision import BF16, FP32


@dataclass(frozen=True)
class Arithmetic:
    """How all ranks multiply, and the GFLOP/s that each reaches so."""

    name: str
    peaks: tuple[float, ...]

    @property
    def bf16(self) -> bool:
        return self.name == BF16


def choose_arithmetic(place: Place, bf16: bool, fixed: bool, measure: bool) -> Arithmetic:
    """The same for all ranks: in a mixture the slower ones would make the others wait.

    `bf16` where the CPUs have it, or `fixed` by the user; fp32 by what is fastest. Without `measure` nothing
    of this is left to measurements, and fp32 is multiplied as torch does.
    """
    measured = gather(place, speed.precision.measure())
    name = BF16 if bf16 else FP32
    if measure:
        name = speed.precision.choose(measured, None if bf16 and not fixed else bf16)
    speed.precision.use(name)
    return Arithmetic(name, tuple(rates[name] for rates in measured))


def quicken(model: torch.nn.Module, unpad: bool, cheap_dropout: bool, place: Place) -> list[str]:
    """Put the parts that live in the model into it; their names. One warning where padding has to stay."""
    said: list[str] = []
    if cheap_dropout:
        speed.cheap_dropout(model)
    if unpad:
        speed.unpadded(model, said.append)
    for text in said:
        place.emit("warning", text=text)
    return ["unpad"] * (unpad and not said) + ["cheap dropout"] * cheap_dropout


def attach(model: torch.nn.Module, compress: str, bf16: bool, times: speed.StepTimes) -> list[str]:
    """Have DDP's gradients sent as asked, and the time of it noted; names of parts. Nothing without gloo."""
    is_ddp = isinstance(model, DistributedDataParallel)
    if not is_ddp or torch.distributed.get_backend(model.process_group) != "gloo":
        return []
    half = compress == "true" or (compress == "auto" and bf16)
    alone = model.process_group.size() == 1
    if alone or compress == "false" or not (half or speed.large_tables(model)):
        speed.send_gradients(model, times)
        return []
    speed.compress_gradients(model, torch.bfloat16 if half else torch.float32, times)
    return ["bf16 gradients" if half else "used rows only"]


def allocator(environ: Mapping[str, str]) -> str:
    """What gives out memory here, as far as the environment tells."""
    for name in ("tcmalloc", "jemalloc"):
        if name in environ.get("LD_PRELOAD", ""):
            return name
    return "glibc, tuned" if "MALLOC_TRIM_THRESHOLD_" in environ else "glibc"


# --- where the time went -----------------------------------------------------------------------


def where_time_went(times: speed.StepTimes, peaks: Sequence[float], place: Place) -> dict[str, object]:
    """Of all ranks together, on every rank; {} without a step."""
    found = speed.split(gather(place, times.array()), peaks)
    if found is None:
        return {}
    advice = advise(found, allocator(os.environ))
    return {"time": found.rounded()} | ({"advice": advice} if advice else {})


def advise(found: speed.Split, memory: str) -> str | None:
    """One line on what stands out most, None where nothing does."""
    said = [
        (found.waiting / 0.10, f"the others wait for rank {found.slowest}: see what else runs on its node"),
        (found.all_reduce / 0.15, "sending gradients takes long: --gradient_accumulation_steps 2 halves it"),
        (found.data / 0.05, "batches come late: --dataloader_num_workers 1 prepares them beside"),
        (1.01 * (memory == "glibc"), "glibc's malloc is slow here: install libtcmalloc-minimal4"),
    ]
    how_much, text = max(said)
    return text if how_much > 1 else None

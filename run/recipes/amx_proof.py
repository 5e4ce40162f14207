"""With --prove-amx: what oneDNN and MKL say of a few real steps, as one event of each rank.

The launcher lays onednn.py and capture.py (provision/amx) beside this file and sets CLUSTERCTL_PROVE_AMX to
the number of steps; without it nothing here is ever called again.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from ranks import Place, emit
from transformers import TrainerCallback

STEPS = "CLUSTERCTL_PROVE_AMX"
FIRST_STEPS = 3
"""Kernels are made in the first steps; they are listened to only where a run has no others."""


def proof_callbacks(place: Place) -> list[TrainerCallback]:
    """The callback that proves, where it was asked for."""
    steps = int(os.environ.get(STEPS, "0"))
    return [AmxProof(place, steps)] if steps else []


class AmxProof(TrainerCallback):
    """Listens to `steps` steps, the first ones of the run left out, and says what executed them."""

    def __init__(self, place: Place, steps: int):
        self.place, self.steps, self.dtype = place, steps, "fp32"
        self.done, self.first, self.window = 0, 0, ExitStack()
        self.lines: list[str] | None = None

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.dtype = "bf16" if args.bf16 else "fp32"
        self.first = max(0, min(FIRST_STEPS, state.max_steps - state.global_step - self.steps))

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if self.done == self.first:
            from capture import listening

            self.begun = time.perf_counter()
            self.lines = self.window.enter_context(listening())

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.done += 1
        if self.done == self.first + self.steps:
            self.tell(self.steps)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        """A run that ended early, or had fewer steps."""
        self.tell(self.done - self.first)

    def tell(self, steps: int) -> None:
        """Once: the event, with the milliseconds and calls of each kernel that multiplied."""
        if self.lines is None:
            return
        from capture import bf16_units
        from onednn import parse_library, products

        lines, self.lines = self.lines, None
        seconds = time.perf_counter() - self.begun
        self.window.close()
        emit(
            "amx_proof",
            rank=self.place.rank,
            dtype=self.dtype,
            units=bf16_units(),
            steps=steps,
            seconds=round(seconds, 3),
            onednn=parse_library(lines).version,
            cap=os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
            kernels={kernel: [round(ms, 3), calls] for kernel, (ms, calls) in products(lines).items()},
        )

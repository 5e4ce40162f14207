"""Checks of --prove-amx that need torch: run by a stack's Python, beside the recipes and provision/amx.

STACK/bin/python tests/amx_checks.py CHECK
"""

import ctypes
import os
import sys
from types import SimpleNamespace

import torch
from amx_proof import FIRST_STEPS, AmxProof, proof_callbacks
from capture import listening
from onednn import is_verbose, products
from ranks import Place


def multiply() -> None:
    a = torch.ones(64, 64, dtype=torch.bfloat16)
    torch.mm(a, a)
    torch.mm(a.float(), a.float())


def nothing_is_lost() -> None:
    """Whatever else is printed meanwhile arrives once, and the libraries' lines do not."""
    print("before, unflushed", end="\n")
    with listening() as lines:
        multiply()
        print("by Python")
        os.write(1, b"by the descriptor\n")
        ctypes.CDLL(None).puts(b"by the C library")
        multiply()
    multiply()
    print("after")
    assert lines
    assert all(map(is_verbose, lines)), lines
    kernels = products(lines)
    assert sum(calls for _, calls in kernels.values()) == 4, kernels
    assert kernels["mkl:sgemm"][1] == 2, kernels


def window(total: int, begun_at: int, stop_after: int | None = None) -> list[int]:
    """The steps that were listened to, in a run of `total` steps that goes on at `begun_at`."""
    (callback,) = proof_callbacks(Place())
    assert isinstance(callback, AmxProof)
    arguments = SimpleNamespace(bf16=True)
    state = SimpleNamespace(max_steps=total, global_step=begun_at)
    heard = []
    callback.on_train_begin(arguments, state, None)
    for step in range(begun_at, stop_after or total):
        callback.on_step_begin(arguments, state, None)
        if callback.lines is not None:
            heard.append(step)
        multiply()
        state.global_step += 1
        callback.on_step_end(arguments, state, None)
    callback.on_train_end(arguments, state, None)
    assert callback.lines is None
    return heard


def steps() -> None:
    """Three steps after the first ones; of a short run its last; once, and only where it was asked for."""
    assert proof_callbacks(Place()) == []
    os.environ["CLUSTERCTL_PROVE_AMX"] = "3"
    assert window(40, 0) == [FIRST_STEPS, FIRST_STEPS + 1, FIRST_STEPS + 2]
    assert window(40, 20) == [23, 24, 25]
    assert window(4, 0) == [1, 2, 3]
    assert window(2, 0) == [0, 1]
    assert window(40, 0, stop_after=4) == [3]
    assert window(40, 0, stop_after=2) == []


def event() -> None:
    """The event of a run; ONEDNN_MAX_CPU_ISA is the caller's."""
    os.environ["CLUSTERCTL_PROVE_AMX"] = "3"
    window(6, 0)


if __name__ == "__main__":
    {"nothing_is_lost": nothing_is_lost, "steps": steps, "event": event}[sys.argv[1]]()
    sys.stdout.flush()

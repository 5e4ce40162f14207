"""What torch does with bf16 on this node, and how fast; ladder.py runs it with the stack's own Python.

Prints "@@NAME VALUE" lines; what oneDNN says of itself (ONEDNN_VERBOSE=1) comes between them. With the
argument `speed` also GFLOP/s of square products, fp32 and bf16, on one core and on all the node may use.
"""

# mypy: disable-error-code="import-not-found"
# The operator's side has no torch, and a node's torch has no use for pathlib here.
# ruff: noqa: PTH123

from __future__ import annotations

import os
import sys
import time

LAP_S = 0.4  # each speed is the best of the products that fit into this


def main() -> None:
    import torch

    say("torch", torch.__version__)
    ones = torch.ones(256, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        torch.nn.functional.linear(ones, ones)
        if "speed" in sys.argv[1:]:
            speeds()


def speeds() -> None:
    """One core first, then all: physical cores only, since two threads of a core share its one unit."""
    import torch

    allowed = os.sched_getaffinity(0)
    cores = len(one_thread_a_core(allowed))
    say("cores", str(cores))
    for name, threads, size in (("one", 1, 1024), ("all", cores, 1024 if cores < 8 else 4096)):
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, allowed if threads > 1 else {min(allowed)})
        for short, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            say(f"{short}_{name}", f"{gflops(dtype, size):.1f}")


def gflops(dtype: object, size: int) -> float:
    import torch

    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    torch.mm(a, b)  # oneDNN makes its kernel at the first call
    best, ends = float("inf"), time.perf_counter() + LAP_S
    while time.perf_counter() < ends:
        began = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best / 1e9


def one_thread_a_core(cpus: set[int]) -> set[int]:
    """Of the CPUs, the first of each physical core."""
    chosen: dict[str, int] = {}
    for cpu in sorted(cpus):
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            with open(path) as file:
                core = file.read().strip()
        except OSError:
            core = str(cpu)
        chosen.setdefault(core, cpu)
    return set(chosen.values())


def say(name: str, value: str) -> None:
    print(f"@@{name} {value}", flush=True)


if __name__ == "__main__":
    main()

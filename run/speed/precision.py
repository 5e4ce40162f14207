"""Which precision the CPUs at hand are good at, found by trying.

What /proc/cpuinfo promises and what torch makes of it differ: on an AMD with avx512_bf16 fp32 through MKL
ran at 107 GFLOP/s a core, fp32 through oneDNN at 240, bf16 at 490; without such units bf16 is slower than
fp32. It takes half a second.

What changes: bf16 is autocast's, weights stay fp32. oneDNN's fp32 ("medium" of set_float32_matmul_precision)
rounds to bf16 on CPUs with AMX, so it is taken for fp32 only where its error is fp32's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

FP32, ONEDNN, BF16 = "fp32", "fp32 by oneDNN", "bf16"
EXACT = 1e-5
"""Largest relative error of products that still counts as fp32; bf16 has 3e-3."""
WORTH = 1.15
"""By how much another fp32 must be faster, or bf16 slower, before it is left; noise must not decide."""


def measure(rows: int = 2048, width: int = 768, least: int = 3, limit_s: float = 0.4) -> dict[str, float]:
    """GFLOP/s of this process for products of (rows, width) and (width, width), by precision.

    In turns, the best of each: what else runs on the machine slows all alike. ONEDNN is 0 where it is not as
    exact as fp32.
    """
    numbers = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, width, generator=numbers) for size in (rows, width))
    half, before = (left.bfloat16(), right.bfloat16()), torch.get_float32_matmul_precision()
    actions: dict[str, Callable[[], torch.Tensor]] = {
        FP32: lambda: left @ right,
        ONEDNN: lambda: left @ right,
        BF16: lambda: half[0] @ half[1],
    }
    best_s = dict.fromkeys(actions, float("inf"))
    try:
        use(ONEDNN)
        if not is_exact(left @ right, left, right):
            del actions[ONEDNN]
        for action in actions.values():  # the first of each takes longer
            action()
        begun, turn = time.perf_counter(), 0
        while turn < least or time.perf_counter() < begun + limit_s:
            turn += 1
            for name, action in actions.items():
                use(name)
                best_s[name] = min(best_s[name], seconds_of(action))
    finally:
        torch.set_float32_matmul_precision(before)
    operations = 2 * rows * width * width
    return {name: round(operations / seconds / 1e9, 1) for name, seconds in best_s.items()}


def seconds_of(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def is_exact(product: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether a product of fp32 is one: the first rows tell."""
    truth = left[:64].double() @ right.double()
    return float((product[:64] - truth).norm() / truth.norm()) < EXACT


def choose(measured: Sequence[Mapping[str, float]], bf16: bool | None = None) -> str:
    """FP32, ONEDNN or BF16 for ranks that measured so; the slowest rank decides each.

    `bf16` True or False leaves only how; None is for CPUs with units for it: bf16 where it is not clearly
    slower than fp32.

    >>> choose([{FP32: 100, ONEDNN: 240, BF16: 490}, {FP32: 100, ONEDNN: 0, BF16: 40}])
    'fp32'
    """
    if bf16:
        return BF16
    slowest = {name: min(rates[name] for rates in measured) for name in (FP32, ONEDNN, BF16)}
    if bf16 is None and slowest[BF16] * WORTH > max(slowest[FP32], slowest[ONEDNN]):
        return BF16
    return ONEDNN if slowest[ONEDNN] > WORTH * slowest[FP32] else FP32


def use(name: str) -> None:
    """Set what torch multiplies fp32 matrices with; bf16 is left to autocast."""
    torch.set_float32_matmul_precision("medium" if name == ONEDNN else "highest")

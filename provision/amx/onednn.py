"""What oneDNN and MKL say they executed: which kernels, on which instruction set, for how long.

Torch gives products to either: bf16 mostly to oneDNN (ONEDNN_VERBOSE=1), fp32 and small ones within a thread
to MKL (MKL_VERBOSE=1). Standard library only: a copy of this file travels to the nodes with a training run.

Three forms of a line are in use; what follows `exec` is the same in all:

    onednn_verbose,exec,cpu,matmul,brg:avx512_core_amx_bf16,undef,...,1x768:768x768,0.12          2.x, 3.0
    onednn_verbose,primitive,exec,cpu,inner_product,brgemm:avx512_core_vnni,...,0.01              3.1 to 3.4
    onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx10_1_512_amx,undef,...,0.08         3.5 on

With ONEDNN_VERBOSE_TIMESTAMP=1 a number stands before or after the first word's versions; DNNL 1.x begins
with dnnl_verbose. Fields: https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html

MKL tells the function, and not the instructions that it chose:

    MKL_VERBOSE SGEMM(T,N,384,256,384,...) 4.42ms CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:2
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# The primitives that do a model's arithmetic, and that AMX is for.
PRODUCTS = frozenset({"matmul", "inner_product", "convolution", "deconvolution", "rnn"})
_MKL = re.compile(r"MKL_VERBOSE (\w+)\(.*\) ([\d.]+)(ns|us|ms|s) ")
_IN_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Execution:
    """One primitive as executed. `kernel` is oneDNN's name of the implementation, or mkl:FUNCTION."""

    primitive: str
    kernel: str
    ms: float

    @property
    def isa(self) -> str:
        return isa_of(self.kernel)


@dataclass(frozen=True)
class Shares:
    """Of the time in products, the part by instruction set; empty when nothing was executed."""

    ms: float
    by_isa: dict[str, float]

    @property
    def amx(self) -> float:
        return self.by_isa.get("amx", 0.0)


@dataclass(frozen=True)
class Library:
    """What oneDNN says of itself at its start; "" for what it does not say."""

    version: str = ""
    isa: str = ""
    threads: int = 0


def isa_of(kernel: str) -> str:
    """The family of instruction sets that a kernel's name tells.

    >>> [isa_of(name) for name in ("brg_matmul:avx10_1_512_amx", "brg:avx512_core_bf16", "gemm:jit:f32")]
    ['amx', 'avx512_bf16', 'gemm']
    >>> [isa_of(name) for name in ("mkl:sgemm", "mkl:gemm_bf16bf16f32")]
    ['mkl_fp32', 'mkl_bf16']
    """
    name = kernel.lower()
    if name.startswith("mkl:"):
        return "mkl_bf16" if "bf16" in name else "mkl_fp32"
    if "amx" in name:
        return "amx"
    if "avx512_core_bf16" in name or "avx512_core_fp16" in name or "avx10" in name:
        return "avx512_bf16"
    for family in ("avx512", "avx2", "sve", "sse41", "avx"):
        if family in name:
            return family
    return next((word for word in ("acl", "gemm", "ref", "simple") if word in name), "other")


def parse_execution(line: str) -> Execution | None:
    """The execution that a line tells of; None for any other line.

    A line that another process wrote into is passed over, not guessed at.

    >>> parse_execution("onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx2,undef,,,,8x8:8x8,0.5")
    Execution(primitive='matmul', kernel='brg:avx2', ms=0.5)
    """
    mkl = _MKL.search(line)
    if mkl:
        name = mkl[1].lower()
        return Execution("matmul" if "gemm" in name else name, f"mkl:{name}", float(mkl[2]) * _IN_MS[mkl[3]])
    start = re.search(r"(?:one)?dnnl?_verbose,", line)
    fields = line[start.end() :].strip().split(",") if start else []
    if "exec" not in fields[:4]:
        return None
    rest = fields[fields.index("exec") + 1 :]
    try:
        ms = float(rest[-1])
    except (IndexError, ValueError):
        return None
    return Execution(rest[1], rest[2], ms) if len(rest) >= 7 else None


def is_verbose(line: str) -> bool:
    """Whether one of the libraries wrote it."""
    return "nnl_verbose," in line or "dnn_verbose," in line or "MKL_VERBOSE " in line


def products(lines: Iterable[str]) -> dict[str, tuple[float, int]]:
    """By kernel, the milliseconds in products and how many there were."""
    found: dict[str, tuple[float, int]] = {}
    for line in lines:
        done = parse_execution(line)
        if done is not None and done.primitive in PRODUCTS:
            ms, calls = found.get(done.kernel, (0.0, 0))
            found[done.kernel] = (ms + done.ms, calls + 1)
    return found


def shares_of(kernels: Mapping[str, float]) -> Shares:
    """How milliseconds by kernel are divided among instruction sets, as parts of one."""
    by_isa: dict[str, float] = {}
    for kernel, ms in kernels.items():
        by_isa[isa_of(kernel)] = by_isa.get(isa_of(kernel), 0.0) + ms
    total = sum(by_isa.values())
    parts = {isa: ms / total for isa, ms in by_isa.items()} if total else {}
    return Shares(total, dict(sorted(parts.items(), key=lambda part: -part[1])))


def shares(lines: Iterable[str]) -> Shares:
    """How the time in products is divided among instruction sets."""
    return shares_of({kernel: ms for kernel, (ms, _) in products(lines).items()})


def describe(found: Shares) -> str:
    """One line for people.

    >>> describe(Shares(10.0, {"amx": 0.9, "gemm": 0.1}))
    '90 % of the time in products on amx, 10 % on gemm'
    """
    if not found.by_isa:
        return "no product was executed by oneDNN or MKL"
    first, *others = (f"{part:.0%}".replace("%", " %") for part in found.by_isa.values())
    names = list(found.by_isa)
    rest = "".join(f", {part} on {name}" for part, name in zip(others, names[1:], strict=True))
    return f"{first} of the time in products on {names[0]}{rest}"


def parse_library(lines: Iterable[str]) -> Library:
    """Version, instruction set and threads from the lines that oneDNN begins with."""
    text = "\n".join(lines)
    version = re.search(r"info,(?:oneDNN|DNNL|Intel MKL-DNN) v([\d.]+)", text)
    isa = re.search(r"info,cpu,isa:(.+)", text)
    threads = re.search(r"nthr:(\d+)", text)
    return Library(
        version[1] if version else "", isa[1].strip() if isa else "", int(threads[1]) if threads else 0
    )

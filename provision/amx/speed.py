"""What a CPU should give: its peak in GFLOP/s, to hold measured figures against.

A peak is cores x GHz x operations a core does in a cycle, a multiplication and an addition counting as two.

- AMX bf16: 1024. TDPBF16PS does 16 x 16 x 32 multiplications and as many additions in 16 cycles (Intel,
  "Accelerate AI Workloads with Intel AMX": 2048 int8 or 1024 bf16 operations per cycle and core).
- AVX-512 fp32: 64 with two 512-bit FMA units (every Xeon with AMX, and Zen 5 in servers), 32 where they
  are 256 bits wide (Zen 4): http://numberworld.org/blogs/2024_8_7_zen5_avx512_teardown
- AVX512_BF16: VDPBF16PS does twice what an FMA does, 128 or 64.
- AVX2 fp32: 32, two 256-bit FMA units.
"""

from __future__ import annotations

from dataclasses import dataclass

from provision.amx.verdict import SPEED, Ladder

AMX_BF16 = 1024


@dataclass(frozen=True)
class Peak:
    """GFLOP/s of one core and of all, for each kind of number."""

    fp32_one: float
    bf16_one: float
    fp32_all: float
    bf16_all: float


def operations_a_cycle(flags: frozenset[str], vendor: str, family: int) -> tuple[int, int]:
    """Of one core, in fp32 and in bf16. Where bf16 has no instructions of its own, it is fp32's.

    >>> operations_a_cycle(frozenset({"avx512f", "avx512_bf16", "amx_bf16"}), "GenuineIntel", 6)
    (64, 1024)
    """
    if "avx512f" not in flags:
        fp32 = 32 if "avx2" in flags else 8
        return fp32, fp32
    fp32 = 32 if vendor == "AuthenticAMD" and family <= 25 else 64  # family 25 is Zen 3 and 4, 26 is Zen 5
    if "amx_bf16" in flags:
        return fp32, AMX_BF16
    return fp32, 2 * fp32 if "avx512_bf16" in flags else fp32


def peak(flags: frozenset[str], vendor: str, family: int, cores: int, ghz: float) -> Peak:
    """The most that so many cores at that clock can give.

    `ghz` as measured on one busy core; with all cores busy, and under AMX, clocks are lower.
    """
    fp32, bf16 = (each * ghz for each in operations_a_cycle(flags, vendor, family))
    return Peak(fp32, bf16, fp32 * cores, bf16 * cores)


def peak_of(ladder: Ladder) -> Peak | None:
    """The peak of a node that was measured; None for one that was not."""
    figures, node = ladder.figures(SPEED), ladder.node
    if not figures.get("ghz") or "bf16_all" not in figures:
        return None
    vendor, family = str(node.get("cpu_vendor")), int(node.get("cpu_family", 0))
    return peak(ladder.flags, vendor, family, int(figures["cores"]), float(figures["ghz"]))


def describe(ladder: Ladder) -> str | None:
    """What the node's cores could give and what one of them reaches; None for one that was not measured."""
    most, figures = peak_of(ladder), ladder.figures(SPEED)
    if most is None:
        return None
    bf16, fp32 = figures["bf16_one"] / most.bf16_one, figures["fp32_one"] / most.fp32_one
    return (
        f"{figures['cores']} cores at {figures['ghz']:.1f} GHz give {most.bf16_all:.0f} GFLOP/s in bf16 and "
        f"{most.fp32_all:.0f} in fp32 at most; one core reaches {bf16:.0%} and {fp32:.0%} of its part"
    )

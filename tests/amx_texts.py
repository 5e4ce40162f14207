"""Recorded texts of real machines for the AMX tests; each file names its origin in its first lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from provision.amx import ladder
from provision.amx.verdict import Ladder, parse_ladder

FOLDER = Path(__file__).parent / "recorded" / "amx"
XCR0 = 0x602E7  # of a node whose kernel has switched tiles on


def recorded(name: str) -> str:
    """A recording without the lines that tell its origin."""
    lines = (FOLDER / f"{name}.txt").read_text().splitlines()
    assert lines[0].startswith("# origin: "), name
    return "\n".join(line for line in lines if not line.startswith("#")) + "\n"


def climbed(
    *,
    registers: str = "firecracker-spr-6.1",
    flags: str = "m7i-lscpu",
    xcr0: int | None = XCR0,
    permission: tuple[str, str] = ("supported 0x60007\nrequested 0\n", ""),
    tiles: tuple[str, str] | None = None,
    library: dict[str, Any] | None = None,
    speed: dict[str, Any] | None = None,
    **node: Any,
) -> Ladder:
    """A ladder as ladder.py would give it on a machine that answers so: a healthy m7i unless told otherwise.

    `registers` and `flags` name recordings. Each rung is asked only if the one before it holds.
    """
    numbers, _ = ladder.parse_registers(recorded(registers) if registers else "")
    cpuinfo = {"flags": recorded(flags).strip() if flags else "", "model name": "Intel Xeon"}
    seen = {
        **ladder.describe_node(cpuinfo),
        "machine": "x86_64",
        "kernel": "6.8.0-1019-aws",
        "simulated": False,
    }
    seen |= {"cmdline": [], "environment": {}, **ladder.describe_silicon(numbers), **node}
    rungs = [ladder.flags_rung(cpuinfo, seen["machine"])]
    right = "\n".join(f"{name} {product(name).hex()}" for name in ("tdpbf16ps", "tdpbssd"))
    asked = (
        lambda: ladder.cpuid_rung(numbers, "SIGSEGV"),
        lambda: ladder.os_state_rung(numbers, xcr0),
        lambda: ladder.permission_rung(*permission),
        lambda: ladder.tile_rung(*(tiles or (f"requested 0\n{right}\n", ""))),
        lambda: ladder.rung(6, **library) if library else ladder.rung(6, None, "no stack on this node"),
        lambda: ladder.rung(7, **speed) if speed else ladder.rung(7, None, "not asked"),
    )
    if seen["machine"] == "x86_64":
        for ask in asked:
            rungs.append(ask())
            if rungs[-1]["ok"] is False or (len(rungs) == 2 and rungs[-1]["ok"] is None):
                break
    rungs += ladder.not_reached(len(rungs) + 1, 7)
    return parse_ladder(ladder.dumps({"ladder": 1, "node": seen, "rungs": rungs}))


def product(name: str) -> bytes:
    """The right result of a tile instruction, computed apart from ladder.py's own comparison."""
    import struct

    a, b, c = ladder.numbers(name)
    k = range(len(b))
    out = [c[i][j] + sum(a[i][x] * b[x][j] for x in k) for i in range(16) for j in range(16)]
    return struct.pack("<256f" if name == "tdpbf16ps" else "<256i", *out)

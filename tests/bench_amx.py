"""How much does the AMX ladder cost a cluster? `check-amx` beside raw ssh, on the same local nodes, in turn.

    .venv/bin/python -m tests.bench_amx [--nodes 64] [--laps 5] [--json figures.json]

A raw ssh round that only asks for `lscpu; uname -r` is the floor: new sessions, 64 at once, with OpenSSH's
own key exchange and with the one that paramiko uses. `check-amx` climbs to rung 6, but a node without AMX
ends earlier and its library is not asked; `--library` also times `--rung 6`, which starts torch everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench_control import (
    BIN,
    FLOOR,
    FLOOR_SAME_KEX,
    SAME_KEX,
    BenchError,
    Contestant,
    Timing,
    all_listed,
    all_looked,
    run,
    ssh_round,
    standing,
    take_laps,
)

FIVE, SIX, LIBRARY = "check-amx --rung 5", "check-amx", "check-amx --rung 6"
TARGET = 1.5  # of one raw ssh round, for rungs 1 to 5


def main() -> int:
    """Print the table; exit code 1 when a run did not do its job."""
    options = _options()
    try:
        timings = _measure(options.nodes, options.laps, library=options.library)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    _print(options.nodes, timings)
    if options.json:
        seconds = [{"name": each.name, "median": each.median, "laps": each.seconds} for each in timings]
        options.json.write_text(json.dumps({"nodes": options.nodes, "seconds": seconds}, indent=2) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--laps", type=int, default=5)
    parser.add_argument("--library", action="store_true", help="also start torch on every node, once")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args()


def _measure(nodes: int, laps: int, *, library: bool) -> list[Timing]:
    names = [f"node{number}" for number in range(1, nodes + 1)]
    plain = dict(os.environ)
    with standing("bench-amx", nodes) as state:
        ours = (str(BIN / "clusterctl"), "check-amx", "--name", state.name)
        contestants = [
            Contestant(FIVE, (*ours, "--rung", "5"), all_listed(names), plain),
            Contestant(SIX, ours, all_listed(names), plain),
            Contestant(FLOOR, ssh_round(state, names), all_looked(nodes), plain),
            Contestant(FLOOR_SAME_KEX, ssh_round(state, names, SAME_KEX), all_looked(nodes), plain),
        ]
        for contestant in contestants:  # warms every cache
            run(contestant)
        if library:
            contestants.append(Contestant(LIBRARY, (*ours, "--rung", "6"), all_listed(names), plain, laps=1))
        return take_laps("check-amx", contestants, laps)


def _print(nodes: int, timings: Sequence[Timing]) -> None:
    floor, same = (next(each.median for each in timings if each.name == n) for n in (FLOOR, FLOOR_SAME_KEX))
    print(f"\nthe AMX ladder on {nodes} nodes, wall seconds")
    print(f"  {'':<24}{'median':>8}{'min':>8}{'max':>8}{'laps':>6}{'/ ssh':>8}{'/ ssh, curve25519':>19}")
    for each in sorted(timings, key=lambda timing: timing.median):
        figures = (
            f"{each.median:>8.2f}{min(each.seconds):>8.2f}{max(each.seconds):>8.2f}{len(each.seconds):>6}"
        )
        print(f"  {each.name:<24}{figures}{each.median / floor:>7.2f}x{each.median / same:>18.2f}x")
    five = next(each.median for each in timings if each.name == FIVE)
    print(f"  rungs 1 to 5: {five / floor:.2f} raw ssh rounds, at most {TARGET} are wanted")


if __name__ == "__main__":
    sys.exit(main())

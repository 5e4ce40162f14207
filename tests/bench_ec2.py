"""How long `up`, `up` again and `down` take on the simulated EC2, and how many API calls each costs.

    .venv/bin/python -m tests.bench_ec2 [--laps 3]

The world answers in milliseconds and boots in 0.3 s (see --boot-delay): what is measured is clusterctl's own
part. On the real EC2 an instance takes tens of seconds to boot, and every call some 0.1 s.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.command import built_stack
from tests.ec2_command import Ec2Command
from tests.ec2sim import World

SIZES = (4, 16)


def lap(command: Ec2Command) -> dict[str, tuple[float, Counter[str]]]:
    """Seconds and calls of each command."""
    inventory = ("-i", str(command.inventory))
    actions = {"up": ("up", *inventory), "up again": ("up", *inventory), "down": ("down", "--yes")}
    done = {}
    for name, args in actions.items():
        command.world.reset_calls()
        began = time.monotonic()
        command.ok(*args)
        done[name] = (time.monotonic() - began, command.world.calls())
    return done


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--laps", type=int, default=3)
    laps = parser.parse_args().laps
    with World.start(tempfile.mkdtemp(), stacks=str(built_stack().parent)) as world:
        for size in SIZES:
            command = Ec2Command(f"bench{size}", Path(tempfile.mkdtemp()), world)
            command.write_inventory(nodes=size)
            all_laps = [lap(command) for _ in range(laps)]
            for action in all_laps[0]:
                seconds = [each[action][0] for each in all_laps]
                calls = all_laps[-1][action][1]
                print(
                    f"{size:3d} nodes  {action:9s} {statistics.median(seconds):5.2f} s "
                    f"({min(seconds):.2f} to {max(seconds):.2f})  {sum(calls.values())} calls: "
                    + ", ".join(f"{count} {name}" for name, count in sorted(calls.items())),
                    flush=True,
                )


if __name__ == "__main__":
    main()

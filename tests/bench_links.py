"""What the network costs: run_qa on two nodes of one core each against one, over links of several rates.

    make bench
    .venv/bin/python -m tests.bench_links --rates none 10gbit 2.5gbit 1gbit --laps 3

The whole way of a user: local nodes whose links the kernel limits (tc tbf), `clusterctl train`, mpirun
over ssh, MiniLM-L6, 12 questions of XQuAD a rank and step. Sides take turns and ratios are lap by lap: one
node, two nodes, and two nodes that send gradients as torch's DDP does (PLAIN_DDP). Efficiency is half of the
ratio to one node: by samples a second, and by CPU seconds, which other load on the machine changes less but
which do not see what is waited for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench_speed import BATCH, PLAIN_DDP, XQUAD, halves, samples_per_cpu_s
from tests.command import Command, built_stack

STEPS = 20
INVENTORY = """\
all:
  vars:
    clusterctl:
      provider: local
      nodes: 2
      {link}
"""


@dataclass(frozen=True)
class Speed:
    """Of one run; shares are of the time of all ranks."""

    samples_per_s: float
    samples_per_cpu_s: float
    all_reduce: float
    waiting: float


@dataclass(frozen=True)
class Side:
    """One way to train on the nodes of one cluster."""

    cluster: Command
    rate: str
    nodes: int
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        how = "plain DDP" if self.arguments else "ours"
        return f"{how}, {self.rate}" if self.nodes > 1 else "one node"


def bring_up(rates: Sequence[str], home: Path) -> list[Command]:
    """A cluster of two nodes for each rate."""
    made = []
    for index, rate in enumerate(rates):
        command = Command(f"links-{index}", home)
        inventory = home / f"{command.name}.yml"
        link = "" if rate == "none" else f"local: {{link_rate: {rate}}}"
        inventory.write_text(INVENTORY.format(link=link))
        made.append(command)
        command.ok("up", "-i", str(inventory))
    return made


def measure(side: Side, train: Path) -> Speed:
    size = ("--per_device_train_batch_size", str(BATCH), "--max_steps", str(STEPS))
    arguments = ("--do_train", "--train_file", str(train), *size, *side.arguments)
    ended = side.cluster(
        "train",
        "run_qa",
        "--json",
        "--nodes",
        str(side.nodes),
        "--ppn",
        "1",
        "--threads",
        "1",
        "--",
        *arguments,
    )
    assert ended.code == 0, ended.out + ended.err
    events = [json.loads(line) for line in ended.out.splitlines()]
    (result,) = [event for event in events if event["event"] == "result"]
    time = result["time"]
    return Speed(result["samples_per_s"], samples_per_cpu_s(events), time["all_reduce"], time["waiting"])


def spread(values: Sequence[float]) -> str:
    """
    >>> spread([0.9, 0.95, 1.0])
    '0.95 (0.90 to 1.00)'
    """
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def show(found: dict[str, list[Speed]]) -> None:
    print(
        "\n| side | samples/s | efficiency | by CPU seconds | all-reduce | waiting |"
        "\n|---|--:|--:|--:|--:|--:|"
    )
    alone = found["one node"]
    for name, runs in found.items():
        nodes = 1 if name == "one node" else 2
        pairs = list(zip(runs, alone, strict=True))
        wall = spread([mine.samples_per_s / other.samples_per_s / nodes for mine, other in pairs])
        cpu = spread([mine.samples_per_cpu_s / other.samples_per_cpu_s for mine, other in pairs])
        rate = statistics.median(run.samples_per_s for run in runs)
        shares = [
            statistics.median(shares)
            for shares in zip(*((r.all_reduce, r.waiting) for r in runs), strict=True)
        ]
        print(f"| {name} | {rate:.1f} | {wall} | {cpu} | {100 * shares[0]:.0f} % | {100 * shares[1]:.0f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--rates", nargs="+", default=["none", "10gbit", "2.5gbit", "1gbit"])
    parser.add_argument("--questions", type=Path, default=XQUAD)
    options = parser.parse_args()
    if not options.questions.is_file():
        raise SystemExit(f"{options.questions}: no such file; give --questions a file in SQuAD's form")
    built_stack()
    with tempfile.TemporaryDirectory() as name:
        train, _ = halves(options.questions, Path(name))
        clusters = bring_up(options.rates, Path(name))
        try:
            compare(clusters, options.rates, train, options.laps)
        finally:
            for cluster in clusters:
                cluster("down", "--yes")


def compare(clusters: Sequence[Command], rates: Sequence[str], train: Path, laps: int) -> None:
    both = list(zip(clusters, rates, strict=True))
    sides = [Side(clusters[0], rates[0], 1)]
    sides += [Side(cluster, rate, 2, parts) for cluster, rate in both for parts in ((), PLAIN_DDP)]
    found: dict[str, list[Speed]] = {side.name: [] for side in sides}
    for lap in range(laps):
        for side in sides if lap % 2 == 0 else sides[::-1]:
            one = measure(side, train)
            found[side.name].append(one)
            print(f"  lap {lap + 1}: {side.name}: {one.samples_per_s:.1f} samples/s", flush=True)
    show(found)


if __name__ == "__main__":
    main()

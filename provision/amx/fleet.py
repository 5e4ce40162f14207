"""Nodes beside each other: what differs between them, and which is slower than its equals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from provision.amx.verdict import SPEED, Ladder

SLOW = 0.85  # of the median of the nodes with the same CPU


def odd_ones(figures: Mapping[str, float], slow: float = SLOW) -> dict[str, float]:
    """Nodes that reach less than `slow` of the median, and which part of it they reach.

    With fewer than three nodes there is no saying which is the odd one.

    >>> odd_ones({"a": 100, "b": 99, "c": 60})
    {'c': 0.6060606060606061}
    """
    if len(figures) < 3:
        return {}
    median = statistics.median(figures.values())
    return {name: each / median for name, each in figures.items() if each < slow * median}


def slow_nodes(ladders: Mapping[str, Ladder]) -> list[str]:
    """A line for each node that is slower than the nodes with the same CPU, in what it is most so."""
    lines = []
    for model in dict.fromkeys(ladder.model for ladder in ladders.values()):
        equals = {name: ladder for name, ladder in ladders.items() if ladder.model == model}
        worst: dict[str, tuple[float, str]] = {}
        for figure in ("bf16_all", "fp32_all", "bf16_one", "fp32_one"):
            measured = {name: each.figures(SPEED).get(figure) for name, each in equals.items()}
            speeds = {name: float(each) for name, each in measured.items() if each is not None}
            for name, part in odd_ones(speeds).items():
                worst[name] = min(worst.get(name, (1.0, "")), (part, figure))
        for name, (part, figure) in worst.items():
            kind, where = figure.split("_")
            cores = "one core" if where == "one" else "all cores"
            lines.append(f"{name}: {kind} on {cores} is {part:.0%} of its equals' median; throttled or busy?")
    return lines


def differences(ladders: Mapping[str, Ladder]) -> list[str]:
    """A line for each thing in which nodes differ, the value that most have first."""
    seen = {
        "CPU": {name: ladder.model for name, ladder in ladders.items()},
        "microcode": {name: ladder.node.get("microcode", "") for name, ladder in ladders.items()},
        "kernel": {name: ladder.kernel for name, ladder in ladders.items()},
        "cores": {name: str(ladder.cores) for name, ladder in ladders.items()},
        "threads a core": {name: str(ladder.node.get("threads", 1)) for name, ladder in ladders.items()},
        "NUMA nodes": {name: _layout(ladder) for name, ladder in ladders.items()},
    }
    lines = [line for what, values in seen.items() if (line := _difference(what, values))]
    return lines + _flag_differences(ladders)


def _layout(ladder: Ladder) -> str:
    return "+".join(str(cpus) for cpus in ladder.node.get("numa", ()) if cpus) or "unknown"


def _difference(what: str, values: Mapping[str, str]) -> str | None:
    """
    >>> _difference("kernel", {"a": "6.8", "b": "6.8", "c": "5.15"})
    'kernel differs: 6.8 on 2 nodes, 5.15 on c'
    """
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    if len(groups) < 2:
        return None
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return f"{what} differs: " + ", ".join(
        f"{value or 'none'} on {_named(names)}" for value, names in ordered
    )


def _flag_differences(ladders: Mapping[str, Ladder]) -> list[str]:
    """Flags of lscpu that some nodes of one CPU lack."""
    flags = {name: ladder.flags for name, ladder in ladders.items()}
    everything: frozenset[str] = frozenset().union(*flags.values())
    lacking: dict[tuple[str, ...], list[str]] = {}
    for flag in sorted(everything):
        without = tuple(name for name, have in flags.items() if flag not in have)
        if without:
            lacking.setdefault(without, []).append(flag)
    if len({ladder.model for ladder in ladders.values()}) > 1:
        return []  # other CPUs have other flags; the CPU's line says it
    return [f"flags differ: {_named(names)} without {_few(missing)}" for names, missing in lacking.items()]


def _named(names: tuple[str, ...] | list[str], most: int = 3) -> str:
    return ", ".join(names) if len(names) <= 1 or len(names) < most else f"{len(names)} nodes"


def _few(words: list[str], most: int = 6) -> str:
    return " ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")

"""check-amx --ab: what the best instructions are worth in training, measured on every node."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from provision.amx import ab_script
from provision.amx.onednn import shares_of
from provision.errors import ClusterctlError, HostError
from provision.host import Host
from provision.model import Cluster
from provision.stacks import stack_of
from provision.step import run_on_hosts
from run.commands.common import open_hosts, print_json, print_table, standing_cluster

TURNS = 7
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Side:
    """One of the two: ONEDNN_MAX_CPU_ISA ("" where unset), ms by kernel, seconds a step of each turn."""

    cap: str
    kernels: Mapping[str, float]
    step_s: tuple[float, ...]

    @property
    def runs_on(self) -> str:
        """What most of the time in products was on."""
        return next(iter(shares_of(self.kernels).by_isa), "torch itself")

    @property
    def median_s(self) -> float:
        return statistics.median(self.step_s)


@dataclass(frozen=True)
class Comparison:
    """Both sides on one node. `best` is the fastest that oneDNN multiplied by where it was free to choose."""

    threads: int
    best: str
    as_it_is: Side
    capped: Side

    @property
    def ratio(self) -> float:
        """How many times longer a step takes when capped: the median over turns, each with its neighbour."""
        pairs = zip(self.as_it_is.step_s, self.capped.step_s, strict=True)
        return statistics.median(capped / free for free, capped in pairs)

    def to_json(self) -> dict[str, Any]:
        sides = {"as_it_is": self.as_it_is.runs_on, "capped": self.capped.runs_on}
        return {**asdict(self), "ratio": round(self.ratio, 3), "runs_on": sides}


def parse_comparison(text: str) -> Comparison:
    """From what ab.py printed. Raises ValueError with its last line when it did not come to its end."""
    lines = text.strip().splitlines()
    found = next((line for line in reversed(lines) if line.startswith('{"ab"')), None)
    if found is None:
        raise ValueError(lines[-1][:200] if lines else "nothing was printed")
    data = json.loads(found)
    free, capped = (
        Side(each["cap"], each["kernels"], tuple(each["step_s"]))
        for each in (data["as_it_is"], data["capped"])
    )
    return Comparison(data["threads"], data["best"], free, capped)


def compare(name: str | None, *, as_json: bool) -> int:
    """Returns the exit code: 0 when every node was measured, else 1."""
    _, cluster = standing_cluster(name)
    stack = stack_of(cluster).path
    with open_hosts(cluster) as hosts:
        seen = run_on_hosts(hosts, lambda host: _compare_on(host, stack))
    found = {name: each for name, each in seen.items() if isinstance(each, Comparison)}
    errors = {name: each for name, each in seen.items() if isinstance(each, ClusterctlError)}
    if as_json:
        told = [{"node": name, **each.to_json()} for name, each in found.items()]
        print_json([*told, *({"node": name, "error": str(each)} for name, each in errors.items())])
    else:
        _tell(cluster, found, errors)
    return 1 if errors else 0


def _compare_on(host: Host, stack: str) -> Comparison:
    # 1, 126, 127: no stack, or a Python that fails, which parse_comparison() tells.
    script = ab_script(TURNS, stack, host.node.core_share)
    text = host.run(script, expect=(0, 1, 126, 127), timeout_s=_LIMIT_S).output
    try:
        return parse_comparison(text)
    except ValueError as error:
        raise HostError(host.node.name, f"--ab: {error}") from None


def _tell(cluster: Cluster, found: Mapping[str, Comparison], errors: Mapping[str, ClusterctlError]) -> None:
    if found:
        headings = ("NODE", "THREADS", "AS IT IS", "STEP", "CAPPED", "RUNS ON", "STEP", "RATIO")
        print_table(headings, [_row(name, each) for name, each in found.items()])
        print(
            "CAPPED is ONEDNN_MAX_CPU_ISA. RATIO: how much longer a training step in bf16\n"
            f"takes with it, the median of {TURNS} turns that alternate with uncapped ones."
        )
    for best in dict.fromkeys(each.best for each in found.values()):
        names = ", ".join(name for name, each in found.items() if each.best == best)
        if best != "amx":
            print(f"{names}: AMX is not used there; this is what {best} is worth.")
    if found and any(node.core_share < 1 for node in cluster.nodes):
        print("These nodes share one machine's cores and were measured at once: a rough ratio.")
    for error in errors.values():
        print(error)


def _row(name: str, each: Comparison) -> tuple[str, ...]:
    free, capped = each.as_it_is, each.capped
    return (
        name,
        str(each.threads),
        free.runs_on,
        _seconds(free.median_s),
        capped.cap,
        capped.runs_on,
        _seconds(capped.median_s),
        f"{each.ratio:.2f}x",
    )


def _seconds(value: float) -> str:
    """
    >>> _seconds(0.0234), _seconds(1.234)
    ('23.4 ms', '1.23 s')
    """
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"

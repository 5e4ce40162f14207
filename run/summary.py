"""What came out of a run: events -> RunSummary, as lines for people and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from run.events import Event
from run.interruption import Interruption
from run.job import LaunchPlan
from run.proof import NodeProof, proof_lines, prove, was_asked

_TIMES = {
    "compute": "compute",
    "all_reduce": "all-reduce",
    "waiting": "waiting for the slowest rank",
    "data": "data",
}


@dataclass(frozen=True)
class RankSpeed:
    """How fast one rank trained, in samples a second."""

    rank: int
    node: str
    samples_per_s: float


@dataclass(frozen=True)
class RunSummary:
    """The outcome in numbers; None where the recipe did not report one. `problem` is None after a good end.

    `interruption` says more where nodes were about to end. `metrics` is the recipe's result event as it came.
    `amx_proof` is None without --prove-amx, and empty where nobody told. `backend` carried the collectives.
    """

    run_id: str
    nodes: tuple[str, ...]
    ranks: int
    threads: tuple[int, ...]
    duration_s: float
    problem: str | None = None
    interruption: Interruption | None = None
    dtype: str | None = None
    samples_per_s: float | None = None
    epoch_s: float | None = None
    exact_match: float | None = None
    f1: float | None = None
    speeds: tuple[RankSpeed, ...] = ()
    warnings: tuple[str, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    amx_proof: tuple[NodeProof, ...] | None = None
    backend: str | None = None

    @property
    def slowest(self) -> RankSpeed | None:
        return min(self.speeds, key=lambda speed: speed.samples_per_s, default=None)

    @property
    def fastest(self) -> RankSpeed | None:
        return max(self.speeds, key=lambda speed: speed.samples_per_s, default=None)

    def lines(self) -> tuple[str, ...]:
        """The summary for people, a few short lines."""
        lines = (self._shape(), self._speed(), self._spread(), self._time(), self._advice(), self._score())
        proof = () if self.amx_proof is None else proof_lines(self.amx_proof)
        return tuple(line for line in (*lines, *proof) if line)

    def to_json(self) -> dict[str, Any]:
        proof = None if self.amx_proof is None else [each.to_json() for each in self.amx_proof]
        return {**asdict(self), "amx_proof": proof}

    def _shape(self) -> str:
        threads = "/".join(str(count) for count in sorted(set(self.threads)))
        said = "".join(f", {each}" for each in (self.dtype, self.backend) if each)
        return (
            f"{_count(len(self.nodes), 'node')}, {_count(self.ranks, 'rank')} x {threads} threads{said}, "
            f"{self.duration_s:.0f} s"
        )

    def _speed(self) -> str:
        if self.samples_per_s is None:
            return ""
        epoch = f", {self.epoch_s:.1f} s an epoch" if self.epoch_s is not None else ""
        return f"{self.samples_per_s:.1f} samples/s over all ranks{epoch}"

    def _spread(self) -> str:
        slow, fast = self.slowest, self.fastest
        if slow is None or fast is None or len(self.speeds) == 1:
            return ""
        return (
            f"slowest rank {slow.rank} on {slow.node} {slow.samples_per_s:.2f}, "
            f"fastest rank {fast.rank} on {fast.node} {fast.samples_per_s:.2f} samples/s"
        )

    def _time(self) -> str:
        """Where the time went, as the recipe's `time` tells in shares of 1."""
        time = self.metrics.get("time")
        if not isinstance(time, Mapping):
            return ""
        found = {noun: _number(time.get(key)) or 0.0 for key, noun in _TIMES.items()}
        shares = ", ".join(f"{noun} {100 * share:.0f} %" for noun, share in found.items())
        peak = _number(time.get("peak_share"))
        return f"time: {shares}" + (f"; {100 * peak:.0f} % of the peak of these CPUs" if peak else "")

    def _advice(self) -> str:
        """What the recipe advises, with the node of a rank that the others wait for."""
        text, time = self.metrics.get("advice"), self.metrics.get("time")
        if not isinstance(text, str):
            return ""
        slowest = time.get("slowest") if isinstance(time, Mapping) else None
        nodes = [speed.node for speed in self.speeds if speed.rank == slowest]
        return f"advice: {text.replace('its node', nodes[0]) if nodes else text}"

    def _score(self) -> str:
        perplexity = self.metrics.get("perplexity")
        if isinstance(perplexity, int | float):
            return f"perplexity {perplexity:.2f}"
        if self.exact_match is None or self.f1 is None:
            return ""
        return f"EM {self.exact_match:.1f}, F1 {self.f1:.1f}"


def summarise(
    plan: LaunchPlan,
    events: Sequence[Event],
    duration_s: float,
    problem: str | None = None,
    interruption: Interruption | None = None,
) -> RunSummary:
    """The summary of a run from its events, whether it ended well or not."""
    result: Mapping[str, Any] = next((event.data for event in reversed(events) if event.name == "result"), {})
    return RunSummary(
        plan.run_id,
        plan.nodes,
        plan.world_size,
        tuple(place.threads for place in plan.ranks),
        round(duration_s, 1),
        problem,
        interruption,
        result.get("dtype"),
        _number(result.get("samples_per_s")),
        _number(result.get("epoch_s")),
        _number(result.get("exact_match")),
        _number(result.get("f1")),
        _speeds(plan, events),
        tuple(event.text for event in events if event.name == "warning"),
        dict(result),
        prove(plan, events) if was_asked(plan) else None,
        result.get("backend"),
    )


def _speeds(plan: LaunchPlan, events: Sequence[Event]) -> tuple[RankSpeed, ...]:
    nodes = {place.rank: place.node for place in plan.ranks}
    found = {
        event.rank: RankSpeed(event.rank, nodes[event.rank], float(event.data["samples_per_s"]))
        for event in events
        if event.name == "rank_summary" and event.rank in nodes and "samples_per_s" in event.data
    }
    return tuple(found[rank] for rank in sorted(found))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""--prove-amx: what multiplied in a few real steps of each node, as its ranks heard of oneDNN and MKL. Pure.

The libraries' lines are counted where they are heard (run/recipes/amx_proof.py); here they get a meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import provision.amx
from provision.amx.onednn import Shares, describe, shares_of
from run.events import Event
from run.job import LaunchPlan, TrainJob

STEPS = 3
PROOF_FILE = "amx-proof.json"
ENOUGH = 0.5  # of the time in products; with less of it on the best units, they are not what the run ran on
_VARIABLE = "CLUSTERCTL_PROVE_AMX"
_FOLDER = Path(provision.amx.__file__).parent
_UPLOADS = {f"recipe/{name}": _FOLDER / name for name in ("onednn.py", "capture.py")}
_MOST_LINES = 8


@dataclass(frozen=True)
class NodeProof:
    """What multiplied on one node, in all its ranks together.

    `units` are what its CPU has for bf16, the fastest first; `cap` is ONEDNN_MAX_CPU_ISA there; `kernels` has
    milliseconds and calls of each. A call is counted with its own time, on however many threads it ran.
    """

    node: str
    dtype: str
    units: tuple[str, ...]
    steps: int
    ranks: int
    onednn: str
    cap: str
    kernels: Mapping[str, tuple[float, int]]

    @property
    def shares(self) -> Shares:
        return shares_of({kernel: ms for kernel, (ms, _) in self.kernels.items()})

    @property
    def problem(self) -> str | None:
        """Why this is no bf16 run at full speed, and what to do; None when it is, or none was asked for."""
        if self.dtype != "bf16":
            return None
        if not self.units:
            return "bf16 was asked for, and this CPU has no units for it: train with --bf16 false"
        best = self.units[0]
        part = self.shares.by_isa.get(best, 0.0)
        if part >= ENOUGH:
            return None
        fix = f"unset ONEDNN_MAX_CPU_ISA={self.cap}" if self.cap else "`clusterctl check-amx` says why"
        did = f"{part:.0%} of the time in products was on it" if self.kernels else "no product was on it"
        return f"bf16 was asked for, the CPU has {best}, and {did}; {fix}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shares": self.shares.by_isa, "problem": self.problem}


def with_proof(job: TrainJob) -> TrainJob:
    """The job, asked to prove itself."""
    return replace(
        job,
        environment={**job.environment, _VARIABLE: str(STEPS)},
        uploads={**job.uploads, **_UPLOADS},
    )


def was_asked(plan: LaunchPlan) -> bool:
    return _UPLOADS.keys() <= plan.uploads.keys()


def prove(plan: LaunchPlan, events: Sequence[Event]) -> tuple[NodeProof, ...]:
    """A proof of each node that has told, in the order of the plan."""
    nodes = {place.rank: place.node for place in plan.ranks}
    found: dict[str, NodeProof] = {}
    for event in events:
        if event.name == "amx_proof" and event.rank in nodes:
            mine = _read(nodes[event.rank], event.data)
            found[mine.node] = _together(found[mine.node], mine) if mine.node in found else mine
    return tuple(found[node] for node in plan.nodes if node in found)


def _read(node: str, data: Mapping[str, Any]) -> NodeProof:
    kernels = {str(kernel): (float(ms), int(calls)) for kernel, (ms, calls) in data["kernels"].items()}
    return NodeProof(
        node, data["dtype"], tuple(data["units"]), data["steps"], 1, data["onednn"], data["cap"], kernels
    )


def _together(one: NodeProof, other: NodeProof) -> NodeProof:
    kernels = dict(one.kernels)
    for kernel, (ms, calls) in other.kernels.items():
        before = kernels.get(kernel, (0.0, 0))
        kernels[kernel] = (before[0] + ms, before[1] + calls)
    return replace(one, ranks=one.ranks + other.ranks, kernels=kernels)


def proof_lines(proofs: Sequence[NodeProof]) -> Iterator[str]:
    """For people: what each node ran on, the least on its best units first; then, loudly, what is wrong."""
    if not proofs:
        yield "--prove-amx: the script told nothing of what multiplied, so nothing is known"
        return
    ordered = sorted(proofs, key=_part_on_best)
    for proof in ordered[:_MOST_LINES]:
        yield f"{proof.node}: {describe(proof.shares)} ({proof.steps} steps in {proof.dtype})"
    if len(ordered) > _MOST_LINES:
        yield f"and {len(ordered) - _MOST_LINES} more nodes, none worse; all are in {PROOF_FILE}"
    for problem in dict.fromkeys(proof.problem for proof in proofs if proof.problem):
        names = ", ".join(proof.node for proof in proofs if proof.problem == problem)
        yield f"WARNING: {names}: {problem}"
    if all(proof.dtype == "fp32" and "amx" in proof.units for proof in proofs):
        yield "these nodes have AMX, and fp32 makes no use of it: train with --bf16 true"


def _part_on_best(proof: NodeProof) -> float:
    return proof.shares.by_isa.get(proof.units[0], 0.0) if proof.units else 0.0

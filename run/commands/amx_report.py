"""What check-amx tells: the table, a line for each distinct problem, what differs between nodes; or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.amx.fleet import differences, slow_nodes
from provision.amx.kernels import hint
from provision.amx.onednn import isa_of
from provision.amx.speed import describe
from provision.amx.verdict import FLAGS, LIBRARY, SPEED, TILE, Ladder, Problem, Rung
from provision.errors import ClusterctlError
from provision.model import Cluster
from run.commands.common import count, print_table

WIDTH = 80


@dataclass(frozen=True)
class Found:
    """What came back: ladders and their problems by node, and the nodes that gave no answer."""

    ladders: Mapping[str, Ladder]
    problems: Mapping[str, Problem]
    errors: Mapping[str, ClusterctlError]

    @property
    def exit_code(self) -> int:
        return 1 if self.errors or self.problems else 0

    def problem_lines(self) -> list[str]:
        """A line for each distinct problem, with the nodes that have it; then one for each silent node."""
        nodes: dict[Problem, list[str]] = {}
        for name, problem in self.problems.items():
            nodes.setdefault(problem, []).append(name)
        lines = [f"{_named(names)}: {_sentence(problem)}" for problem, names in nodes.items()]
        return [*lines, *map(str, self.errors.values())]


def print_found(cluster: Cluster, found: Found, last: int) -> None:
    if found.ladders:
        _print_ladders(found.ladders, last)
    print("\n".join(_summary(cluster, found, last)))


def _print_ladders(ladders: Mapping[str, Ladder], last: int) -> None:
    headings: tuple[str, ...] = (
        "NODE",
        "CPU",
        "FLAGS",
        "CPUID",
        "XCR0",
        "KERNEL",
        "PERMIT",
        "TILE",
        "LIBRARY",
    )
    rows = [_row(name, ladder) for name, ladder in ladders.items()]
    if last >= SPEED:
        headings = (*headings, "GFLOP/S")
        rows = [(*row, _gflops(ladder)) for row, ladder in zip(rows, ladders.values(), strict=True)]
    columns = list(zip(headings, *rows, strict=True))
    taken = sum(max(map(len, column)) + 2 for column in columns) - max(map(len, columns[1])) - 2
    room = max(8, WIDTH - taken)
    print_table(headings, [(row[0], _cut(row[1], room), *row[2:]) for row in rows])


def _row(name: str, ladder: Ladder) -> tuple[str, ...]:
    yes = {number: {True: "yes", False: "no", None: "-"}[ladder.rung(number).ok] for number in range(1, 6)}
    flags = "simulated" if ladder.simulated else yes[1]
    return (name, _cpu(ladder), flags, yes[2], yes[3], _kernel(ladder), yes[4], yes[5], _library(ladder))


def _cpu(ladder: Ladder) -> str:
    noise = ("(R)", "(TM)", "(simulated)", "Intel", "Processor", "CPU")
    words = ladder.model
    for each in noise:
        words = words.replace(each, " ")
    return " ".join(words.split())


def _cut(text: str, width: int) -> str:
    """
    >>> _cut("Xeon Platinum 8488C", 10)
    'Xeon Plat…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def _kernel(ladder: Ladder) -> str:
    known = hint(ladder.kernel)
    return f"{known.version} {'ok' if known.ok else 'old'}"


def _library(ladder: Ladder) -> str:
    if ladder.rung(LIBRARY).ok is None:
        return "-"
    kernel = str(ladder.figures(LIBRARY).get("kernel", ""))
    return isa_of(kernel) if ":" in kernel else "no"


def _gflops(ladder: Ladder) -> str:
    measured = ladder.figures(SPEED).get("bf16_all")
    return "-" if measured is None else f"{measured:.0f}"


def _summary(cluster: Cluster, found: Found, last: int) -> list[str]:
    """The lines after the table: problems first, then what differs, then what it means for training."""
    lines = found.problem_lines()
    lines += _good_news(found, last)
    lines += differences(found.ladders)
    if last >= SPEED:
        lines += _speed_lines(cluster, found.ladders)
    if found.problems and not cluster.require_amx:
        lines.append("require_amx is false for this cluster: training goes on without AMX.")
    return lines


def _sentence(problem: Problem) -> str:
    return f"rung {problem.rung}: {problem.what}. At fault: {problem.fault.value}. What to do: {problem.fix}"


def _good_news(found: Found, last: int) -> list[str]:
    proven = [name for name, ladder in found.ladders.items() if ladder.is_proven]
    lines = []
    if proven:
        lines.append(
            f"AMX executes on {count(len(proven), 'node')}: tiles were multiplied, the results right."
        )
    if last < TILE and len(found.problems) < len(found.ladders):
        lines.append(f"Only rungs 1 to {last} were asked; no tile instruction was executed.")
    unasked = [n for n in proven if last >= LIBRARY and found.ladders[n].rung(LIBRARY).ok is None]
    if unasked:
        lines.append(
            f"{_named(unasked)}: {found.ladders[unasked[0]].rung(LIBRARY).detail}; rung 6 was not asked"
        )
    return lines


def _speed_lines(cluster: Cluster, ladders: Mapping[str, Ladder]) -> list[str]:
    lines = ["GFLOP/S: bf16 products on all cores."]
    for model in dict.fromkeys(ladder.model for ladder in ladders.values()):
        said = (describe(ladder) for ladder in ladders.values() if ladder.model == model)
        lines += [f"{model}: {line}" for line in said if line][:1]
    if any(node.core_share < 1 for node in cluster.nodes):
        return [
            *lines,
            "These nodes share one machine's cores and were measured at once: no measure of a node.",
        ]
    return lines + slow_nodes(ladders)


def _named(names: Sequence[str], most: int = 4) -> str:
    """
    >>> _named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def to_json(found: Found) -> list[dict[str, object]]:
    """An entry a node: `amx` is true when proven, false with a problem, null when not asked far enough."""
    errors = [{"node": name, "amx": False, "problem": str(error)} for name, error in found.errors.items()]
    return [*(_node_json(name, found) for name in found.ladders), *errors]


def _node_json(name: str, found: Found) -> dict[str, object]:
    ladder, problem = found.ladders[name], found.problems.get(name)
    return {
        "node": name,
        "amx": False if problem else True if ladder.is_proven else None,
        "flags": [flag for flag in FLAGS if flag in ladder.flags],
        "kernel": ladder.kernel,
        "kernel_ok": hint(ladder.kernel).ok,
        "cpu": ladder.model,
        "simulated": ladder.simulated,
        "problem": problem.what if problem else None,
        "rung": problem.rung if problem else None,
        "fault": problem.fault.value if problem else None,
        "fix": problem.fix if problem else None,
        "rungs": [_rung_json(rung) for rung in ladder.rungs],
    }


def _rung_json(rung: Rung) -> dict[str, object]:
    seen = {"name": rung.name, "ok": rung.ok, "detail": rung.detail, "figures": rung.figures}
    return {"rung": rung.number, **seen}

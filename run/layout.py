"""A node's own topology -> its ranks, threads and CPU sets. Pure.

The rules, and why:

1. One rank per NUMA (or sub-NUMA) node: its memory is then local. Each node's own topology decides, so
   an uneven 43-43-42 stays uneven, and nodes of a cluster may differ.
2. Physical cores only, each by its first hardware thread that the session may use: a core's matrix units
   are shared by its hyperthreads.
3. Never a CPU outside the affinity mask, never more threads than the cgroup's CPU quota (rounded down,
   at least 1). A quota limits time and not places, so it lowers the threads and leaves the CPU set wide.
4. `core_share` says which part of the cores a node may count on (1/N where N nodes share a machine). It
   lowers the threads as a quota does: N nodes pinned to the same few CPUs would leave the others idle.
   Unlike a quota it is only a default: who asks for more ranks or threads there gets them.
5. A rank with 16 cores or more leaves one of them to gloo's threads (`comm_cores` overrides). Those
   threads inherit the rank's CPU set, so a core can only be kept free inside a rank's own set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from math import floor

from provision.errors import SettingsError
from provision.facts import Cpu, NodeFacts, Topology

COMM_CORE_FROM = 16
"""From this many cores on a rank spares one: below it, one core is more than 6 % of the arithmetic."""


@dataclass(frozen=True)
class LayoutSettings:
    """What the user may override; None means computed. Counts are per node, `comm_cores` per rank."""

    ppn: int | None = None
    threads: int | None = None
    comm_cores: int | None = None
    core_share: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RankLayout:
    """One rank on a node: the CPUs it is pinned to, its NUMA nodes, OpenMP threads, cores left to gloo."""

    local_rank: int
    cpus: tuple[int, ...]
    numa: tuple[int, ...]
    threads: int
    comm_cores: int = 0


@dataclass(frozen=True)
class NodeLayout:
    """The ranks of one node. `cores` are its usable physical cores, `budget` how many may be busy at once."""

    node: str
    ranks: tuple[RankLayout, ...]
    cores: int
    budget: int

    @property
    def ppn(self) -> int:
        return len(self.ranks)

    def describe(self) -> str:
        """One line for people.

        "node1: 2 ranks x 55 threads on CPUs 0-55 56-111 (NUMA 0 1), 1 of each rank's cores for gloo"
        """
        _, ranks, threads, cpus, numa, comm = self.row()
        plural = "rank" if ranks == "1" else "ranks"
        each = f"{threads} thread" if threads == "1" else f"{threads} threads"
        spare = "" if comm == "0" else f", {comm} of each rank's cores for gloo"
        limit = "" if self.budget == self.cores else f", limited to {self.budget} of {self.cores} cores"
        return f"{self.node}: {ranks} {plural} x {each} on CPUs {cpus} (NUMA {numa}){spare}{limit}"

    def row(self) -> tuple[str, str, str, str, str, str]:
        """Table row under HEADINGS; a column whose ranks differ shows each: "43/43/42"."""
        return (
            self.node,
            str(self.ppn),
            _each([str(rank.threads) for rank in self.ranks], "/"),
            " ".join(ranges(rank.cpus) for rank in self.ranks),
            " ".join(ranges(rank.numa) for rank in self.ranks),
            _each([str(rank.comm_cores) for rank in self.ranks], "/"),
        )


HEADINGS = ("node", "ranks", "threads", "cpus", "NUMA", "comm cores")


def lay_out_all(facts: Mapping[str, NodeFacts], settings: LayoutSettings) -> dict[str, NodeLayout]:
    """Each node's layout, by node name. Raises SettingsError as lay_out() does."""
    return {name: lay_out(name, known.topology, settings) for name, known in facts.items()}


def lay_out(node: str, topology: Topology, settings: LayoutSettings | None = None) -> NodeLayout:
    """The ranks of one node by the rules at the top of this file.

    Raises SettingsError when more ranks or threads are asked for than the node has cores.
    """
    settings = settings or LayoutSettings()
    domains = _domains(topology)
    cores = sum(len(domain) for domain in domains)
    if not cores:
        raise SettingsError(
            f"{node}: a session there may use none of its CPUs; check its cpuset and affinity"
        )
    limit = cores if topology.quota_cpus is None else max(1, min(cores, floor(topology.quota_cpus)))
    budget = max(1, min(limit, floor(cores * settings.core_share.get(node, 1.0))))
    ppn = settings.ppn if settings.ppn is not None else min(len(domains), budget)
    _check_counts(node, ppn, settings, cores, limit)
    groups = _split(domains, ppn)
    ranks = tuple(
        _rank(node, local_rank, group, settings, budget / cores) for local_rank, group in enumerate(groups)
    )
    return NodeLayout(node, ranks, cores, budget)


def worker_cores(layout: NodeLayout) -> tuple[NodeLayout, tuple[int, ...]]:
    """The layout with a core of each rank held out of its CPU set, and those cores, in the ranks' order.

    For communication threads that pin themselves, as oneCCL's workers do. A rank that computes on all of its
    cores keeps them: there the worker shares the last one.
    """
    ranks = tuple(_without_last(rank) if len(rank.cpus) > rank.threads else rank for rank in layout.ranks)
    return replace(layout, ranks=ranks), tuple(rank.cpus[-1] for rank in layout.ranks)


def _without_last(rank: RankLayout) -> RankLayout:
    return replace(rank, cpus=rank.cpus[:-1], comm_cores=max(0, rank.comm_cores - 1))


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers the way Linux writes them.

    >>> ranges((0, 1, 2, 5))
    '0-2,5'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _domains(topology: Topology) -> list[list[Cpu]]:
    """Usable cores by NUMA node, each core as the first of its hardware threads that may be used."""
    first: dict[int, Cpu] = {}
    for cpu in sorted(topology.cpus, key=lambda cpu: cpu.id):
        if cpu.id in topology.allowed:
            first.setdefault(cpu.core, cpu)
    by_numa: dict[int, list[Cpu]] = {}
    for cpu in first.values():
        by_numa.setdefault(cpu.numa, []).append(cpu)
    return [by_numa[numa] for numa in sorted(by_numa)]


def _check_counts(node: str, ppn: int, settings: LayoutSettings, cores: int, limit: int) -> None:
    has = f"it has {limit}" + (f" (of {cores}, by its CPU quota)" if limit < cores else "")
    threads = settings.threads
    if ppn < 1 or (threads is not None and threads < 1) or (settings.comm_cores or 0) < 0:
        raise SettingsError(f"{node}: --ppn and --threads count from 1")
    if ppn > limit:
        raise SettingsError(f"{node}: {ppn} ranks need {ppn} cores, {has}; lower --ppn")
    if threads is not None and ppn * threads > limit:
        raise SettingsError(
            f"{node}: {ppn} {'rank' if ppn == 1 else 'ranks'} x {threads} threads need {ppn * threads} "
            f"cores, {has}; lower --ppn or --threads"
        )


def _split(domains: list[list[Cpu]], ppn: int) -> list[list[Cpu]]:
    """Cores for each of `ppn` ranks: within NUMA nodes, or of whole ones, wherever the counts divide."""
    if ppn % len(domains) == 0:
        return [part for domain in domains for part in _even(domain, ppn // len(domains))]
    if len(domains) % ppn == 0:
        size = len(domains) // ppn
        return [list(chain(*domains[start : start + size])) for start in range(0, len(domains), size)]
    return _even(list(chain(*domains)), ppn)


def _even(cpus: list[Cpu], parts: int) -> list[list[Cpu]]:
    edges = [len(cpus) * index // parts for index in range(parts + 1)]
    return [cpus[start:end] for start, end in pairwise(edges)]


def _rank(
    node: str, local_rank: int, group: list[Cpu], settings: LayoutSettings, usable_part: float
) -> RankLayout:
    """One rank on the cores of `group`, `usable_part` of which may be busy."""
    cpus = tuple(cpu.id for cpu in group)
    computed = settings.threads is None
    usable = max(min(1, len(cpus)), floor(len(cpus) * usable_part + 1e-9)) if computed else len(cpus)
    comm = settings.comm_cores
    if comm is None:
        comm = 1 if computed and usable >= COMM_CORE_FROM else 0
    threads = settings.threads if settings.threads is not None else usable - comm
    if threads < 1 or threads + comm > usable:
        raise SettingsError(
            f"{node}: local rank {local_rank} has {usable} cores, too few for {max(threads, 1)} threads and "
            f"{comm} comm cores; lower --threads or --comm-cores"
        )
    return RankLayout(local_rank, cpus, tuple(sorted({cpu.numa for cpu in group})), threads, comm)


def _each(values: Sequence[str], separator: str) -> str:
    return values[0] if len(set(values)) == 1 else separator.join(values)

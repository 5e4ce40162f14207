"""From topologies of real kinds of nodes to ranks; the tables are compared whole."""

from __future__ import annotations

import pytest

from provision.errors import SettingsError
from provision.facts import Cpu, Topology
from run.layout import HEADINGS, LayoutSettings, NodeLayout, lay_out, ranges
from tests.golden import assert_golden


def topology(
    *cores_of_numa: int,
    threads_per_core: int = 1,
    allowed: frozenset[int] | None = None,
    quota_cpus: float | None = None,
) -> Topology:
    """NUMA nodes with that many cores; second hyperthreads are numbered after all first ones."""
    numa_of_core = [numa for numa, count in enumerate(cores_of_numa) for _ in range(count)]
    cores = len(numa_of_core)
    cpus = tuple(
        Cpu(thread * cores + core, core, 0, numa_of_core[core])
        for thread in range(threads_per_core)
        for core in range(cores)
    )
    return Topology(cpus, frozenset(cpu.id for cpu in cpus) if allowed is None else allowed, quota_cpus)


SPR = topology(56, 56, threads_per_core=2)
TINY = topology(1)

CASES = {
    "spr-2-sockets-hyperthreads": (SPR, LayoutSettings()),
    "emr-sub-numa-43-43-42": (topology(43, 43, 42, threads_per_core=2), LayoutSettings()),
    "snc4-2-sockets": (topology(*[14] * 8, threads_per_core=2), LayoutSettings()),
    "vm-8-one-thread-a-core": (topology(8), LayoutSettings()),
    "quota-of-12.5-cpus": (topology(56, 56, quota_cpus=12.5), LayoutSettings()),
    "quota-below-one-cpu": (topology(4, quota_cpus=0.5), LayoutSettings()),
    "affinity-4-to-11": (topology(8, 8, allowed=frozenset(range(4, 12))), LayoutSettings()),
    "affinity-second-threads": (
        topology(4, threads_per_core=2, allowed=frozenset({2, 3, 4, 5})),
        LayoutSettings(),
    ),
    "tiny-one-core": (TINY, LayoutSettings()),
    "two-cores": (topology(2), LayoutSettings()),
    "two-cores-shared-by-2": (topology(2), LayoutSettings(core_share={"two-cores-shared-by-2": 0.5})),
    "two-cores-shared-by-4": (topology(2), LayoutSettings(core_share={"two-cores-shared-by-4": 0.25})),
    "ppn-1-over-2-sockets": (SPR, LayoutSettings(ppn=1)),
    "ppn-4-over-2-sockets": (SPR, LayoutSettings(ppn=4)),
    "ppn-3-over-2-sockets": (SPR, LayoutSettings(ppn=3)),
    "threads-16": (SPR, LayoutSettings(ppn=4, threads=16)),
    "comm-cores-4": (SPR, LayoutSettings(comm_cores=4)),
    "comm-cores-0": (SPR, LayoutSettings(comm_cores=0)),
}


def table() -> str:
    layouts = [lay_out(name, known, settings) for name, (known, settings) in CASES.items()]
    rows = [HEADINGS, *(layout.row() for layout in layouts)]
    lines = [" | ".join(row) for row in rows] + [""] + [layout.describe() for layout in layouts]
    return "\n".join(lines) + "\n"


def test_layouts_of_known_nodes() -> None:
    assert_golden("layouts.txt", table())


@pytest.mark.parametrize("name", CASES)
def test_no_rank_leaves_the_affinity_mask_or_takes_two_threads_of_a_core(name: str) -> None:
    known, settings = CASES[name]
    layout = lay_out(name, known, settings)
    used = [cpu for rank in layout.ranks for cpu in rank.cpus]
    core_of = {cpu.id: cpu.core for cpu in known.cpus}
    assert set(used) <= known.allowed
    assert len({core_of[cpu] for cpu in used}) == len(used)


@pytest.mark.parametrize("name", CASES)
def test_threads_stay_within_the_budget(name: str) -> None:
    layout = lay_out(name, *CASES[name])
    assert sum(rank.threads + rank.comm_cores for rank in layout.ranks) <= layout.budget


def test_nodes_may_differ() -> None:
    small, large = lay_out("small", TINY), lay_out("large", SPR)
    assert (small.ppn, large.ppn) == (1, 2)


def fails(settings: LayoutSettings, known: Topology = TINY) -> str:
    with pytest.raises(SettingsError) as caught:
        lay_out("node2", known, settings)
    return str(caught.value)


def test_too_many_ranks_are_refused() -> None:
    assert fails(LayoutSettings(ppn=4)) == "node2: 4 ranks need 4 cores, it has 1; lower --ppn"


def test_too_many_threads_are_refused() -> None:
    said = fails(LayoutSettings(ppn=4, threads=8), topology(16))
    assert said == "node2: 4 ranks x 8 threads need 32 cores, it has 16; lower --ppn or --threads"


def test_a_quota_counts_against_threads() -> None:
    said = fails(LayoutSettings(threads=8), topology(16, quota_cpus=4.9))
    assert "need 8 cores, it has 4 (of 16, by its CPU quota)" in said


def test_a_quota_counts_for_all_ranks_together() -> None:
    layout = lay_out("n", topology(5, quota_cpus=4), LayoutSettings(ppn=2, threads=2))
    assert [(rank.threads, len(rank.cpus)) for rank in layout.ranks] == [(2, 2), (2, 3)]


def test_a_share_is_only_a_default() -> None:
    asked = LayoutSettings(ppn=2, threads=1, core_share={"n": 0.25})
    assert lay_out("n", topology(2), asked).ppn == 2


def test_threads_that_an_uneven_numa_node_lacks_are_refused() -> None:
    said = fails(LayoutSettings(threads=4), topology(6, 3))
    assert said.startswith("node2: local rank 1 has 3 cores, too few for 4 threads")


@pytest.mark.parametrize(
    "settings", [LayoutSettings(ppn=0), LayoutSettings(threads=0), LayoutSettings(comm_cores=-1)]
)
def test_counts_below_the_least_are_refused(settings: LayoutSettings) -> None:
    assert "count from 1" in fails(settings)


def test_comm_cores_need_a_core_left_to_compute() -> None:
    assert "too few for 1 threads and 1 comm cores" in fails(LayoutSettings(comm_cores=1))


def test_a_node_without_usable_cpus_is_refused() -> None:
    assert "none of its CPUs" in fails(LayoutSettings(), topology(2, allowed=frozenset()))


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 5), "0-2,5"), ((4, 3), "3-4")]
)
def test_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


def test_describe_counts_one_in_the_singular() -> None:
    assert NodeLayout.describe(lay_out("n1", TINY)) == "n1: 1 rank x 1 thread on CPUs 0 (NUMA 0)"

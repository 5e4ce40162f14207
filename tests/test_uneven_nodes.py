"""Nodes that are not alike: how many ranks run on each, with which CPUs and threads, as the ranks see it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import pytest

from tests.bare_metal import BareMetal, LabCommand, bare_metal, roots
from tests.local_nodes import needs_nodes

CORES = sorted(os.sched_getaffinity(0))
pytestmark = [
    *needs_nodes,
    pytest.mark.stack,
    pytest.mark.skipif(len(CORES) < 2, reason="nodes of different size need two cores"),
]
FIRST, SECOND = CORES[:2] if len(CORES) > 1 else (0, 0)

# The product starts OpenMP's threads. All of a process's threads count, so that none is outside the mask.
TELL = """
import os, socket, torch
product = torch.randn(700, 700) @ torch.randn(700, 700)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
def cpus(task): return ",".join(map(str, sorted(os.sched_getaffinity(int(task)))))
masks = {cpus(task) for task in os.listdir("/proc/self/task")}
print("told", *(os.environ[name] for name in names), socket.gethostname(), torch.get_num_threads(), *masks)
"""
Told = dict[int, tuple[str, ...]]


def tell(command: LabCommand, launcher: str, *options: str) -> Told:
    """Rank -> world size, local rank, ranks of its node, OMP_NUM_THREADS, node, threads in use, masks."""
    script = command.home / "project" / "tell.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(TELL)
    out = command.ok("train", str(script), "--launcher", launcher, *options)
    lines = re.findall(r"^\[(\d+)\] told (\d+) (.+)$", out, re.M)
    assert all(prefix == rank for prefix, rank, _ in lines)
    told = {int(rank): tuple(about.split()) for _, rank, about in lines}
    assert sorted(told) == list(range(len(lines)))
    return told


def of_rank(world: int, local: int, local_world: int, node: str, cpus: Sequence[int]) -> tuple[str, ...]:
    """What a rank tells that computes with a thread on each of these CPUs, and on no other."""
    threads, mask = str(len(cpus)), ",".join(map(str, cpus))
    return (str(world), str(local), str(local_world), threads, node, threads, mask)


def two_numa_nodes(bare: BareMetal, name: str) -> None:
    """The machine's kernel says from now on that its two cores are far from each other."""
    place = "/sys/devices/system/node"
    bare.root(name, f"mount -t tmpfs tmpfs {place}")
    for number, cpu in enumerate((FIRST, SECOND)):
        folder = f"{place}/node{number}"
        bare.root(name, f"mkdir {folder}; cd {folder}; echo {cpu} > cpulist; echo {1 << cpu:08x} > cpumap")


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_each_node_has_the_ranks_threads_and_cpus_that_it_is_made_for(lab, command, launcher):
    """m1 has two NUMA nodes of a core each, m2 one core, m3 two cores beside each other."""
    both = f"{FIRST},{SECOND}"
    bare = bare_metal(lab, "m1", "m2", "m3", cores=(both, str(SECOND), both))
    two_numa_nodes(bare, "m1")
    command.ok("up", "-i", roots(bare, command, "m1", "m2", "m3"))

    assert tell(command, launcher) == {
        0: of_rank(4, 0, 2, "m1", [FIRST]),
        1: of_rank(4, 1, 2, "m1", [SECOND]),
        2: of_rank(4, 0, 1, "m2", [SECOND]),
        3: of_rank(4, 0, 1, "m3", [FIRST, SECOND]),
    }
    refused = command("train", "run_qa", "--launcher", launcher, "--ppn", "2")
    assert (refused.code, refused.error_line) == (
        2, "clusterctl: m2: 2 ranks need 2 cores, it has 1; lower --ppn",
    )  # fmt: skip


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_two_ranks_on_each_of_two_nodes_and_as_many_on_one(lab, command, launcher):
    bare = bare_metal(lab, "m1", "m2")
    command.ok("up", "-i", roots(bare, command, "m1", "m2"))
    parts = [CORES[: len(CORES) // 2], CORES[len(CORES) // 2 :]]

    assert tell(command, launcher, "--ppn", "2") == {
        rank: of_rank(4, rank % 2, 2, f"m{rank // 2 + 1}", parts[rank % 2]) for rank in range(4)
    }
    if len(CORES) >= 4:
        told = tell(command, launcher, "--ppn", "4", "--nodes", "1", "--threads", "1")
        masks = [set(about[-1].split(",")) for about in told.values()]
        assert [about[:6] for about in told.values()] == [
            of_rank(4, rank, 4, "m1", CORES[:1])[:6] for rank in range(4)
        ]
        assert len(set.union(*masks)) == sum(map(len, masks)), "ranks share a core"
    else:
        refused = command("train", "run_qa", "--launcher", launcher, "--ppn", "4", "--nodes", "1")
        assert "m1: 4 ranks need 4 cores, it has" in refused.error_line

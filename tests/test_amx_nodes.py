"""check-amx on real nodes: this machine's CPU, a simulated one, how far it climbs, and what it prints."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Command
from tests.local_nodes import needs_nodes

pytestmark = [*needs_nodes, pytest.mark.stack]
HAS_AMX = " amx_tile" in Path("/proc/cpuinfo").read_text()
no_amx = pytest.mark.skipif(HAS_AMX, reason="this machine has AMX")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory, stack) -> Iterator[Command]:
    """Two nodes whose cpuinfo is a Sapphire Rapids', which must have AMX."""
    command = Command(f"amx-{time.time_ns() % 100000}", tmp_path_factory.mktemp("home"))
    inventory = command.home / "sim.yml"
    inventory.write_text(
        f"all: {{vars: {{clusterctl: {{name: {command.name}, nodes: 2, require_amx: true, "
        "local: {simulate_cpu: sapphire-rapids}}}}\n"
    )
    try:
        command.ok("up", "-i", str(inventory))
        yield command
    finally:
        command("down", "--yes")


def columns(out: str) -> dict[str, dict[str, str]]:
    """The table: node -> heading -> cell."""
    lines = out.splitlines()
    heading = next(line for line in lines if line.startswith("NODE "))
    names = heading.split()
    starts = [heading.index(name) for name in names]
    ends = [*starts[1:], None]
    rows = [line for line in lines if re.match(r"node\d+ ", line)]
    places = list(zip(names, starts, ends, strict=True))
    return {row.split()[0]: {name: row[start:end].strip() for name, start, end in places} for row in rows}


@no_amx
def test_every_node_is_told_the_truth_about_this_machine(cluster):
    ended = cluster("check-amx")
    table = columns(ended.out)

    assert ended.code == 1
    assert list(table) == ["node1", "node2", "node3"]
    for cells in table.values():
        assert [cells[name] for name in ("FLAGS", "CPUID", "XCR0", "PERMIT", "TILE", "LIBRARY")] == [
            "no", "no", "-", "-", "-", "-",
        ]  # fmt: skip
        assert cells["KERNEL"].endswith(("ok", "old"))
    assert all(len(line) <= 80 for line in ended.out.splitlines()[:4])


@no_amx
def test_one_line_for_all_nodes_with_the_same_problem(cluster):
    out = cluster("check-amx").out
    lines = [line for line in out.splitlines() if line.startswith("node1, node2, node3: ")]

    assert len(lines) == 1
    assert lines[0].startswith("node1, node2, node3: rung 1: no amx_tile, amx_bf16, amx_int8 in lscpu: ")
    assert "At fault: silicon. What to do: choose a machine with Sapphire Rapids" in lines[0]
    assert "training goes on without AMX" in out


@pytest.mark.skipif(not HAS_AMX, reason="no AMX here")
def test_every_node_proves_the_amx_of_this_machine(cluster):
    ended = cluster("check-amx")

    assert ended.code == 0
    assert "AMX executes on 3 nodes" in ended.out


def test_json_has_every_rung_of_every_node(cluster):
    found = cluster.json("check-amx")

    assert [entry["node"] for entry in found] == ["node1", "node2", "node3"]
    assert [entry["amx"] for entry in found] == [HAS_AMX] * 3
    assert [rung["rung"] for rung in found[0]["rungs"]] == [1, 2, 3, 4, 5, 6, 7]
    if not HAS_AMX:
        assert (found[0]["rung"], found[0]["fault"]) == (1, "silicon")


@no_amx
def test_simulated_flags_end_at_the_rung_that_asks_the_real_cpu(simulated):
    ended = simulated("check-amx")
    cells = columns(ended.out)["node2"]

    assert ended.code == 1
    assert (cells["FLAGS"], cells["CPUID"], cells["XCR0"], cells["TILE"]) == ("simulated", "no", "-", "-")
    assert "node1, node2: rung 2: the flags are not backed by the CPU: cpuinfo is simulated" in ended.out
    assert "At fault: cpuinfo. What to do: leave out local.simulate_cpu" in ended.out
    assert "training goes on" not in ended.out
    assert "differ" not in ended.out


@no_amx
def test_up_passes_simulated_nodes_and_says_that_they_are(simulated):
    recap = simulated.ok("up")

    assert "failed=0" in recap
    assert "changed=0" in recap


@no_amx
def test_train_passes_simulated_nodes_by_their_flags_as_up_does(simulated):
    assert "mpirun" in simulated.ok("train", "run_qa", "--dry-run")


def test_the_library_is_asked_of_any_node_when_asked_for(cluster):
    ended = cluster("check-amx", "--rung", "6")

    library = {cells["LIBRARY"] for cells in columns(ended.out).values()}
    assert len(library) == 1
    assert library <= {"amx", "avx512_bf16", "avx512", "avx2", "gemm", "no"}
    assert (library == {"amx"}) is HAS_AMX


def test_fewer_rungs_are_not_called_a_proof(cluster):
    found = json.loads(cluster("check-amx", "--rung", "1", "--json").out.splitlines()[-1])

    assert [each["ok"] for each in found[0]["rungs"]] == [HAS_AMX] + [None] * 6
    assert found[0]["amx"] is (None if HAS_AMX else False)


def test_speed_adds_a_column_and_says_what_it_is_worth(cluster):
    ended = cluster("check-amx", "--speed")

    assert all(float(cells["GFLOP/S"]) > 1 for cells in columns(ended.out).values())
    assert "GFLOP/s in bf16 and" in ended.out
    assert "no measure of a node" in ended.out


def test_a_node_that_cannot_be_reached_is_told_beside_the_others(own):
    own.ok("up", "--nodes", "2")
    own.on("node2", "sudo kill $(pgrep -o sshd)")

    ended = own("check-amx")

    assert ended.code == 1
    assert list(columns(ended.out)) == ["node1"]
    assert "node2: " in ended.out


def test_a_watch_goes_on_until_it_is_interrupted(cluster):
    process = cluster.start("check-amx", "--watch")
    assert process.stdout is not None
    laps = 0
    while laps < 2:
        line = process.stdout.readline()
        assert line, "it ended by itself"
        laps += "again every 5 s until Ctrl-C" in line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    # The signal may meet the second lap: then it is an interrupted command.
    assert process.returncode in ((0 if HAS_AMX else 1), 130)
    assert "Traceback" not in err


def test_a_rung_that_there_is_not_is_refused(cluster):
    assert cluster("check-amx", "--rung", "8").code == 2

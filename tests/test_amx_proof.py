"""train --prove-amx: what is heard of the libraries, what it means, and that a run without AMX is refused."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import provision.amx
from provision.amx.onednn import parse_execution, shares
from provision.errors import SettingsError
from provision.inventory import read_inventory
from run import recipes
from run.events import Event, parse_line
from run.job import TrainJob
from run.launchers.common import Ground
from run.launchers.mpirun import plan
from run.program import recipe_program
from run.proof import NodeProof, proof_lines, prove, was_asked, with_proof
from run.summary import summarise
from tests.local_nodes import needs_nodes
from tests.run_cases import RUN_ID, TWO_SOCKETS, facts, layouts
from tests.run_cases import cluster as cluster_of

CHECKS = Path(__file__).with_name("amx_checks.py")
FLAGS = Path("/proc/cpuinfo").read_text()
HAS_AMX, HAS_BF16 = " amx_tile" in FLAGS, " avx512_bf16" in FLAGS
AMX, AVX512, FP32 = "brg_matmul:avx10_1_512_amx", "brg_matmul:avx512_core_bf16", "mkl:sgemm_batch"
MKL_LINE = (
    "MKL_VERBOSE GEMM_BF16BF16F32(T,N,128,32,32,0x7ffc88b82610,0xe0cff40,32) "
    "39.91us CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:1"
)
PROOF = NodeProof(
    "node1", "bf16", ("amx", "avx512_bf16"), 3, 1, "3.12.0", "", {AMX: (9.0, 6), FP32: (1.0, 2)}
)


def launch_plan(*, asked: bool = True):
    """Two nodes of two ranks each."""
    job, known = TrainJob(recipe_program("run_qa"), RUN_ID), facts(TWO_SOCKETS, TWO_SOCKETS)
    return plan(
        Ground(with_proof(job) if asked else job, cluster_of(2), layouts(known), known, "/opt/stack", 29500)
    )


def told(rank: int, **changed: object) -> Event:
    about = {"dtype": "bf16", "units": ["amx"], "steps": 3, "onednn": "3.12.0", "cap": ""}
    return Event("amx_proof", rank, None, {**about, "kernels": {AMX: [4.0, 10], FP32: [1.0, 5]}, **changed})


# --- what it means -----------------------------------------------------------------------------


def test_a_line_of_mkl_is_understood():
    done = parse_execution(MKL_LINE)

    assert done is not None
    assert (done.primitive, done.kernel, done.isa) == ("matmul", "mkl:gemm_bf16bf16f32", "mkl_bf16")
    assert done.ms == pytest.approx(0.03991)
    assert (
        parse_execution("MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64") is None
    )
    assert parse_execution(MKL_LINE[:60]) is None
    assert shares([MKL_LINE.replace("GEMM_BF16BF16F32", "VSEXP")]).by_isa == {}


@pytest.mark.parametrize(("unit", "ms"), [("ns", 1e-6), ("us", 1e-3), ("ms", 1.0), ("s", 1000.0)])
def test_mkl_tells_times_in_four_units(unit, ms):
    done = parse_execution(MKL_LINE.replace("39.91us", f"2{unit}"))

    assert done is not None
    assert done.ms == pytest.approx(2 * ms)


def test_ranks_of_a_node_are_taken_together():
    first, second = prove(launch_plan(), [told(3), told(1, kernels={AMX: [2.0, 1]}), told(0), told(9)])

    assert (first.node, first.ranks, first.kernels) == ("node1", 2, {AMX: (6.0, 11), FP32: (1.0, 5)})
    assert (second.node, second.ranks) == ("node2", 1)
    assert first.shares.amx == pytest.approx(6 / 7)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, None),
        ({"dtype": "fp32", "kernels": {FP32: (9.0, 3)}}, None),
        ({"kernels": {AMX: (1.0, 1), AVX512: (9.0, 9)}}, "the CPU has amx, and 10% of the time"),
        ({"kernels": {AVX512: (9.0, 9)}}, "`clusterctl check-amx` says why"),
        (
            {"kernels": {AVX512: (9.0, 9)}, "cap": "AVX512_CORE_BF16"},
            "unset ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",
        ),
        ({"kernels": {}}, "the CPU has amx, and no product was on it"),
        ({"units": ("avx512_bf16",), "kernels": {AVX512: (9.0, 9)}}, None),
        (
            {"units": ("avx512_bf16",), "kernels": {"gemm:jit:bf16": (9.0, 9)}},
            "the CPU has avx512_bf16, and 0%",
        ),
        ({"units": ()}, "no units for it: train with --bf16 false"),
    ],
)
def test_a_fallback_is_told_with_what_to_do(changed, words):
    proof = replace(PROOF, **changed)

    assert (proof.problem is None) if words is None else (words in str(proof.problem))
    assert any(line.startswith("WARNING: node1: bf16 was asked for") for line in proof_lines([proof])) is (
        words is not None
    )


def test_every_node_is_told_the_worst_first_and_few_of_many():
    nodes = [replace(PROOF, node=f"node{n}", kernels={AMX: (10.0 - n, 1), FP32: (n, 1)}) for n in range(1, 5)]
    lines = list(proof_lines(nodes))

    assert lines[0] == "node4: 60 % of the time in products on amx, 40 % on mkl_fp32 (3 steps in bf16)"
    assert [line[:5] for line in lines] == ["node4", "node3", "node2", "node1"]
    many = list(proof_lines([replace(PROOF, node=f"node{number}") for number in range(64)]))
    assert len(many) == 9
    assert many[-1] == "and 56 more nodes, none worse; all are in amx-proof.json"


def test_fp32_on_nodes_with_amx_is_a_hint_and_no_warning():
    lines = list(proof_lines([replace(PROOF, dtype="fp32", kernels={FP32: (1.0, 1)})]))

    assert lines[-1] == "these nodes have AMX, and fp32 makes no use of it: train with --bf16 true"


def test_a_script_that_tells_nothing_is_not_called_proven():
    summary = summarise(launch_plan(), [Event("result", 0)], 1.0)

    assert summary.amx_proof == ()
    assert summary.lines()[-1].endswith("so nothing is known")


def test_without_the_option_nothing_is_asked_or_said():
    bare = launch_plan(asked=False)

    assert not was_asked(bare)
    assert "CLUSTERCTL_PROVE_AMX" not in bare.render()
    assert summarise(bare, [told(0)], 1.0).amx_proof is None


def test_what_the_recipe_needs_travels_with_the_run():
    asked = launch_plan()

    assert was_asked(asked)
    assert "-genv CLUSTERCTL_PROVE_AMX 3" in asked.render()
    assert all(source.is_file() for path, source in asked.uploads.items() if path.endswith(".py"))
    assert json.loads(json.dumps(summarise(asked, [told(0)], 1.0).to_json()))["amx_proof"][0]["shares"] == {
        "amx": 0.8,
        "mkl_fp32": 0.2,
    }


# --- what is heard, under a stack's Python -----------------------------------------------------


def check(stack, name: str, **environment: str) -> str:
    path = os.pathsep.join([str(Path(recipes.__file__).parent), str(Path(provision.amx.__file__).parent)])
    done = subprocess.run(
        [f"{stack}/bin/python", str(CHECKS), name],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.stack
def test_a_ranks_other_output_is_not_lost(stack):
    lines = check(stack, "nothing_is_lost").splitlines()

    assert sorted(lines) == sorted(
        ["before, unflushed", "by Python", "by the descriptor", "by the C library", "after"]
    )
    assert (lines[0], lines[-1]) == ("before, unflushed", "after")


@pytest.mark.stack
def test_a_few_steps_are_listened_to_and_no_others(stack):
    events = [parse_line(line) for line in check(stack, "steps").splitlines()]

    assert [event.name for event in events] == ["amx_proof"] * 5
    assert [event.data["steps"] for event in events] == [3, 3, 3, 2, 1]


@pytest.mark.stack
@pytest.mark.skipif(not HAS_BF16, reason="no avx512_bf16 here")
@pytest.mark.parametrize("cap", ["", "AVX512_CORE"])
def test_a_capped_library_is_found_out(stack, cap):
    (line,) = check(stack, "event", ONEDNN_MAX_CPU_ISA=cap or "ALL").splitlines()
    event = parse_line(line)
    (proof,) = prove(launch_plan(), [event])

    assert event.rank == 0
    if cap:
        assert proof.shares.by_isa.keys() & {"amx", "avx512_bf16"} == set()
        assert "unset ONEDNN_MAX_CPU_ISA=AVX512_CORE" in str(proof.problem)
    else:
        assert proof.shares.by_isa["amx" if HAS_AMX else "avx512_bf16"] > 0


# --- where AMX is required ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "required"),
    [
        ("{provider: ec2, ec2: {region: us-east-1}}", True),
        ("{provider: ec2, require_amx: false, ec2: {region: us-east-1}}", False),
        ("{provider: local}", False),
        ("{provider: local, require_amx: true}", True),
        ("{nodes: 2}", False),
    ],
)
def test_amx_is_required_on_ec2_unless_it_is_said_otherwise(tmp_path, settings, required):
    path = tmp_path / "lab.yml"
    path.write_text(f"all: {{vars: {{clusterctl: {settings}}}}}\n")

    assert read_inventory(path).require_amx is required


def test_machines_of_ones_own_need_not_have_it(tmp_path):
    path = tmp_path / "lab.yml"
    path.write_text("all: {hosts: {rack1: {ansible_host: 192.0.2.1}}}\n")

    assert read_inventory(path).require_amx is False
    assert read_inventory(None).require_amx is False


# --- real nodes --------------------------------------------------------------------------------

on_nodes = [*needs_nodes, pytest.mark.stack]
SHORT = ("--max_steps", "4", "--max_train_samples", "24", "--do_eval", "false")


def with_marks(test):
    for mark in on_nodes:
        test = mark(test)
    return test


@with_marks
@pytest.mark.skipif(not HAS_BF16, reason="no avx512_bf16 here")
def test_a_real_run_says_what_it_ran_on(cluster):
    units = "amx" if HAS_AMX else "avx512_bf16"

    out = cluster.ok("train", "run_qa", "--prove-amx", "--", "--bf16", "true", *SHORT)
    folder = max((cluster.home / "runs").iterdir(), key=lambda path: path.name)
    proofs = json.loads((folder / "amx-proof.json").read_text())

    assert [proof["node"] for proof in proofs] == ["node1", "node2", "node3"]
    for proof in proofs:
        assert proof["shares"][units] > 0.5
        assert (proof["dtype"], proof["steps"], proof["problem"]) == ("bf16", 3, None)
        assert f"{proof['node']}: " in out
    assert "% of the time in products on" in out
    assert "WARNING" not in out
    assert json.loads((folder / "summary.json").read_text())["amx_proof"] == proofs
    assert not any("nnl_verbose" in path.read_text() for path in (folder / "logs").iterdir())


@with_marks
@pytest.mark.skipif(HAS_AMX, reason="this machine has AMX")
def test_nodes_without_the_amx_they_must_have_are_refused_before_anything_is_brought_there(own):
    inventory = own.home / "strict.yml"
    settings = "all: {{vars: {{clusterctl: {{name: {}, nodes: 2, require_amx: {}}}}}}}\n"
    inventory.write_text(settings.format(own.name, "true"))
    assert own("up", "-i", str(inventory)).code == 1

    refused = own("train", "run_qa")

    assert refused.code != 0
    assert "node1, node2: rung 1: no amx_tile, amx_bf16, amx_int8 in lscpu" in refused.err
    assert "require_amx: false in the inventory, then `clusterctl up -i INVENTORY`" in refused.err
    assert own.on("node1", "ls ~/.clusterctl/runs 2>/dev/null || true") == ""

    inventory.write_text(settings.format(own.name, "false"))
    own.ok("up", "-i", str(inventory))
    assert "mpirun" in own.ok("train", "run_qa", "--dry-run")


def test_the_option_stands_before_the_recipes_arguments():
    from run.commands.launch import TrainOptions
    from run.commands.train import train

    with pytest.raises(SettingsError, match="--prove-amx is clusterctl's own option"):
        train(TrainOptions("run_qa", ("--prove-amx",)))

"""check-amx --ab: the pair that is compared, whose turn it is, the ratio; and once on real nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from provision.amx import onednn
from run.commands.amx_ab import TURNS, Comparison, Side, parse_comparison
from tests.local_nodes import needs_nodes

FLAGS = Path("/proc/cpuinfo").read_text()
AMX, AVX512, AVX2 = "brg_matmul:avx10_1_512_amx", "brg_matmul:avx512_core_bf16", "brg_matmul:avx2"


@pytest.fixture
def ab(monkeypatch):
    """ab.py, which on a node stands beside onednn.py."""
    monkeypatch.setitem(sys.modules, "onednn", onednn)
    from provision.amx import ab

    monkeypatch.setattr(ab, "cores_of_a_rank", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(ab.os, "sched_setaffinity", lambda pid, cpus: None)
    return ab


def run(ab, monkeypatch, capsys, kernels: dict[str, dict[str, float]], *, share: str = "0.5") -> tuple:
    """What main() printed, and what it asked of whom; trainees run on `kernels` by their cap."""
    asked: list[tuple] = []

    class Trainee:
        def __init__(self, cap: str, threads: int) -> None:
            self.cap, self.threads = cap, threads

        def ask(self, *words):
            asked.append((self.cap, self.threads, *words))
            return kernels[self.cap] if words[0] == "kernels" else 0.05 * words[1] * (3 if self.cap else 1)

    monkeypatch.setattr(ab, "Trainee", Trainee)
    monkeypatch.setattr(sys, "argv", ["-c", "3", share])
    ab.main()
    return json.loads(capsys.readouterr().out), asked


@pytest.mark.parametrize(
    ("free", "cap"),
    [
        ({AMX: 5.0, AVX512: 1.0}, "AVX512_CORE_BF16"),
        ({AMX: 1.0, AVX512: 5.0}, "AVX512_CORE_BF16"),
        ({AVX512: 5.0, "mkl:sgemm": 9.0}, "AVX512_CORE"),
        ({"brgemm:avx512_core_vnni": 5.0}, "AVX2"),
        ({AVX2: 5.0}, "SSE41"),
    ],
)
def test_the_cap_is_the_next_below_what_really_multiplied(ab, monkeypatch, capsys, free, cap):
    found, _ = run(ab, monkeypatch, capsys, {"": free, cap: {"gemm:jit:bf16": 1.0}})

    assert (found["as_it_is"]["cap"], found["capped"]["cap"]) == ("", cap)
    assert found["capped"]["kernels"] == {"gemm:jit:bf16": 1.0}


def test_the_two_take_turns_of_as_many_steps(ab, monkeypatch, capsys):
    cap = "AVX512_CORE_BF16"
    found, asked = run(ab, monkeypatch, capsys, {"": {AMX: 1.0}, cap: {AVX512: 1.0}})

    assert asked[-6:] == [("", 2, "steps", 4), (cap, 2, "steps", 4)] * 3
    assert found["as_it_is"]["step_s"] == pytest.approx([0.05] * 3)
    assert found["capped"]["step_s"] == pytest.approx([0.15] * 3)
    assert (found["threads"], found["steps"]) == (2, 4)


def test_a_node_has_a_core_at_least(ab, monkeypatch, capsys):
    found, _ = run(ab, monkeypatch, capsys, {"": {AVX2: 1.0}, "SSE41": {}}, share="0.01")

    assert found["threads"] == 1


def test_where_there_is_nothing_lower_it_says_what_products_ran_on(ab, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="products ran on gemm:acl"):
        run(ab, monkeypatch, capsys, {"": {"gemm:acl": 1.0}})


def test_the_environment_of_the_node_is_told(ab, monkeypatch, capsys):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    found, _ = run(ab, monkeypatch, capsys, {"": {AVX512: 1.0}, "AVX512_CORE": {}})

    assert found["as_it_is"]["cap"] == "AVX512_CORE_BF16"


def test_a_ratio_is_of_neighbours_so_that_a_slow_minute_does_not_count():
    calm, busy = (0.1, 0.1, 0.1, 0.1), (0.2, 0.2, 0.2, 0.2)
    one = Side("", {AMX: 9.0, "mkl:sgemm": 1.0}, calm[:2] + busy[:1])
    other = Side("AVX512_CORE_BF16", {AVX512: 9.0}, (0.3, 0.3, 0.6))

    assert Comparison(4, "amx", one, other).ratio == pytest.approx(3)
    assert (one.runs_on, other.runs_on) == ("amx", "avx512_bf16")
    assert Side("AVX2", {}, calm).runs_on == "torch itself"


def test_a_measurement_that_did_not_end_is_told_by_its_last_line():
    with pytest.raises(ValueError, match=r"^torch: no such file$"):
        parse_comparison("welcome\ntorch: no such file\n")
    with pytest.raises(ValueError, match="nothing was printed"):
        parse_comparison("")


def test_a_process_that_cannot_train_says_why(ab, monkeypatch):
    """Here there is no torch: the child ends, the parent says its last words."""
    with pytest.raises(SystemExit, match="No module named 'torch'"):
        ab.Trainee("", 1).ask("kernels")


@pytest.mark.nodes
@pytest.mark.stack
class TestOnNodes:
    pytestmark = needs_nodes

    @pytest.mark.skipif(" avx512_bf16" not in FLAGS, reason="no avx512_bf16 here")
    def test_every_node_shows_what_its_best_instructions_are_worth(self, own):
        own.ok("up", "--nodes", "2")
        found = own.json("check-amx", "--ab")
        best, cap = ("amx", "AVX512_CORE_BF16") if " amx_tile" in FLAGS else ("avx512_bf16", "AVX512_CORE")

        assert [each["node"] for each in found] == ["node1", "node2"]
        for each in found:
            assert (each["best"], each["capped"]["cap"]) == (best, cap)
            assert each["runs_on"]["as_it_is"] == best
            assert each["runs_on"]["capped"] != best
            assert len(each["as_it_is"]["step_s"]) == len(each["capped"]["step_s"]) == TURNS
            assert each["ratio"] > 1

    def test_it_is_a_measurement_of_its_own(self, cluster):
        ended = cluster("check-amx", "--ab", "--speed")

        assert ended.code != 0
        assert "--ab is a measurement of its own" in ended.error_line

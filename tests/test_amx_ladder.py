"""The ladder climbed: on this machine, as a script of its own, and on what other machines answered."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import provision.amx
from playbooks.amx import TileMultiplied
from provision.amx import ladder, ladder_script
from provision.amx.verdict import judge, parse_ladder
from provision.step import survey
from tests.amx_texts import XCR0, climbed, recorded
from tests.shell_host import ShellHost

FOLDER = Path(provision.amx.__file__).parent
ON_X86 = os.uname().machine == "x86_64"
HAS_AMX = " amx_tile" in Path("/proc/cpuinfo").read_text()
no_amx = pytest.mark.skipif(HAS_AMX or not ON_X86, reason="this machine is another one")


def run_alone(*arguments: str, **environment: str):
    """ladder.py by the system's own Python, as on a node."""
    argv = ["/usr/bin/python3", "-IS", str(FOLDER / "ladder.py"), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=os.environ | environment)
    assert (done.returncode, done.stderr) == (0, "")
    return parse_ladder(done.stdout)


@no_amx
def test_a_machine_without_amx_is_told_the_truth_rung_by_rung():
    found = run_alone()

    assert [rung.ok for rung in found.rungs] == [False, False, None, None, None, None, None]
    assert found.rung(1).detail == "no amx_tile, amx_bf16, amx_int8 in lscpu"
    assert found.rung(2).detail == "CPUID has no amx_tile, amx_bf16, amx_int8"
    assert not found.is_proven
    assert str(judge(found)).startswith("no amx_tile, amx_bf16, amx_int8 in lscpu: ")


@pytest.mark.skipif(not HAS_AMX, reason="no AMX here")
def test_a_machine_with_amx_proves_it():
    assert [rung.ok for rung in run_alone().rungs[:5]] == [True] * 5


@no_amx
def test_flags_that_the_cpu_does_not_have_end_at_the_second_rung(tmp_path):
    """cpuinfo of a Sapphire Rapids, CPUID of this CPU: nothing of AMX is executed."""
    text = recorded("graniterapids-cpuinfo")
    rungs = [ladder.flags_rung(ladder.first_cpu(text), "x86_64"), *ladder.climb_x86(5, {})]

    assert [rung["ok"] for rung in rungs] == [True, False]


def test_the_ladder_speaks_python_3_8_and_imports_nothing_that_costs():
    tree = ast.parse((FOLDER / "ladder.py").read_text(), feature_version=(3, 8))
    library = ast.parse((FOLDER / "library.py").read_text(), feature_version=(3, 8))
    top = [node for node in [*tree.body, *library.body] if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top for alias in node.names}

    assert names <= {"os", "sys", "time", "annotations"}


def test_the_script_comes_whole_through_a_shell():
    text = ShellHost().run(ladder_script(2)).stdout

    assert text.count("\n") == 1
    assert len(parse_ladder(text).rungs) == 7


def test_what_the_ladder_prints_is_json_whatever_a_machine_calls_itself():
    value = {"a": ['quote " \\', "é\t", None, True, False, 1, 0, 2.5, {}, ()], "b": {"c": -1}}

    assert json.loads(ladder.dumps(value)) == json.loads(json.dumps(value))


def test_the_step_of_the_amx_playbook_asks_this_machine():
    step = TileMultiplied()

    (answer,) = survey(ShellHost(), [step])

    drift = step.drift(answer)
    assert (drift is None) == HAS_AMX
    if not HAS_AMX:
        assert "choose a machine with Sapphire Rapids or newer" in drift


def test_the_step_of_the_amx_playbook_passes_where_a_tile_was_multiplied():
    rungs = [ladder.rung(number, True, "") for number in range(1, 6)] + ladder.not_reached(6, 7)
    node = {"machine": "x86_64", "kernel": "6.8", "model": "Xeon"}
    text = "Welcome!\n" + ladder.dumps({"ladder": 1, "node": node, "rungs": rungs}) + "\n"

    assert TileMultiplied().drift(text) is None


def test_the_step_of_the_amx_playbook_tells_what_came_instead_of_an_answer():
    drift = TileMultiplied().drift("sh: 1: /usr/bin/python3: not found")

    assert drift == "no AMX ladder came back: sh: 1: /usr/bin/python3: not found"


@pytest.mark.stack
def test_the_stack_is_asked_what_it_multiplies_by(stack):
    python = str(stack / "bin" / "python")

    rung = run_alone("--rung", "6", "--beyond", "--stack", python).rung(6)

    assert rung.ok is HAS_AMX
    assert rung.detail.startswith("torch 2.")
    assert ":" in rung.figures["kernel"]


@pytest.mark.stack
@no_amx
def test_a_cap_in_the_environment_changes_what_the_stack_multiplies_by(stack):
    """ONEDNN_MAX_CPU_ISA is the switch between with and without: it must reach the library."""
    python = str(stack / "bin" / "python")

    free = run_alone("--rung", "6", "--beyond", "--stack", python)
    capped = run_alone("--rung", "6", "--beyond", "--stack", python, ONEDNN_MAX_CPU_ISA="AVX2")

    assert free.node["environment"] == {}
    assert capped.node["environment"] == {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    if "avx512_bf16" in free.flags:
        assert capped.figures(6)["kernel"] != free.figures(6)["kernel"]


@pytest.mark.stack
def test_speed_is_measured_on_one_core_and_on_all(stack):
    python = str(stack / "bin" / "python")

    figures = run_alone("--rung", "7", "--beyond", "--stack", python).figures(7)

    assert {"fp32_one", "bf16_one", "fp32_all", "bf16_all", "cores", "ghz"} <= set(figures)
    assert all(figures[name] > 1 for name in ("fp32_one", "bf16_one", "fp32_all", "bf16_all"))


def test_a_stack_that_does_not_work_is_told_with_its_last_line(tmp_path):
    (broken,) = ladder.library_rungs(6, sys.executable, "import sys; sys.exit('no libgomp')")

    assert broken["ok"] is False
    assert broken["detail"] == "torch does not work: no libgomp, exit code 1"
    assert ladder.library_rungs(6, str(tmp_path / "none"), "")[0]["ok"] is None


def test_a_stack_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(ladder, "LIBRARY_LIMIT_S", 0.5)
    hangs = "import time; print('@@torch 2', flush=True); time.sleep(60)"
    began = time.monotonic()

    (late,) = ladder.library_rungs(6, sys.executable, hangs)

    assert time.monotonic() - began < 5
    assert late["ok"] is False
    assert late["detail"].startswith("torch does not work: no end after")


def test_five_rungs_cost_a_node_little():
    """Processor time, the best of some: others work on this machine too."""

    def cost_s(argv):
        before = os.times()
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    def best(argv):
        return min(cost_s(argv) for _ in range(7))

    climbing = best(["sh", "-c", ladder_script()])

    assert climbing <= 0.05
    assert climbing - best(["/usr/bin/python3", "-IS", "-c", ""]) <= 0.03


# What other machines answered.


def test_a_sapphire_rapids_guest_passes_cpuid():
    rung = climbed().rung(2)

    assert rung.ok
    assert rung.detail == "8 tiles of 16 rows of 64 bytes"
    assert rung.figures["palettes"] == 1
    assert rung.figures["tmul_k"] == 16
    assert rung.figures["xsave_offers_tiles"]


def test_all_five_rungs_of_a_healthy_node_hold():
    found = climbed()

    assert [rung.ok for rung in found.rungs] == [True] * 5 + [None] * 2
    assert found.is_proven


def test_silicon_is_described_by_its_own_registers():
    assert {
        name: climbed().node[name] for name in ("cpu_vendor", "cpu_family", "cpu_model", "hypervisor")
    } == {
        "cpu_vendor": "GenuineIntel",
        "cpu_family": 6,
        "cpu_model": 143,
        "hypervisor": "KVMKVMKVM",
    }


def test_a_granite_rapids_cpuinfo_has_the_flags():
    fields = ladder.first_cpu(recorded("graniterapids-cpuinfo"))

    assert ladder.flags_rung(fields, "x86_64")["ok"]
    assert (fields["model name"], fields["microcode"]) == ("Intel(R) Xeon(R) 6972P", "0x1000380")


def test_an_arm_node_is_told_that_it_is_no_x86(monkeypatch):
    class Graviton:
        machine, release = "aarch64", "6.1.0"

    text = recorded("graviton2-cpuinfo")
    monkeypatch.setattr(ladder, "read", lambda path, most=0: text if path == "/proc/cpuinfo" else "")
    monkeypatch.setattr(os, "uname", Graviton)

    document = ladder.climb(5)

    assert [each["ok"] for each in document["rungs"]] == [False] + [None] * 6
    assert document["rungs"][0]["detail"] == "aarch64 is not x86; AMX is Intel's"
    assert "asimddp" in document["node"]["flags"]


@pytest.mark.parametrize(
    ("xcr0", "ok"), [(XCR0, True), (0x2E7, False), (0x202E7, False), (0x402E7, False), (None, False)]
)
def test_the_kernel_has_to_switch_on_both_parts_of_the_tile_state(xcr0, ok):
    numbers, _ = ladder.parse_registers(recorded("firecracker-spr-6.1"))

    assert ladder.os_state_rung(numbers, xcr0)["ok"] is ok


def test_a_cpu_is_never_asked_for_a_leaf_that_it_has_not(monkeypatch):
    """Above its highest leaf an Intel CPU answers with the highest: 1D would look like a palette."""
    asked = []

    def old_cpu(leaf, subleaf, out):
        import ctypes

        asked.append(leaf)
        numbers = {0: (0x16,), 1: (0, 0, 0), 7: (0,)}.get(leaf, (0xFFFF,))
        for index, value in enumerate(numbers):
            ctypes.c_uint32.from_address(out + 4 * index).value = value

    monkeypatch.setattr(ladder, "load", lambda *_: old_cpu)
    ladder.ask_cpu(lambda line: None)

    assert 0x1D not in asked
    assert 0xD in asked

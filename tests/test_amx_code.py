"""The ladder's machine code: byte by byte against objdump, executed here, and its tiles on emulated ones."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from provision.amx import ladder
from tests.amx_texts import product

TILES = ("tdpbf16ps", "tdpbssd")
needs_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86 machine code")
has_amx = " amx_tile" in Path("/proc/cpuinfo").read_text()


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs binutils")
@pytest.mark.parametrize("name", ladder.CODE)
def test_the_bytes_are_the_assembly_beside_them(name, tmp_path):
    code = tmp_path / name
    code.write_bytes(bytes.fromhex("".join(each for each, _ in ladder.CODE[name])))
    argv = ["objdump", "-D", "-b", "binary", "-mi386:x86-64", "-Mintel", "--insn-width=16", str(code)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    lines = re.findall(r"^ +[0-9a-f]+:\t([0-9a-f ]+?) *\t(.+)$", shown, re.MULTILINE)
    found = [(code.replace(" ", ""), " ".join(text.split())) for code, text in lines]
    assert found == list(ladder.CODE[name])


@needs_x86
def test_cpuid_says_what_the_kernel_says_of_this_cpu():
    text, ended = ladder.in_child(ladder.ask_cpu)
    registers, xcr0 = ladder.parse_registers(text)
    silicon = ladder.describe_silicon(registers)
    cpuinfo = ladder.first_cpu(ladder.read("/proc/cpuinfo"))

    assert ended == ""
    assert silicon["cpu_vendor"] == cpuinfo["vendor_id"]
    assert (silicon["cpu_family"], silicon["cpu_model"]) == (
        int(cpuinfo["cpu family"]),
        int(cpuinfo["model"]),
    )
    assert silicon["cpu_brand"] == cpuinfo["model name"]
    assert bool(silicon["hypervisor"]) == ("hypervisor" in cpuinfo["flags"].split())
    assert xcr0 is not None
    assert (xcr0 & 6 == 6) == ("avx" in cpuinfo["flags"].split())


@needs_x86
def test_the_clock_is_one_that_a_cpu_can_have():
    text, _ = ladder.in_child(ladder.ask_clock)

    assert 0.3 < float(text) < 7


@needs_x86
@pytest.mark.skipif(has_amx, reason="tiles work here")
@pytest.mark.parametrize("name", TILES)
def test_a_tile_instruction_without_tiles_is_an_answer_not_a_crash(name):
    def work(write):
        faulthandler.disable()
        write(ladder.multiply(name).hex())

    assert ladder.in_child(work) == ("", "SIGILL")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory) -> str:
    if shutil.which("gcc") is None or os.uname().machine != "x86_64" or has_amx:
        pytest.skip("needs gcc and an x86 CPU without tiles")
    library = tmp_path_factory.mktemp("emulator") / "amx.so"
    source = Path(__file__).parent / "amx_emulator.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def multiplied(emulator: str, name: str, *, wrong: int) -> tuple[str, str]:
    def work(write):
        tiles = ctypes.CDLL(emulator)
        tiles.install(wrong)
        write(f"{name} {ladder.multiply(name).hex()}")
        write(f"configured {tiles.is_configured()}")

    return ladder.in_child(work)


@pytest.mark.parametrize("name", TILES)
def test_the_tile_code_multiplies_right_where_tiles_are_emulated(emulator, name):
    text, ended = multiplied(emulator, name, wrong=0)

    assert ended == ""
    assert text.splitlines() == [f"{name} {product(name).hex()}", "configured 0"]


@pytest.mark.parametrize("name", TILES)
def test_a_unit_that_computes_wrong_is_found(emulator, name):
    text, _ = multiplied(emulator, name, wrong=1)

    assert ladder.count_wrong(name, bytes.fromhex(text.split()[1])) == 1


@pytest.mark.parametrize("name", TILES)
def test_the_numbers_tell_every_exchange_of_indices(name):
    """Rows and columns all differ, and c is not zero: else a wrong layout could still be right."""
    a, b, c = ladder.numbers(name)

    for matrix in (a, c, list(zip(*c, strict=True))):
        assert len({tuple(row) for row in matrix}) == 16
    assert len(set(zip(*b, strict=True))) == 13  # the numbers of b repeat after 13 columns
    assert min(map(min, a)) < 0 < max(map(max, a))


def test_a_child_that_never_ends_is_ended():
    def work(write):
        write("so far")
        time.sleep(60)

    began = time.monotonic()
    text, ended = ladder.in_child(work, limit_s=0.3)

    assert (text, ended) == ("so far\n", "no end after 0 s")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("act", "answer"),
    [
        (lambda: os.kill(os.getpid(), 11), ("", "SIGSEGV")),
        (lambda: os.kill(os.getpid(), 31), ("", "SIGSYS")),
        (lambda: os._exit(7), ("", "exit code 7")),
        (lambda: [][0], ("IndexError: list index out of range\n", "exit code 3")),
        (lambda: ctypes.string_at(0), ("", "SIGSEGV")),
    ],
    ids=["SIGSEGV", "SIGSYS", "exit code", "exception", "null pointer"],
)
def test_how_a_child_ended_is_told(act, answer):
    def work(write):
        faulthandler.disable()  # pytest's would print a traceback for each
        act()

    assert ladder.in_child(work) == answer


def test_children_leave_nothing_behind():
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        ladder.in_child(lambda write: write("x" * 100_000))

    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)

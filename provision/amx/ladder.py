"""Climb the AMX ladder on this machine: from what lscpu says to a tile multiplication that is right.

Runs alone, on any node: Python 3.8 or newer, standard library only. Prints one JSON document: what the node
is, and for each rung whether it holds (true, false, or null: not asked), a line of detail, and figures.

    python3 ladder.py [--rung N] [--beyond] [--stack PYTHON --library SOURCE]

Rungs 1 to 5 need nothing else and cost one start of Python. Rungs 6 and 7 (what the library chooses, how
fast it is) run the source of library.py with the stack's own Python. The ladder stops at the first rung that
does not hold, since the next ones would only repeat it; `--beyond` asks 6 and 7 all the same.

CPUID, XGETBV and the tile instructions are machine code (see CODE) in a page of a child process: an illegal
instruction ends the child, which is an answer. No child is waited for longer than its limit.

Imports are few and inside functions, because 64 nodes may share two cores: json, signal and subprocess cost
a node more than the five rungs.
"""

# Importing pathlib costs a node 5 ms; Python 3.8 has neither pairwise nor zip's strict.
# ruff: noqa: PTH110, PTH118, PTH120, PTH208, RUF007, B905

from __future__ import annotations

import os
import sys

# What mypy takes for the real one; importing typing costs a node 5 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

NAMES = ("flags", "cpuid", "os state", "permission", "tile", "library", "speed")
FLAGS = ("amx_tile", "amx_bf16", "amx_int8")
CHILD_LIMIT_S = 5.0
LIBRARY_LIMIT_S = 180.0  # importing torch from a cold disk, on cores that other nodes share

# Each function as (machine code, assembly). System V calling convention: arguments in rdi, rsi, rdx, rcx.
# tests/test_amx_code.py compares both columns with what objdump disassembles.
_TILES = (
    ("41b840000000", "mov r8d,0x40"),  # bytes from row to row, of all three matrices
    ("c4e2784907", "ldtilecfg [rdi]"),
    ("c4a27b4b0401", "tileloadd tmm0,[rcx+r8*1]"),
    ("c4a27b4b0c06", "tileloadd tmm1,[rsi+r8*1]"),
    ("c4a27b4b1402", "tileloadd tmm2,[rdx+r8*1]"),
)
_TILES_END = (
    ("c4a27a4b0401", "tilestored [rcx+r8*1],tmm0"),
    ("c4e27849c0", "tilerelease"),
    ("c3", "ret"),
)
CODE = {
    # cpuid(leaf, subleaf, out): eax, ebx, ecx, edx to out
    "cpuid": (
        ("53", "push rbx"),
        ("4989d0", "mov r8,rdx"),
        ("89f8", "mov eax,edi"),
        ("89f1", "mov ecx,esi"),
        ("0fa2", "cpuid"),
        ("418900", "mov DWORD PTR [r8],eax"),
        ("41895804", "mov DWORD PTR [r8+0x4],ebx"),
        ("41894808", "mov DWORD PTR [r8+0x8],ecx"),
        ("4189500c", "mov DWORD PTR [r8+0xc],edx"),
        ("5b", "pop rbx"),
        ("c3", "ret"),
    ),
    # xgetbv(): XCR0
    "xgetbv": (
        ("31c9", "xor ecx,ecx"),
        ("0f01d0", "xgetbv"),
        ("48c1e220", "shl rdx,0x20"),
        ("4809d0", "or rax,rdx"),
        ("c3", "ret"),
    ),
    # tdpbf16ps(config, a, b, c) and tdpbssd(config, a, b, c): c += a x b
    "tdpbf16ps": (*_TILES, ("c4e26a5cc1", "tdpbf16ps tmm0,tmm1,tmm2"), *_TILES_END),
    "tdpbssd": (*_TILES, ("c4e26b5ec1", "tdpbssd tmm0,tmm1,tmm2"), *_TILES_END),
    # chain(count): count times 8 multiplications that wait for each other, 3 cycles each on every Intel
    # since Nehalem and every AMD Zen (uops.info, IMUL r64, r64): 24 cycles a count.
    "chain": (
        ("b803000000", "mov eax,0x3"),
        *(("480fafc0", "imul rax,rax"),) * 8,
        ("48ffcf", "dec rdi"),
        ("75db", "jne 0x5"),
        ("c3", "ret"),
    ),
}
CYCLES_A_COUNT = 24


def main(arguments: Sequence[str]) -> None:
    """Climb, print, end with exit code 0 whatever was found."""
    options = dict(zip(arguments, arguments[1:]))
    last = int(options.get("--rung", "5"))
    stack, library = options.get("--stack", ""), options.get("--library", "") or read_beside("library.py")
    print(dumps(climb(last, "--beyond" in arguments, stack, library)))


def climb(last: int, beyond: bool = False, stack: str = "", library: str = "") -> dict[str, Any]:
    """The document: every rung up to `last`."""
    cpuinfo = first_cpu(read("/proc/cpuinfo"))
    node = describe_node(cpuinfo)
    rungs = [flags_rung(cpuinfo, node["machine"])]
    if node["machine"] == "x86_64" and last >= 2:
        rungs += climb_x86(last, node)
    holds = len(rungs) >= min(last, 5) and all(each["ok"] for each in rungs[1:])
    if last >= 6 and (holds or beyond):
        rungs += [*not_reached(len(rungs) + 1, 5), *library_rungs(last, stack, library)]
    return {"ladder": 1, "node": node, "rungs": [*rungs, *not_reached(len(rungs) + 1, 7)]}


def climb_x86(last: int, node: dict[str, Any]) -> list[dict[str, Any]]:
    """Rungs 2 to 5, as far as each lets the next be asked.

    Rung 2 is asked even where rung 1 does not hold: the CPU itself tells who took the flags away.
    """
    text, ended = in_child(ask_cpu)
    registers, xcr0 = parse_registers(text)
    node.update(describe_silicon(registers))
    rungs = [cpuid_rung(registers, ended)]
    if rungs[-1]["ok"] and last >= 3:
        rungs.append(os_state_rung(registers, xcr0))
    if rungs[-1]["ok"] and last >= 4:
        names = () if last == 4 else ("tdpbf16ps", "tdpbssd")
        text, ended = in_child(lambda write: ask_kernel_and_tiles(write, names))
        rungs.append(permission_rung(text, ended))
        if rungs[-1]["ok"] and names:
            rungs.append(tile_rung(text, ended))
    return rungs


def rung(number: int, ok: bool | None, detail: str, **figures: Any) -> dict[str, Any]:
    return {"rung": number, "name": NAMES[number - 1], "ok": ok, "detail": detail, "figures": figures}


def not_reached(first: int, last: int) -> list[dict[str, Any]]:
    return [rung(number, None, "not asked") for number in range(first, last + 1)]


# What the rungs make of the answers: pure, so that tests hand in what other machines answered.


def flags_rung(cpuinfo: Mapping[str, str], machine: str) -> dict[str, Any]:
    """Rung 1: the kernel lists the three flags, as lscpu prints them."""
    if machine != "x86_64":
        return rung(1, False, f"{machine} is not x86; AMX is Intel's", missing=list(FLAGS))
    found = cpuinfo.get("flags", "").split()
    missing = [flag for flag in FLAGS if flag not in found]
    return rung(
        1, not missing, f"no {', '.join(missing)} in lscpu" if missing else "all three", missing=missing
    )


def cpuid_rung(registers: Mapping[str, Sequence[int]], ended: str = "") -> dict[str, Any]:
    """Rung 2: the CPU itself has the three bits (7.0 EDX 24, 22, 25) and a palette of tiles (1D.0 EAX)."""
    if not registers:
        return rung(2, None, f"CPUID could not be asked: {ended}", ended=ended)
    leaf = registers.get("7.0", (0, 0, 0, 0))
    bits = dict(zip(FLAGS, (leaf[3] >> 24 & 1, leaf[3] >> 22 & 1, leaf[3] >> 25 & 1)))
    missing = [flag for flag, bit in bits.items() if not bit]
    palettes = registers.get("1d.0", (0,))[0]
    tile = registers.get("1d.1", (0, 0, 0, 0))
    figures = {
        "missing": missing,
        "palettes": palettes,
        "tiles": tile[1] >> 16,
        "tile_rows": tile[2] & 0xFFFF,
        "tile_row_bytes": tile[1] & 0xFFFF,
        "tmul_k": registers.get("1e.0", (0, 0))[1] & 0xFF,
        "amx_fp16": registers.get("7.1", (0,))[0] >> 21 & 1,
        "amx_complex": registers.get("7.1", (0, 0, 0, 0))[3] >> 8 & 1,
        "xsave_offers_tiles": registers.get("d.0", (0,))[0] >> 17 & 3 == 3,
    }
    if missing:
        return rung(2, False, f"CPUID has no {', '.join(missing)}", **figures)
    if palettes < 1 or not tile[1]:
        return rung(2, False, "CPUID lists AMX but no palette of tiles", **figures)
    detail = f"{figures['tiles']} tiles of {figures['tile_rows']} rows of {figures['tile_row_bytes']} bytes"
    return rung(2, True, detail, **figures)


def os_state_rung(registers: Mapping[str, Sequence[int]], xcr0: int | None) -> dict[str, Any]:
    """Rung 3: the kernel has switched the tiles' state on, XCR0 bits 17 and 18."""
    offered = registers.get("d.0", (0,))[0] >> 17 & 3 == 3
    if xcr0 is None:
        return rung(3, False, "the kernel does not use XSAVE", xcr0=None, offered=offered)
    on = xcr0 >> 17 & 3 == 3
    return rung(
        3, on, f"XCR0 is {xcr0:#x}" + ("" if on else ", without 17 and 18"), xcr0=xcr0, offered=offered
    )


def permission_rung(text: str, ended: str) -> dict[str, Any]:
    """Rung 4: the kernel lets this process use tiles."""
    answers = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    if "requested" not in answers:
        return rung(4, False, f"arch_prctl: {ended or text.strip()}", errno=None, ended=ended)
    error = int(answers["requested"])
    supported = answers.get("supported", "")
    detail = f"ARCH_REQ_XCOMP_PERM: {os.strerror(error)}" if error else "granted"
    return rung(4, error == 0, detail, errno=error, supported=supported)


def tile_rung(text: str, ended: str) -> dict[str, Any]:
    """Rung 5: tile multiplications of known numbers, compared with what Python computes."""
    lines = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    done: list[str] = []
    for name in ("tdpbf16ps", "tdpbssd"):
        if name not in lines:
            why = ended or text.strip().splitlines()[-1]
            return rung(5, False, f"{name}: {why}", ended=ended, executed=done)
        wrong = count_wrong(name, bytes.fromhex(lines[name]))
        if wrong:
            return rung(5, False, f"{name}: {wrong} of 256 numbers are wrong", wrong=wrong, executed=done)
        done.append(name)
    return rung(5, True, f"{' and '.join(done)} right", executed=done)


def library_rungs(last: int, stack: str, library: str) -> list[dict[str, Any]]:
    """Rungs 6 and 7, by library.py in the stack's own Python."""
    if not stack or not os.access(stack, os.X_OK):
        return [rung(6, None, f"no stack on this node ({stack or 'none named'})")]
    speed = ("speed",) if last >= 7 else ()
    clock = in_child(ask_clock)[0].strip() if speed else ""
    text, ended = in_child(lambda write: run_python(write, stack, library, *speed), LIBRARY_LIMIT_S)
    said = dict(line[2:].split(" ", 1) for line in text.splitlines() if line.startswith("@@"))
    verbose = [line[:300] for line in text.splitlines() if "onednn_verbose" in line or "dnnl_verbose" in line]
    executed = [line for line in verbose if ",exec," in line]
    figures = {"verbose": verbose[:4] + executed[:4], "torch": said.get("torch", ""), "ended": ended}
    if "torch" not in said or (ended and not executed):
        printed = [line for line in text.strip().splitlines() if not line.startswith("@@")]
        why = [part for part in (*printed[-1:], ended) if part]
        return [rung(6, False, f"torch does not work: {', '.join(why)[:200]}", **{**figures, "torch": ""})]
    uses = any("amx" in line for line in executed)
    kernel = next((line for line in executed if ",matmul," in line or ",inner_product," in line), "")
    kernel = kernel.split(",exec,cpu,")[-1].split(",")[1] if kernel else "no oneDNN kernel"
    rungs = [rung(6, uses, f"torch {said['torch']} multiplies bf16 by {kernel}", kernel=kernel, **figures)]
    if speed:
        rungs.append(speed_rung(said, uses, clock, ended))
    return rungs


def speed_rung(said: Mapping[str, str], uses: bool, clock: str, ended: str) -> dict[str, Any]:
    """Rung 7: with AMX, bf16 must be twice as fast as fp32 at least; without, only the figures."""
    figures = {name: float(said[name]) for name in said if name.startswith(("fp32_", "bf16_"))}
    if len(figures) < 4:
        return rung(7, False, f"not measured: {ended or 'the measurement was cut off'}", **figures)
    figures["cores"] = int(said.get("cores", "0"))
    figures["ghz"] = float(clock or 0)
    ratio = figures["bf16_one"] / figures["fp32_one"]
    detail = f"bf16 {figures['bf16_all']:.0f} GFLOP/s, {ratio:.1f} times fp32 on one core"
    return rung(7, ratio >= 2 if uses else None, detail, **figures)


# The questions, each asked in a child.


def ask_cpu(write: Callable[[str], None]) -> None:
    """Lines "cpuid LEAF.SUBLEAF eax ebx ecx edx" and "xcr0 VALUE", all hexadecimal."""
    import ctypes

    run = load("cpuid", ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
    out = (ctypes.c_uint32 * 4)()

    def ask(leaf: int, subleaf: int = 0) -> list[int]:
        run(leaf, subleaf, ctypes.addressof(out))
        write(f"cpuid {leaf:x}.{subleaf:x} " + " ".join(f"{value:08x}" for value in out))
        return list(out)

    # A leaf above the highest is answered with another leaf's numbers on Intel: never asked.
    highest = ask(0)[0]
    features = ask(1)[2]
    if highest >= 7 and ask(7)[0] >= 1:
        ask(7, 1)
    for leaf, subleaf in ((0xD, 0), (0x1D, 0), (0x1D, 1), (0x1E, 0)):
        if highest >= leaf:
            ask(leaf, subleaf)
    if features >> 31 & 1:
        ask(0x40000000)
    if ask(0x80000000)[0] >= 0x80000004:
        for leaf in (0x80000002, 0x80000003, 0x80000004):
            ask(leaf)
    if features >> 27 & 1:  # OSXSAVE, without which XGETBV is an illegal instruction
        write(f"xcr0 {load('xgetbv', ctypes.c_uint64)():x}")


def ask_kernel_and_tiles(write: Callable[[str], None], names: Sequence[str]) -> None:
    """Lines "supported MASK", "requested ERRNO", then "NAME RESULT" for each instruction executed."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.c_uint64()
    # arch_prctl is system call 158; ARCH_GET_XCOMP_SUPP and ARCH_REQ_XCOMP_PERM of XTILEDATA (18):
    # Documentation/arch/x86/xstate.rst.
    if libc.syscall(158, 0x1021, ctypes.byref(mask)) == 0:
        write(f"supported {mask.value:#x}")
    error = ctypes.get_errno() if libc.syscall(158, 0x1023, 18) else 0
    write(f"requested {error}")
    for name in () if error else names:
        write(f"{name} {multiply(name).hex()}")


def multiply(name: str) -> bytes:
    """What the tile instruction makes of operands(): the 1024 bytes of c."""
    import ctypes

    a, b, c = (ctypes.create_string_buffer(part, 1024) for part in operands(name))
    config = ctypes.create_string_buffer(tile_config(), 64)
    pointers = [ctypes.addressof(each) for each in (config, a, b, c)]
    load(name, None, *[ctypes.c_void_p] * 4)(*pointers)
    return bytes(c)


def ask_clock(write: Callable[[str], None]) -> None:
    """The clock of a busy core in GHz, best of five: a chain of instructions whose cycles are known."""
    import ctypes
    import time

    chain = load("chain", None, ctypes.c_uint64)
    best, count = 0.0, 500_000
    for _ in range(5):
        began = time.perf_counter()
        chain(count)
        best = max(best, count * CYCLES_A_COUNT / (time.perf_counter() - began) / 1e9)
    write(f"{best:.2f}")


def run_python(write: Callable[[str], None], python: str, source: str, *arguments: str) -> None:
    """Become the stack's Python, all its output on the pipe."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["ONEDNN_VERBOSE"] = "1"
    os.execve(python, [python, "-c", source, *arguments], environment)  # noqa: S606


def tile_config() -> bytes:
    """LDTILECFG's 64 bytes: palette 1, and three tiles of 16 rows of 64 bytes."""
    config = bytearray(64)
    config[0] = 1
    for tile in range(3):
        config[16 + 2 * tile] = 64
        config[48 + tile] = 16
    return bytes(config)


def operands(name: str) -> tuple[bytes, bytes, bytes]:
    """a, b and c as the tiles hold them: 16 rows of 64 bytes each.

    b is stored as TDP* wants it: the numbers of two (bf16) or four (int8) rows of b side by side.
    """
    import struct

    a, b, c = numbers(name)
    group = 2 if name == "tdpbf16ps" else 4
    rows = [[b[group * r + i][n] for n in range(16) for i in range(group)] for r in range(16)]
    if name == "tdpbssd":
        return (
            struct.pack("1024b", *flat(a)),
            struct.pack("1024b", *flat(rows)),
            struct.pack("<256i", *flat(c)),
        )
    # bf16 is the upper half of fp32; the numbers are small integers, so nothing is rounded.
    upper, lower = (b"".join(struct.pack("<f", x)[2:] for x in flat(matrix)) for matrix in (a, rows))
    return upper, lower, struct.pack("<256f", *flat(c))


def flat(matrix: list[list[int]]) -> list[int]:
    return [number for row in matrix for number in row]


def numbers(name: str) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """a (16 x k), b (k x 16) and c (16 x 16): small, both signs, and alike under no exchange of indices."""
    k = 32 if name == "tdpbf16ps" else 64
    a = [[(7 * i + 3 * j) % 17 - 8 for j in range(k)] for i in range(16)]
    b = [[(5 * i + 11 * j) % 13 - 6 for j in range(16)] for i in range(k)]
    c = [[3 * i - 2 * j for j in range(16)] for i in range(16)]
    return a, b, c


def count_wrong(name: str, got: bytes) -> int:
    """How many of the 256 results differ from c + a x b."""
    import struct

    a, b, c = numbers(name)
    columns = list(zip(*b))
    wanted = [c[i][j] + sum(map(int.__mul__, a[i], columns[j])) for i in range(16) for j in range(16)]
    found = struct.unpack("<256f" if name == "tdpbf16ps" else "<256i", got)
    return sum(1 for i in range(256) if found[i] != wanted[i])


def load(name: str, result: Any, *arguments: Any) -> Any:
    """The function of CODE as something to call. OSError where no page may be made executable."""
    import ctypes
    import mmap

    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    page = mmap.mmap(-1, 4096, flags, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("".join(code for code, _ in CODE[name])))
    function: Any = ctypes.CFUNCTYPE(result, *arguments)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    function.page = page  # the page lives as long as the function
    return function


def in_child(
    work: Callable[[Callable[[str], None]], None], limit_s: float = CHILD_LIMIT_S
) -> tuple[str, str]:
    """What `work` wrote in a child process, a line a write, and how the child ended ("" when well).

    "SIGILL" and other signals by name; "no end after 5 s" when it had to be killed; an exception as text.
    """
    import select
    import time

    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        become_child(work, writing)
    os.close(writing)
    output, deadline, late = b"", time.monotonic() + limit_s, False
    while True:
        ready = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]
        chunk = os.read(reading, 65536) if ready else b""
        output += chunk
        if not chunk:
            late = not ready
            break
    if late:
        os.kill(pid, 9)
    os.close(reading)
    status = os.waitpid(pid, 0)[1]
    return output.decode(errors="replace"), f"no end after {limit_s:.0f} s" if late else how_ended(status)


def become_child(work: Callable[[Callable[[str], None]], None], writing: int) -> None:
    """Do the work and end this process, whatever happens."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: an expected SIGILL is nobody's core dump
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor in (1, 2):
            os.dup2(writing, descriptor)
        work(write_line)
        os._exit(0)
    except BaseException as error:
        os.write(1, f"{type(error).__name__}: {error}\n".encode())
        os._exit(3)


def write_line(line: str) -> None:
    os.write(1, line.encode() + b"\n")


SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 31: "SIGSYS"}


def how_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return SIGNALS.get(os.WTERMSIG(status), f"signal {os.WTERMSIG(status)}")
    code = os.WEXITSTATUS(status)
    return f"exit code {code}" if code else ""


# What the node is, for the comparison with its neighbours.


def parse_registers(text: str) -> tuple[dict[str, list[int]], int | None]:
    """Registers by "leaf.subleaf", and XCR0, from the lines of ask_cpu().

    >>> parse_registers("cpuid 1d.0 00000001 00000000 00000000 00000000\\nxcr0 602e7")
    ({'1d.0': [1, 0, 0, 0]}, 393959)
    """
    registers, xcr0 = {}, None
    for words in map(str.split, text.splitlines()):
        if words[:1] == ["cpuid"] and len(words) == 6:
            registers[words[1]] = [int(word, 16) for word in words[2:]]
        elif words[:1] == ["xcr0"]:
            xcr0 = int(words[1], 16)
    return registers, xcr0


def describe_silicon(registers: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """What CPUID says the CPU is, whatever cpuinfo shows."""
    if "0.0" not in registers:
        return {}
    _, b, c, d = registers["0.0"]
    signature = registers.get("1.0", (0, 0, 0, 0))[0]
    family = signature >> 8 & 15
    model = signature >> 4 & 15
    if family in (6, 15):
        model += signature >> 12 & 0xF0
    if family == 15:
        family += signature >> 20 & 0xFF
    brand = [value for leaf in "234" for value in registers.get(f"8000000{leaf}.0", ())]
    return {
        "cpu_vendor": spell((b, d, c)),
        "cpu_family": family,
        "cpu_model": model,
        "cpu_brand": spell(brand),
        "hypervisor": spell(registers.get("40000000.0", ())[1:]),
    }


def spell(values: Sequence[int]) -> str:
    """The text in registers, four letters each.

    >>> spell((0x756E6547, 0x49656E69, 0x6C65746E))
    'GenuineIntel'
    """
    text = b"".join(value.to_bytes(4, "little") for value in values)
    return " ".join(text.replace(b"\0", b"").decode("ascii", "replace").split())


def describe_node(cpuinfo: Mapping[str, str]) -> dict[str, Any]:
    """Model, kernel, layout, and what may stand in the way of AMX."""
    system = os.uname()
    caps = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "ONEDNN_DEFAULT_FPMATH_MODE")
    words = ("clearcpuid=", "noxsave", "noxsaves", "xstate.disable=", "nofxsr")
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
    folder = "/sys/devices/system/node"
    numa = sorted(name for name in listed(folder) if name[:4] == "node" and name[4:].isdigit())
    return {
        "machine": system.machine if sys.maxsize > 2**32 else f"{system.machine} with a 32-bit Python",
        "kernel": system.release,
        "model": cpuinfo.get("model name", "unknown"),
        "microcode": cpuinfo.get("microcode", ""),
        "flags": cpuinfo.get("flags", cpuinfo.get("Features", "")),
        "cpus": count_cpus(read("/sys/devices/system/cpu/online")),
        "threads": int(cpuinfo.get("siblings", "1")) // max(1, int(cpuinfo.get("cpu cores", "1"))) or 1,
        "numa": [count_cpus(read(f"{folder}/{name}/cpulist")) for name in numa],
        "simulated": os.path.exists("/run/clusterctl/simulated-cpu"),
        "cmdline": [word for word in read("/proc/cmdline").split() if word.startswith(words)],
        "seccomp": status.get("Seccomp", "0"),
        "environment": {name: os.environ[name] for name in caps if os.environ.get(name)},
    }


def count_cpus(text: str) -> int:
    """How many CPUs are in the kernel's list.

    >>> count_cpus("0-2,5")
    4
    """
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ends)


def first_cpu(text: str) -> dict[str, str]:
    """Fields of cpuinfo's first CPU."""
    fields = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields


def read(path: str, most: int = 16384) -> str:
    """The start of a file, "" where there is none. Of cpuinfo only what one read gives.

    All of it would cost an interrupt to every CPU of the node, for the "cpu MHz" of each.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, most).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def read_beside(name: str) -> str:
    """A file of this script's own folder; "" when the script came without one."""
    return read(os.path.join(os.path.dirname(__file__), name)) if "__file__" in globals() else ""


def listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def dumps(value: Any) -> str:
    """JSON, without importing json."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dumps(str(key))}: {dumps(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(dumps, value)) + "]"
    if isinstance(value, str):
        return (
            '"' + "".join(letter if letter in _PLAIN else f"\\u{ord(letter):04x}" for letter in value) + '"'
        )
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


_PLAIN = frozenset(map(chr, range(32, 127))) - frozenset('"\\')

if __name__ == "__main__":
    main(sys.argv[1:])

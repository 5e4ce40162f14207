"""What a ladder means: golden verdicts on recorded machines, kernels, peaks, and nodes beside each other."""

from __future__ import annotations

import pytest

from provision.amx.fleet import differences, odd_ones, slow_nodes
from provision.amx.kernels import hint
from provision.amx.speed import describe, operations_a_cycle, peak
from provision.amx.verdict import Fault, judge, parse_ladder
from provision.errors import FactError
from tests.amx_texts import climbed, recorded

FIGURES = {
    "fp32_one": 120.0,
    "bf16_one": 1500.0,
    "fp32_all": 800.0,
    "bf16_all": 9000.0,
    "cores": 8,
    "ghz": 3.0,
}
TORCH = "torch 2.13.0 multiplies bf16 by brg_matmul:"
AVX512 = {"ok": False, "detail": TORCH + "avx512_core_bf16", "torch": "2.13.0"}
AMX = {"ok": True, "detail": TORCH + "avx10_1_512_amx", "torch": "2.13.0"}

# What the machine answers, the rung it ends at, whose fault that is, and words of the line for people.
GOLDEN = {
    "a healthy m7i": ({}, None, None, ""),
    "an r7iz virtual machine of 2023": (
        {"registers": "r7iz-2xlarge", "flags": "cascadelake-cpuinfo", "hypervisor": "KVMKVMKVM"},
        1, Fault.HYPERVISOR, "masked by the hypervisor or its CPU template (KVMKVMKVM)",
    ),
    "Sapphire Rapids under Firecracker on Linux 5.10": (
        {"registers": "firecracker-spr-5.10", "flags": ""}, 1, Fault.HYPERVISOR,
        "pass the host's CPU through",
    ),
    "Sapphire Rapids with AMX off in the firmware": (
        {"registers": "firecracker-spr-5.10", "flags": "", "hypervisor": ""}, 1, Fault.FIRMWARE,
        "switch AMX on",
    ),
    "Cascade Lake": (
        {"registers": "firecracker-spr-5.10", "flags": "cascadelake-cpuinfo", "cpu_model": 85,
         "cpu_brand": "Intel Xeon Platinum 8275CL"},
        1, Fault.SILICON, "Intel Xeon Platinum 8275CL has no AMX (silicon); choose a machine",
    ),
    "EPYC": (
        {"registers": "firecracker-spr-5.10", "flags": "", "cpu_vendor": "AuthenticAMD", "cpu_family": 26,
         "cpu_model": 2, "cpu_brand": "AMD EPYC 9655"},
        1, Fault.SILICON, "AMD EPYC 9655 has no AMX",
    ),
    "Granite Rapids under Firecracker": (
        {"registers": "firecracker-gnr-6.1", "flags": "graniterapids-cpuinfo"}, None, None, "",
    ),
    "Granite Rapids on bare metal": (
        {"registers": "firecracker-gnr-6.1", "flags": "graniterapids-cpuinfo", "hypervisor": "",
         "kernel": "5.14.0-503.el9.x86_64"},
        None, None, "",
    ),
    "Ice Lake": (
        {"registers": "firecracker-icelake-6.1", "flags": ""}, 1, Fault.SILICON, "Intel Xeon has no AMX",
    ),
    "Genoa": (
        {"registers": "firecracker-genoa-6.1", "flags": "", "model": "AMD EPYC 9R14"}, 1, Fault.SILICON,
        "AMD EPYC 9R14 has no AMX (silicon); choose a machine",
    ),
    "Genoa with a Sapphire Rapids' cpuinfo": (
        {"registers": "firecracker-genoa-6.1"}, 2, Fault.CPUINFO, "not backed by the CPU",
    ),
    "Graviton": ({"machine": "aarch64", "flags": ""}, 1, Fault.SILICON, "aarch64 is not x86"),
    "a simulated cpuinfo": (
        {"registers": "firecracker-spr-5.10", "cpu_brand": "AMD EPYC", "simulated": True},
        2, Fault.CPUINFO, "not backed by the CPU: cpuinfo is simulated or masked, CPUID says AMD EPYC",
    ),
    "flags hidden from cpuinfo, tiles that work": ({"flags": "cascadelake-cpuinfo"}, None, None, ""),
    "flags hidden from cpuinfo, no permission": (
        {"flags": "cascadelake-cpuinfo", "permission": ("requested 1\n", "")}, 1, Fault.CPUINFO, "lxcfs",
    ),
    "booted with clearcpuid": (
        {"flags": "cascadelake-cpuinfo", "xcr0": 0x2E7, "cmdline": ["clearcpuid=amx_tile"]},
        1, Fault.KERNEL, "boot without clearcpuid=amx_tile",
    ),
    "CPUID that cannot be asked": ({"registers": ""}, 2, Fault.SANDBOX, "CPUID could not be asked: SIGSEGV"),
    "Linux 5.10 on an m7i, flags shown": (
        {"xcr0": 0x2E7, "kernel": "5.10.234-225.910.amzn2.x86_64"}, 3, Fault.KERNEL,
        "XCR0 is 0x2e7, without 17 and 18 (kernel); kernel 5.10.234-225.910.amzn2.x86_64 is older than 5.16",
    ),
    "xstate.disable": (
        {"xcr0": 0x2E7, "cmdline": ["xstate.disable=0x60000"]}, 3, Fault.KERNEL,
        "without xstate.disable=0x60000",
    ),
    "a monitor that did not ask KVM for the tiles": (
        {"registers": "kvm-no-xstate", "xcr0": 0x2E7}, 3, Fault.HYPERVISOR,
        "shows AMX but does not offer its state",
    ),
    "Ubuntu's 5.15 for AWS": (
        {"permission": ("requested 22\n", ""), "kernel": "5.15.0-1090-aws"}, 4, Fault.KERNEL,
        "ARCH_REQ_XCOMP_PERM: Invalid argument (kernel); kernel 5.15.0-1090-aws is Ubuntu's 5.15 for AWS",
    ),
    "a seccomp filter that answers": (
        {"permission": ("requested 1\n", "")}, 4, Fault.SANDBOX, "allow arch_prctl in the seccomp profile",
    ),
    "a seccomp filter that kills": ({"permission": ("", "SIGSYS")}, 4, Fault.SANDBOX, "arch_prctl: SIGSYS"),
    # github.com/uxlfoundation/oneDNN/issues/5689 is such a machine.
    "a hypervisor that says it has tiles and has not": (
        {"tiles": ("requested 0\n", "SIGILL")}, 5, Fault.HYPERVISOR, "tdpbf16ps: SIGILL",
    ),
    "bare metal that dies of a tile": (
        {"tiles": ("requested 0\n", "SIGILL"), "hypervisor": ""}, 5, Fault.SILICON, "tdpbf16ps: SIGILL",
    ),
    "a unit that computes wrong": (
        {"tiles": (f"requested 0\ntdpbf16ps {'00' * 1024}\n", "")}, 5, Fault.SILICON,
        "of 256 numbers are wrong",
    ),
    "tiles that hang": (
        {"tiles": ("requested 0\n", "no end after 5 s")}, 5, Fault.HYPERVISOR, "tdpbf16ps: no end after 5 s",
    ),
    "no executable memory": (
        {"tiles": ("requested 0\nPermissionError: [Errno 13] Permission denied\n", "")}, 5, Fault.SANDBOX,
        "execmem",
    ),
    "torch that chooses AMX": ({"library": AMX}, None, None, ""),
    "a cap in the environment": (
        {"library": AVX512, "environment": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}}, 6, Fault.ENVIRONMENT,
        "capped by ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 (environment); unset ONEDNN_MAX_CPU_ISA",
    ),
    "a cap that allows AMX": (
        {"library": AVX512, "environment": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}}, 6, Fault.LIBRARY,
        "torch 2.0",
    ),
    "torch too old": ({"library": AVX512}, 6, Fault.LIBRARY, "take a stack with torch 2.0 or newer"),
    "torch that does not start": (
        {"library": {"ok": False, "detail": "torch does not work: exit code 1"}}, 6, Fault.LIBRARY,
        "clusterctl up",
    ),
    "a node that is throttled": (
        {"library": AMX, "speed": {"ok": False, "detail": "bf16 90 GFLOP/s, 1.1 times fp32 on one core"}},
        7, Fault.NODE, "1.1 times fp32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("machine", GOLDEN)
def test_the_first_rung_that_does_not_hold_has_an_owner_and_a_remedy(machine):
    answers, rung, fault, words = GOLDEN[machine]

    problem = judge(climbed(**answers))

    if rung is None:
        assert problem is None
        return
    assert (problem.rung, problem.fault) == (rung, fault)
    assert words in str(problem)
    assert "\n" not in str(problem)
    assert problem.fix


def test_nothing_is_executed_after_a_rung_that_does_not_hold():
    for answers, rung, _, _ in GOLDEN.values():
        if rung is not None and rung > 1:
            assert [each.ok for each in climbed(**answers).rungs[rung:]] == [None] * (7 - rung)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing was printed"),
        ("sh: 1: /usr/bin/python3: not found", "python3: not found"),
        ('{"ladder": 1, "node": {}, "rungs": []}', "cannot be read: 0 rungs"),
        ('{"ladder": 1, "no', "cannot be read"),
    ],
)
def test_an_answer_that_is_no_ladder_says_what_came_instead(text, words):
    with pytest.raises(FactError, match=words):
        parse_ladder(text)


@pytest.mark.parametrize(
    ("release", "ok"),
    [
        ("5.16.0", True),
        ("6.8.0-1019-aws", True),
        ("6.1.140-154.222.amzn2023.x86_64", True),
        ("6.18.44", True),
        ("5.14.0-503.11.1.el9_5.x86_64", True),
        ("4.18.0-477.10.1.el8_8.x86_64", True),
        ("4.18.0-305.el8.x86_64", False),
        ("5.15.0-1090-aws", False),
        ("5.15.0-100-generic", False),
        ("5.14.0-1-generic", False),
        ("4.4.0", False),
        ("weird", False),
    ],
)
def test_kernels_since_5_16_and_known_back_ports(release, ok):
    assert hint(release).ok is ok


def test_peaks_are_cores_times_clock_times_operations():
    spr = frozenset(recorded("m7i-lscpu").split())

    assert operations_a_cycle(spr, "GenuineIntel", 6) == (64, 1024)
    assert operations_a_cycle(spr - {"amx_bf16"}, "GenuineIntel", 6) == (64, 128)
    assert operations_a_cycle(frozenset({"avx512f", "avx512_bf16"}), "AuthenticAMD", 25) == (32, 64)
    assert operations_a_cycle(frozenset({"avx512f", "avx512_bf16"}), "AuthenticAMD", 26) == (64, 128)
    assert operations_a_cycle(frozenset({"avx2"}), "AuthenticAMD", 23) == (32, 32)
    # A Xeon Platinum 8480+: 56 cores; at 2 GHz 115 bf16 TFLOP/s.
    assert peak(spr, "GenuineIntel", 6, 56, 2.0).bf16_all == 56 * 2 * 1024


def test_what_was_measured_is_held_against_the_peak():
    ladder = climbed(library=AMX, speed={"ok": True, "detail": "", **FIGURES})

    assert describe(ladder) == (
        "8 cores at 3.0 GHz give 24576 GFLOP/s in bf16 and 1536 in fp32 at most; "
        "one core reaches 49% and 62% of its part"
    )
    assert describe(climbed()) is None


def test_a_slow_node_among_equals_is_found():
    assert odd_ones({"a": 100, "b": 98, "c": 84, "d": 102}) == {"c": pytest.approx(84 / 99)}
    assert odd_ones({"a": 100, "b": 1}) == {}
    assert odd_ones({"a": 100, "b": 90, "c": 88}) == {}

    fleet = {
        f"n{number}": climbed(library=AMX, speed={"ok": True, "detail": "", **FIGURES, "bf16_all": speed})
        for number, speed in enumerate((9000.0, 9100.0, 4500.0, 8900.0))
    }
    assert slow_nodes(fleet) == ["n2: bf16 on all cores is 50% of its equals' median; throttled or busy?"]


def test_a_node_is_compared_with_the_same_cpu_only():
    speed = {"ok": True, "detail": "", **FIGURES}
    fleet = {
        "a": climbed(library=AMX, speed=speed),
        "b": climbed(library=AMX, speed=speed),
        "c": climbed(library=AMX, speed=speed),
        "small": climbed(library=AMX, speed={**speed, "bf16_all": 900.0}, model="Xeon Bronze"),
    }
    assert slow_nodes(fleet) == []


def test_what_differs_between_nodes_is_told_and_equal_nodes_tell_nothing():
    flags = recorded("m7i-lscpu").strip()
    fleet = {
        "n1": climbed(microcode="0x2b000603", numa=[43, 43, 42]),
        "n2": climbed(microcode="0x2b000603", numa=[43, 43, 42]),
        "n3": climbed(microcode="0x2b000603", kernel="5.15.0-1090-aws", numa=[128], flags="m7i-lscpu"),
    }
    object.__setattr__(fleet["n3"], "node", {**fleet["n3"].node, "flags": flags.replace(" amx_bf16", "")})

    assert differences({"n1": fleet["n1"], "n2": fleet["n2"]}) == []
    assert differences(fleet) == [
        "kernel differs: 6.8.0-1019-aws on n1, n2, 5.15.0-1090-aws on n3",
        "NUMA nodes differs: 43+43+42 on n1, n2, 128 on n3",
        "flags differ: n3 without amx_bf16",
    ]

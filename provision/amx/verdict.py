"""What a climbed ladder means: whose fault the first missing rung is, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from provision.amx.kernels import hint
from provision.errors import FactError

RUNGS = 7
FLAGS = ("amx_tile", "amx_bf16", "amx_int8")
TILE, LIBRARY, SPEED = 5, 6, 7  # a tile multiplied right is the proof; the library and speed come after
# CPUID family and model of CPUs with AMX: arch/x86/include/asm/intel-family.h. Sapphire and Emerald Rapids,
# Granite Rapids X and D, Diamond Rapids.
AMX_CPUS = frozenset({(6, 143), (6, 207), (6, 173), (6, 174), (19, 1)})
CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


class Fault(Enum):
    """Who or what keeps AMX from a node."""

    SILICON = "silicon"
    FIRMWARE = "firmware"
    HYPERVISOR = "hypervisor"
    CPUINFO = "cpuinfo"
    KERNEL = "kernel"
    SANDBOX = "sandbox"
    ENVIRONMENT = "environment"
    LIBRARY = "library"
    NODE = "node"


@dataclass(frozen=True)
class Problem:
    """The first rung that does not hold, whose fault that is, and what to do; one line each."""

    rung: int
    fault: Fault
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what} ({self.fault.value}); {self.fix}"


@dataclass(frozen=True)
class Rung:
    """One rung as the node answered. `ok` is None when it was not asked."""

    number: int
    name: str
    ok: bool | None
    detail: str
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class Ladder:
    """All seven rungs of a node, and what the node says it is."""

    node: Mapping[str, Any]
    rungs: tuple[Rung, ...]

    def rung(self, number: int) -> Rung:
        return self.rungs[number - 1]

    def figures(self, number: int) -> Mapping[str, Any]:
        return self.rung(number).figures

    @property
    def is_proven(self) -> bool:
        return self.rung(TILE).ok is True

    @property
    def kernel(self) -> str:
        return str(self.node["kernel"])

    @property
    def model(self) -> str:
        return str(self.node["model"])

    @property
    def cores(self) -> int:
        return int(self.node.get("cpus", 0)) // max(1, int(self.node.get("threads", 1)))

    @property
    def flags(self) -> frozenset[str]:
        return frozenset(str(self.node.get("flags", "")).split())

    @property
    def simulated(self) -> bool:
        return bool(self.node.get("simulated"))


def parse_ladder(text: str) -> Ladder:
    """The ladder from what ladder.py printed; lines around it (a login banner) are passed over.

    Raises FactError with the last line when there is none.
    """
    lines = text.strip().splitlines()
    found = next((line for line in reversed(lines) if line.startswith('{"ladder"')), None)
    if found is None:
        raise FactError(f"no AMX ladder came back: {lines[-1][:120] if lines else 'nothing was printed'}")
    try:
        data = json.loads(found)
        rungs = tuple(
            Rung(each["rung"], each["name"], each["ok"], each["detail"], each["figures"])
            for each in data["rungs"]
        )
        if [rung.number for rung in rungs] != list(range(1, RUNGS + 1)):
            raise ValueError(f"{len(rungs)} rungs")
        return Ladder(data["node"], rungs)
    except (ValueError, KeyError, TypeError) as error:
        raise FactError(f"the AMX ladder cannot be read: {error}") from None


def judge(ladder: Ladder) -> Problem | None:
    """The problem at the first rung that does not hold; None when all that were asked do.

    Flags that are hidden from cpuinfo do not matter where a tile was multiplied right.
    """
    for rung in ladder.rungs:
        if rung.ok is False and not (rung.number == 1 and ladder.is_proven):
            return _JUDGES[rung.number](ladder, rung)
        if rung.number == 2 and rung.ok is None and rung.detail != "not asked":
            return Problem(2, Fault.SANDBOX, rung.detail, _ALLOW_CODE)
    return None


_ALLOW_CODE = "let processes there map executable memory (SELinux: execmem)"
_TYPES = "choose a machine with Sapphire Rapids or newer (EC2: m7i, c7i, r7i, m8i ...)"


def _flags(ladder: Ladder, rung: Rung) -> Problem:
    if not str(ladder.node["machine"]).startswith("x86_64"):
        return Problem(1, Fault.SILICON, rung.detail, _TYPES)
    if ladder.rung(2).ok:  # the CPU has it: somebody hides it from cpuinfo
        if ladder.rung(3).ok:
            fix = "look for a masked /proc/cpuinfo (lxcfs); the CPU itself has AMX"
            return Problem(1, Fault.CPUINFO, f"{rung.detail}, though the CPU has them", fix)
        return Problem(1, Fault.KERNEL, f"{rung.detail}, though the CPU has them", _kernel_fix(ladder))
    return _silicon(ladder, 1, rung.detail)


def _cpuid(ladder: Ladder, rung: Rung) -> Problem:
    if not rung.figures.get("missing"):
        fix = "give the virtual machine a CPU model with AMX (host-passthrough); its palette is masked"
        return Problem(2, Fault.HYPERVISOR, rung.detail, fix)
    brand = ladder.node.get("cpu_brand") or "another CPU"
    what = f"the flags are not backed by the CPU: cpuinfo is simulated or masked, CPUID says {brand}"
    fix = "leave out local.simulate_cpu" if ladder.simulated else "find out what stands over /proc/cpuinfo"
    return Problem(2, Fault.CPUINFO, what, f"{fix}; {_TYPES}")


def _silicon(ladder: Ladder, number: int, what: str) -> Problem:
    """AMX is not in the CPU as this node sees it."""
    cpu = (ladder.node.get("cpu_family"), ladder.node.get("cpu_model"))
    if ladder.node.get("cpu_vendor") != "GenuineIntel" or cpu not in AMX_CPUS:
        return Problem(number, Fault.SILICON, f"{what}: {_short(ladder)} has no AMX", _TYPES)
    if ladder.node.get("hypervisor"):
        what = f"{what}: masked by the hypervisor or its CPU template ({ladder.node['hypervisor']})"
        fix = "pass the host's CPU through (Firecracker 1.12: no T2 template; cloud-hypervisor: features=amx)"
        return Problem(number, Fault.HYPERVISOR, what, f"{fix}, or take a metal size")
    return Problem(
        number, Fault.FIRMWARE, what, "switch AMX on in the firmware, or update it and the microcode"
    )


def _short(ladder: Ladder) -> str:
    return str(ladder.node.get("cpu_brand") or ladder.model)


def _os_state(ladder: Ladder, rung: Rung) -> Problem:
    if rung.figures.get("offered") is False and rung.figures.get("xcr0") is not None:
        # KVM lists AMX in CPUID even where the monitor did not ask for its state:
        # https://lore.kernel.org/kvm/20230802022954.193843-1-tao1.su@linux.intel.com/
        what = f"{rung.detail}: the hypervisor shows AMX but does not offer its state"
        fix = "update the monitor (QEMU 7.0, Firecracker 1.12) and its host's kernel (5.17)"
        return Problem(3, Fault.HYPERVISOR, what, fix)
    return Problem(3, Fault.KERNEL, rung.detail, _kernel_fix(ladder))


def _permission(ladder: Ladder, rung: Rung) -> Problem:
    # A seccomp filter answers EPERM or ENOSYS, or kills by SIGSYS; kernels without AMX answer EINVAL (22),
    # those that have it switched off EOPNOTSUPP (95).
    if rung.figures.get("errno") in (1, 38) or rung.figures.get("ended") == "SIGSYS":
        fix = "allow arch_prctl in the seccomp profile; gVisor has no AMX"
        return Problem(4, Fault.SANDBOX, rung.detail, fix)
    return Problem(4, Fault.KERNEL, rung.detail, _kernel_fix(ladder))


def _kernel_fix(ladder: Ladder) -> str:
    words = ladder.node.get("cmdline") or ()
    if words:
        return f"boot without {' '.join(words)}"
    known = hint(ladder.kernel)
    if known.ok:
        return f"kernel {ladder.kernel} should be able to; boot the distribution's own kernel"
    return f"kernel {ladder.kernel} is {known.why}; boot a newer one (Ubuntu 24.04 and Debian 12 have one)"


def _tile(ladder: Ladder, rung: Rung) -> Problem:
    if "PermissionError" in rung.detail or "OSError" in rung.detail:
        return Problem(5, Fault.SANDBOX, rung.detail, _ALLOW_CODE)
    if rung.figures.get("wrong"):
        return Problem(
            5, Fault.SILICON, rung.detail, "take this node out: its AMX unit computes wrong numbers"
        )
    if ladder.node.get("hypervisor"):
        fix = "all says that tiles work, and they do not: report it to whoever runs the hypervisor"
        return Problem(5, Fault.HYPERVISOR, rung.detail, fix)
    return Problem(5, Fault.SILICON, rung.detail, "take this node out, update its firmware and microcode")


def _library(ladder: Ladder, rung: Rung) -> Problem:
    environment = ladder.node.get("environment", {})
    for name in CAPS:
        value = str(environment.get(name, ""))
        if value and "AMX" not in value.upper() and value.upper() not in ("ALL", "DEFAULT"):
            what = f"{rung.detail}, capped by {name}={value}"
            return Problem(
                6, Fault.ENVIRONMENT, what, f"unset {name} (see ~/.ssh/environment, /etc/environment)"
            )
    if not rung.figures.get("torch"):
        return Problem(6, Fault.LIBRARY, rung.detail, "run `clusterctl up` again: it checks the stack")
    return Problem(6, Fault.LIBRARY, rung.detail, "take a stack with torch 2.0 or newer, built with oneDNN")


def _speed(ladder: Ladder, rung: Rung) -> Problem:
    fix = "look at clocks, pinning and memory channels (turbostat, numactl -H), and for other work there"
    return Problem(7, Fault.NODE, rung.detail, fix)


_JUDGES = {
    1: _flags,
    2: _cpuid,
    3: _os_state,
    4: _permission,
    5: _tile,
    6: _library,
    7: _speed,
}

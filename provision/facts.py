"""What is true of a node: pure parsers of recorded text, and the types they return."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """One logical CPU. `core` is unique within the machine, not only within its socket."""

    id: int
    core: int
    socket: int
    numa: int


@dataclass(frozen=True)
class Topology:
    """The CPUs of a node and which of them a login session may use.

    `allowed` is the affinity mask of a fresh ssh session (cpuset included), `quota_cpus` the cgroup's CPU
    quota in whole-CPU units (None = no quota).
    """

    cpus: tuple[Cpu, ...]
    allowed: frozenset[int]
    quota_cpus: float | None = None


@dataclass(frozen=True)
class CpuInfo:
    """What lscpu says. `simulated` marks a CPU that the local provider made up."""

    vendor: str
    model_name: str
    flags: frozenset[str]
    simulated: bool = False

    @property
    def has_amx(self) -> bool:
        """True when lscpu lists amx_tile, amx_bf16 and amx_int8 (CPUID 7.0 EDX bits 24, 22, 25)."""
        return {"amx_tile", "amx_bf16", "amx_int8"} <= self.flags


@dataclass(frozen=True)
class NodeFacts:
    """Everything gathered from a node in one round trip."""

    hostname: str
    os_id: str  # "debian", "ubuntu", "fedora" ...: ID of /etc/os-release
    os_version: str
    kernel: str
    python: str  # version of /usr/bin/python3, "" when there is none
    cpu: CpuInfo
    topology: Topology
    memory_gib: float
    clock_s: float  # the node's clock, seconds since the epoch, at `gathered_s` of the operator's
    gathered_s: float
    interface: str  # the device that reaches the mesh (dev of `ip -4 route get`), never "lo"
    mesh_key: str = ""  # public key of the head's mesh key, "" when there is none
    host_keys: tuple[str, ...] = ()

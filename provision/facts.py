"""What is true of a node: pure parsers of recorded text, and the types they return."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from provision.errors import FactError

# The head's private mesh key, relative to the login user's home. It never leaves the head.
MESH_KEY = ".ssh/clusterctl_mesh"
# Where stacks lie on every node, and the file that a stack has when it is complete.
STACKS = "/opt/clusterctl/stacks"
MANIFEST = "clusterctl-stack.json"


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
    home: str  # the login user's home folder
    mesh_key: str = ""  # public key of the head's mesh key, "" when there is none
    host_keys: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()  # names of the stacks that are complete on the node
    os_like: tuple[str, ...] = ()  # what the distribution comes from, nearest first: ID_LIKE


def facts_script(user: str, mesh_address: str) -> str:
    """The sh script that prints every fact in marked sections: one exec, reads only.

    `user` is the login user, whose home and mesh key are asked for; `mesh_address` is an address of
    another node (or of this one), to learn which interface leads to it. One grep prints all the files:
    on 64 hosts that share two cores, each process less is 0.1 s.
    """
    sections = {
        "files": f"grep -sH '' {' '.join(_FILES)} $home/{MESH_KEY}.pub",
        "home": "echo $home",
        "python": "readlink -f /usr/bin/python3",
        "lscpu": "lscpu",
        "route": f'route=$(ip -4 route get {shlex.quote(mesh_address)}); echo "$route"',
        # Asked for only where the mesh is this very node, as in a cluster of one.
        "addresses": "case $route in *' dev lo '*) ip -4 -o addr show;; esac",
        "clock": "date +%s.%N",
    }
    lines = [f"home=~{shlex.quote(user)}"]
    lines += [f"echo {_MARK}{name}\n{{ {command}; }} 2>/dev/null" for name, command in sections.items()]
    return "\n".join(lines)


_MARK = "@@fact "
_SECTIONS = ("files", "home", "python", "lscpu", "route", "addresses", "clock")
_CPU_FOLDER = "/sys/devices/system/cpu"
_FILES = (
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/osrelease",
    "/etc/os-release",
    "/run/clusterctl/simulated-cpu",
    f"{_CPU_FOLDER}/online",
    f"{_CPU_FOLDER}/cpu[0-9]*/topology/core_id",
    f"{_CPU_FOLDER}/cpu[0-9]*/topology/physical_package_id",
    "/sys/devices/system/node/node[0-9]*/cpulist",
    "/proc/self/status",
    "/proc/meminfo",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "/etc/ssh/ssh_host_*_key.pub",
    f"{STACKS}/*/{MANIFEST}",
)


def parse_facts(text: str, gathered_s: float) -> NodeFacts:
    """Facts from what facts_script() printed.

    `gathered_s` is the operator's clock when the answer came. Raises FactError naming the section that
    is missing or not understood. Lines before the first section (a login banner) are passed over.
    """
    section = _split(text)
    files = parse_files(section["files"])
    os_release = dict(
        line.replace('"', "").split("=", 1)
        for line in files.get("/etc/os-release", "").splitlines()
        if "=" in line
    )
    home = section["home"].strip()
    return NodeFacts(
        hostname=files.get("/proc/sys/kernel/hostname", ""),
        os_id=os_release.get("ID", "unknown"),
        os_version=os_release.get("VERSION_ID", ""),
        kernel=files.get("/proc/sys/kernel/osrelease", ""),
        python=section["python"].strip().removeprefix("/usr/bin/python"),
        cpu=parse_lscpu(section["lscpu"], simulated="/run/clusterctl/simulated-cpu" in files),
        topology=parse_topology(files),
        memory_gib=_memory_gib(files.get("/proc/meminfo", "")),
        clock_s=float(section["clock"] or 0),
        gathered_s=gathered_s,
        interface=_interface(section["route"], section["addresses"]),
        home=home,
        mesh_key=_key_of(files.get(f"{home}/{MESH_KEY}.pub", "")),
        host_keys=tuple(
            sorted(_key_of(key) for path, key in files.items() if path.startswith("/etc/ssh/ssh_host_"))
        ),
        stacks=tuple(sorted(path.split("/")[-2] for path in files if path.endswith(f"/{MANIFEST}"))),
        os_like=tuple(os_release.get("ID_LIKE", "").split()),
    )


def _split(text: str) -> dict[str, str]:
    sections: dict[str, str] = {}
    for chunk in ("\n" + text).split("\n" + _MARK)[1:]:
        name, _, body = chunk.partition("\n")
        sections[name] = body
    missing = [name for name in _SECTIONS if name not in sections]
    if missing:
        raise FactError(f"no {missing[0]!r} among the facts; was the connection cut, or sh replaced?")
    return sections


def parse_files(text: str) -> dict[str, str]:
    """Path -> content, from `grep -H ''` over many files; files that are not there are absent.

    >>> parse_files("/a:1\\n/a:2\\n/b:x:y\\n")
    {'/a': '1\\n2', '/b': 'x:y'}
    """
    files: dict[str, list[str]] = {}
    for line in text.splitlines():
        path, _, content = line.partition(":")
        files.setdefault(path, []).append(content)
    return {path: "\n".join(lines) for path, lines in files.items()}


def _key_of(public_key: str) -> str:
    """A public key without its comment."""
    return " ".join(public_key.split()[:2])


def parse_lscpu(text: str, *, simulated: bool = False) -> CpuInfo:
    """Vendor, model and flags from `lscpu` in the C locale.

    Raises FactError when there is no architecture line: lscpu is missing or failed. ARM prints no
    "Flags" that x86 would know; then the flags are those it has.

    >>> sorted(parse_lscpu("Architecture: x86_64\\nFlags: sse2 amx_tile").flags)
    ['amx_tile', 'sse2']
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if "Architecture" not in fields:
        raise FactError("lscpu printed nothing that looks like lscpu; is util-linux installed?")
    return CpuInfo(
        vendor=fields.get("Vendor ID", "unknown"),
        model_name=fields.get("Model name", "unknown"),
        flags=frozenset(fields.get("Flags", "").split()),
        simulated=simulated,
    )


def parse_topology(files: Mapping[str, str]) -> Topology:
    """Cores, sockets and NUMA nodes from sysfs, the affinity mask from /proc, the quota from the cgroup."""
    online = parse_cpu_list(files.get(f"{_CPU_FOLDER}/online", ""))
    core, socket = (_by_cpu(files, name) for name in ("core_id", "physical_package_id"))
    numa = {
        cpu: int(path.split("/node/node")[1].partition("/")[0])
        for path, cpus in files.items()
        if path.endswith("/cpulist")
        for cpu in parse_cpu_list(cpus)
    }
    # core_id is unique within its socket only: number the (socket, core_id) pairs of the machine.
    pair = {cpu: (socket.get(cpu, 0), core.get(cpu, cpu)) for cpu in sorted(online)}
    number = {pair: index for index, pair in enumerate(sorted(set(pair.values())))}
    cpus = tuple(Cpu(cpu, number[pair[cpu]], pair[cpu][0], numa.get(cpu, 0)) for cpu in pair)
    mask = re.search(r"^Cpus_allowed_list:\s*(\S+)", files.get("/proc/self/status", ""), re.MULTILINE)
    allowed = parse_cpu_list(mask[1]) & online if mask else online
    return Topology(cpus, allowed or online, parse_quota(_quota_text(files)))


def _quota_text(files: Mapping[str, str]) -> str:
    """The quota in cgroup v2's form, whichever version the node has."""
    v1 = (files.get(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us", "") for name in ("quota", "period"))
    return files.get("/sys/fs/cgroup/cpu.max") or " ".join(v1)


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPUs of the kernel's list format.

    >>> sorted(parse_cpu_list("0-2,5"))
    [0, 1, 2, 5]
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def parse_quota(text: str) -> float | None:
    """CPUs that the cgroup's quota allows; None when it has none.

    cgroup v2 prints "max 100000" or "150000 100000"; v1 has -1 for none.

    >>> parse_quota("150000 100000")
    1.5
    """
    words = text.split()
    if len(words) < 2 or words[0] in ("max", "-1"):
        return None
    return int(words[0]) / int(words[1])


def _by_cpu(files: Mapping[str, str], name: str) -> dict[int, int]:
    """CPU -> the number in its topology file of that name."""
    pattern = re.compile(rf"{_CPU_FOLDER}/cpu(\d+)/topology/{name}")
    return {int(match[1]): int(value) for path, value in files.items() if (match := pattern.fullmatch(path))}


def _memory_gib(text: str) -> float:
    kib = re.search(r"MemTotal:\s*(\d+)", text)
    return round(int(kib[1]) / 2**20, 1) if kib else 0.0


def _interface(route: str, addresses: str) -> str:
    """The device that leads to the mesh; for the node's own address (dev lo) the device that owns it."""
    device = re.search(r"\bdev (\S+)", route)
    if device and device[1] != "lo":
        return device[1]
    own = re.search(r"^(?:local )?(\d+\.\d+\.\d+\.\d+)", route.strip())
    owner = re.search(rf"^\d+: (\S+)\s+inet {re.escape(own[1])}/", addresses, re.MULTILINE) if own else None
    return owner[1] if owner else "lo"

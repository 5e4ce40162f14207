"""A CPU that is not there, as the kernel would describe it: for trying out AMX checks without AMX.

Writes /proc/cpuinfo, /sys/devices/system/cpu and /sys/devices/system/node of an m7i.16xlarge, so that
the real `lscpu` reads them. Nothing else is simulated: a tile instruction still ends in SIGILL where the
machine has no AMX, and processes run on the machine's real cores. The model name says so, and a node that
shows it has /run/clusterctl/simulated-cpu.

The flags are those of Linux 6.8 on a 4th generation Xeon under Nitro (EC2 m7i).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Cache(NamedTuple):
    """One level as in /sys/devices/system/cpu/cpu0/cache/indexN; `shared` by a "core" or a "socket"."""

    level: int
    kind: str
    size_kib: int
    ways: int
    shared: str


class Cpu(NamedTuple):
    """One socket of `cores` with two threads each: CPU n and CPU n + cores are one core."""

    model_name: str
    family: int
    model: int
    stepping: int
    mhz: float
    cores: int
    memory_gib: int
    caches: tuple[Cache, ...]
    flags: str


SAPPHIRE_RAPIDS = Cpu(
    model_name="Intel(R) Xeon(R) Platinum 8488C (simulated)",
    family=6,
    model=143,
    stepping=8,
    mhz=2400.0,
    cores=32,
    memory_gib=256,
    caches=(
        Cache(1, "Data", 48, 12, "core"),
        Cache(1, "Instruction", 32, 8, "core"),
        Cache(2, "Unified", 2048, 16, "core"),
        Cache(3, "Unified", 107520, 15, "socket"),
    ),
    flags=(
        "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr "
        "sse sse2 ss ht syscall nx pdpe1gb rdtscp lm constant_tsc arch_perfmon rep_good nopl "
        "xtopology nonstop_tsc cpuid aperfmperf tsc_known_freq pni pclmulqdq monitor ssse3 fma cx16 "
        "pdcm pcid sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave avx f16c rdrand "
        "hypervisor lahf_lm abm 3dnowprefetch cpuid_fault ssbd ibrs ibpb stibp ibrs_enhanced "
        "fsgsbase tsc_adjust bmi1 avx2 smep bmi2 erms invpcid avx512f avx512dq rdseed adx smap "
        "avx512ifma clflushopt clwb avx512cd sha_ni avx512bw avx512vl xsaveopt xsavec xgetbv1 "
        "xsaves avx_vnni avx512_bf16 wbnoinvd ida arat avx512vbmi umip pku ospke waitpkg "
        "avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg tme avx512_vpopcntdq rdpid "
        "cldemote movdiri movdir64b md_clear serialize amx_bf16 avx512_fp16 amx_tile amx_int8 "
        "flush_l1d arch_capabilities"
    ),
)
CPUS = {"sapphire-rapids": SAPPHIRE_RAPIDS}


def write(folder: Path, name: str) -> None:
    """The files of CPUS[name], at their own paths under `folder`, and `marker`."""
    cpu = CPUS[name]
    files = {
        "marker": f"{name}\n",
        "proc/cpuinfo": cpuinfo(cpu),
        **{f"sys/devices/system/cpu/{path}": text for path, text in sys_cpu(cpu).items()},
        **{f"sys/devices/system/node/{path}": text for path, text in sys_node(cpu).items()},
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def cpuinfo(cpu: Cpu) -> str:
    """Text of /proc/cpuinfo, all threads."""
    return "".join(_cpuinfo_block(cpu, number) for number in range(2 * cpu.cores))


def _cpuinfo_block(cpu: Cpu, number: int) -> str:
    core, thread = number % cpu.cores, number // cpu.cores
    apic = 2 * core + thread
    return f"""\
processor\t: {number}
vendor_id\t: GenuineIntel
cpu family\t: {cpu.family}
model\t\t: {cpu.model}
model name\t: {cpu.model_name}
stepping\t: {cpu.stepping}
microcode\t: 0x2b000603
cpu MHz\t\t: {cpu.mhz:.3f}
cache size\t: {cpu.caches[-1].size_kib} KB
physical id\t: 0
siblings\t: {2 * cpu.cores}
core id\t\t: {core}
cpu cores\t: {cpu.cores}
apicid\t\t: {apic}
initial apicid\t: {apic}
fpu\t\t: yes
fpu_exception\t: yes
cpuid level\t: 31
wp\t\t: yes
flags\t\t: {cpu.flags}
bugs\t\t: spectre_v1 spectre_v2 spec_store_bypass swapgs eibrs_pbrsb bhi
bogomips\t: {2 * cpu.mhz:.2f}
clflush size\t: 64
cache_alignment\t: 64
address sizes\t: 46 bits physical, 48 bits virtual
power management:

"""


def sys_cpu(cpu: Cpu) -> dict[str, str]:
    """Path under /sys/devices/system/cpu -> text."""
    threads = range(2 * cpu.cores)
    all_of_them = f"0-{len(threads) - 1}\n"
    files = {"possible": all_of_them, "present": all_of_them, "online": all_of_them}
    files |= {"offline": "\n", "kernel_max": "8191\n"}
    for number in threads:
        files |= {f"cpu{number}/{path}": text for path, text in _sys_thread(cpu, number).items()}
    return files


def _sys_thread(cpu: Cpu, number: int) -> dict[str, str]:
    core = number % cpu.cores
    groups = {"core": [core, core + cpu.cores], "socket": list(range(2 * cpu.cores))}
    files = {"topology/core_id": f"{core}\n", "topology/physical_package_id": "0\n", "topology/die_id": "0\n"}
    for name, group in (("core_cpus", "core"), ("thread_siblings", "core"), ("package_cpus", "socket"),
                        ("core_siblings", "socket"), ("die_cpus", "socket")):  # fmt: skip
        files[f"topology/{name}"] = mask(groups[group], 2 * cpu.cores)
        files[f"topology/{name}_list"] = ",".join(map(str, groups[group])) + "\n"
    for index, cache in enumerate(cpu.caches):
        members = groups[cache.shared]
        ident = core if cache.shared == "core" else 0
        for name, text in _sys_cache(cache, ident, mask(members, 2 * cpu.cores)).items():
            files[f"cache/index{index}/{name}"] = text
    return files


def _sys_cache(cache: Cache, ident: int, shared: str) -> dict[str, str]:
    return {
        "id": f"{ident}\n",
        "level": f"{cache.level}\n",
        "type": f"{cache.kind}\n",
        "size": f"{cache.size_kib}K\n",
        "ways_of_associativity": f"{cache.ways}\n",
        "coherency_line_size": "64\n",
        "physical_line_partition": "1\n",
        "number_of_sets": f"{cache.size_kib * 1024 // 64 // cache.ways}\n",
        "shared_cpu_map": shared,
    }


def sys_node(cpu: Cpu) -> dict[str, str]:
    """Path under /sys/devices/system/node -> text: one NUMA node with all threads."""
    threads = 2 * cpu.cores
    return {
        "possible": "0\n",
        "online": "0\n",
        "has_cpu": "0\n",
        "has_memory": "0\n",
        "node0/cpulist": f"0-{threads - 1}\n",
        "node0/cpumap": mask(list(range(threads)), threads),
        "node0/distance": "10\n",
        "node0/meminfo": f"Node 0 MemTotal:       {cpu.memory_gib * 1024 * 1024} kB\n",
    }


def mask(cpus: list[int], width: int) -> str:
    """The kernel's way to write a set of CPUs: words of 32 bits, highest first.

    >>> mask([0, 33], 64)
    '00000002,00000001\\n'
    """
    bits = sum(1 << cpu for cpu in cpus)
    words = [f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(0, width, 32)]
    return ",".join(reversed(words)) + "\n"

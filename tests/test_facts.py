"""Facts: what one exec prints, awkward hosts included."""

import subprocess

import pytest

from provision.errors import FactError
from provision.facts import Cpu, facts_script, parse_cpu_list, parse_facts, parse_quota

SYS = "/sys/devices/system/cpu"


def recorded(**changes):
    """What a two-core Debian node prints, with some sections or files replaced."""
    files = {
        "/proc/sys/kernel/hostname": "node1",
        "/proc/sys/kernel/osrelease": "6.1.0-18-amd64",
        "/etc/os-release": 'ID=debian\nVERSION_ID="12"',
        f"{SYS}/online": "0-3",
        **{f"{SYS}/cpu{cpu}/topology/core_id": str(cpu % 2) for cpu in range(4)},
        **{f"{SYS}/cpu{cpu}/topology/physical_package_id": str(cpu // 2) for cpu in range(4)},
        "/sys/devices/system/node/node0/cpulist": "0-1",
        "/sys/devices/system/node/node1/cpulist": "2-3",
        "/proc/self/status": "Name:\tgrep\nCpus_allowed_list:\t0,2-3",
        "/proc/meminfo": "MemFree: 1 kB\nMemTotal:       25165824 kB",
        "/etc/ssh/ssh_host_ed25519_key.pub": "ssh-ed25519 AAAA root@node1",
        "/opt/clusterctl/stacks/native-1/clusterctl-stack.json": "{}",
        "/home/ubuntu/.ssh/clusterctl_mesh.pub": "ssh-ed25519 BBBB clusterctl-mesh-demo",
    } | changes.pop("files", {})
    sections = {
        "files": "".join(f"{p}:{line}\n" for p, text in files.items() for line in text.splitlines()),
        "home": "/home/ubuntu\n",
        "python": "/usr/bin/python3.11\n",
        "lscpu": "Architecture: x86_64\nVendor ID: GenuineIntel\nModel name: Xeon\nFlags: sse2 amx_tile\n",
        "route": "10.0.0.2 via 10.0.0.1 dev ens5 src 10.0.0.9 uid 0\n",
        "addresses": "2: ens5    inet 10.0.0.9/20 brd 10.0.15.255 scope global ens5\n",
        "clock": "1700000000.5\n",
    } | changes
    return "Last login: never\n" + "".join(f"@@fact {name}\n{text}" for name, text in sections.items())


def test_every_fact_of_a_recorded_node():
    facts = parse_facts(recorded(), gathered_s=1700000001.0)

    assert (facts.hostname, facts.os_id, facts.os_version, facts.python) == ("node1", "debian", "12", "3.11")
    assert (facts.memory_gib, facts.interface, facts.home) == (24.0, "ens5", "/home/ubuntu")
    assert (facts.host_keys, facts.mesh_key) == (("ssh-ed25519 AAAA",), "ssh-ed25519 BBBB")
    assert facts.stacks == ("native-1",)
    assert not facts.cpu.has_amx


def test_cores_are_numbered_over_the_whole_machine_and_the_affinity_is_kept():
    topology = parse_facts(recorded(), 0).topology

    assert topology.cpus == (Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0), Cpu(2, 2, 1, 1), Cpu(3, 3, 1, 1))
    assert topology.allowed == {0, 2, 3}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (
            {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        ({}, None),
    ],
)
def test_the_quota_of_either_cgroup_version(files, quota):
    assert parse_facts(recorded(files=files), 0).topology.quota_cpus == quota


def test_the_interface_of_the_nodes_own_address_is_the_one_that_owns_it():
    text = recorded(route="local 10.0.0.9 dev lo src 10.0.0.9 uid 0\n")

    assert parse_facts(text, 0).interface == "ens5"


def test_a_simulated_cpu_is_marked():
    assert parse_facts(recorded(files={"/run/clusterctl/simulated-cpu": "yes"}), 0).cpu.simulated


def test_a_cut_connection_is_named():
    with pytest.raises(FactError, match="no 'clock' among the facts"):
        parse_facts(recorded().partition("@@fact clock")[0], 0)


def test_a_node_without_lscpu_is_named():
    with pytest.raises(FactError, match="util-linux"):
        parse_facts(recorded(lscpu=""), 0)


def test_the_script_really_prints_what_is_parsed():
    printed = subprocess.run(["sh", "-c", facts_script("root", "127.0.0.1")], capture_output=True, text=True)
    facts = parse_facts(printed.stdout, 0)

    assert facts.home == "/root"
    assert facts.topology.allowed
    assert facts.clock_s > 1.7e9


def test_cpu_lists_and_quotas():
    assert parse_cpu_list("0-2,5,7-8") == {0, 1, 2, 5, 7, 8}
    assert parse_cpu_list("") == frozenset()
    assert parse_quota("") is None

"""The local provider: choices on recorded text, then real nodes (root only)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from provision.errors import ProviderError, SettingsError
from provision.model import Cluster
from provision.providers import NodeState
from provision.providers.local import LocalProvider, LocalSettings, control, requirements, stack_store
from provision.providers.local.asroot import Refused, network
from provision.providers.local.asroot.accounts import fresh_accounts, system_homes
from provision.providers.local.asroot.disk import FRESH
from provision.providers.local.asroot.entry import supervisors
from provision.providers.local.asroot.image import SYSTEM_FOLDERS, prepare
from provision.providers.local.asroot.network import Use, check_subnet, choose_subnet, free_address
from provision.providers.local.asroot.simulated_cpu import write as write_simulated_cpu
from provision.providers.local.start import core_share, cores_of_nodes
from tests.local_nodes import LocalCluster, eventually, make_key, names, needs_nodes, output

RUNNING, STOPPED, GONE = NodeState.RUNNING, NodeState.STOPPED, NodeState.GONE


def used(text: str) -> Use:
    return Use(IPv4Network(text), f"route {text} (tun0)")


def test_choose_subnet_is_a_24_of_the_benchmark_range_that_nothing_uses() -> None:
    first = choose_subnet("demo", [])
    assert first.subnet_of(IPv4Network("198.18.0.0/15"))
    assert first.prefixlen == 24
    second = choose_subnet("demo", [used(str(first))])
    assert not second.overlaps(first)


def test_choose_subnet_says_when_all_are_used() -> None:
    with pytest.raises(Refused, match=r"no free /24 is left in 198\.18\.0\.0/15"):
        choose_subnet("demo", [used("198.16.0.0/12")])


def test_wanted_subnet_inside_a_vpn_route_is_refused_saying_by_what() -> None:
    with pytest.raises(Refused, match=r"in use by route 10\.0\.0\.0/8 \(tun0\)"):
        check_subnet("10.77.0.0/24", [used("10.0.0.0/8")])


@pytest.mark.parametrize("text", ["8.8.8.0/24", "198.18.0.0/15", "10.1.2.3/24", "nonsense", "10.0.0.0/30"])
def test_wanted_subnet_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="subnet"):
        check_subnet(text, [])


def test_default_route_uses_nothing_and_guards_of_others_do() -> None:
    routes: list[dict[str, object]] = [
        {"dst": "default", "dev": "eth0"},
        {"dst": "192.0.2.0/24", "dev": "eth0"},
        {"type": "unreachable", "dst": "198.18.3.0/24", "metric": 4000000000},
        {"type": "local", "dst": "127.0.0.1", "dev": "lo"},
    ]
    whats = [use.what for use in network.uses_of_routes(routes)]
    assert whats == ["route 192.0.2.0/24 (eth0)", "route 198.18.3.0/24 (unreachable)", "route 127.0.0.1 (lo)"]


def test_addresses_are_given_from_the_lowest_free_one_and_run_out_clearly() -> None:
    subnet = IPv4Network("198.18.7.0/29")
    assert free_address(subnet, ["198.18.7.2", "198.18.7.4"]) == IPv4Address("198.18.7.3")
    with pytest.raises(Refused, match="room for 5 nodes"):
        free_address(subnet, [f"198.18.7.{at}" for at in range(2, 7)])


def test_link_names_fit_the_kernel() -> None:
    longest = network.link_name("/run/clusterctl/1000/" + "x" * 50, "n252")
    assert len(longest) <= 15
    assert longest != network.link_name("/run/clusterctl/1000/y", "n252")


def test_fresh_accounts_have_no_people_no_hashes_and_ubuntu() -> None:
    accounts = fresh_accounts(
        "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/zsh\nsshd:x:102:65534::/run/sshd:/x\n",
        "root:x:0:\nsudo:x:27:ann\nann:x:1000:\ndocker:x:999:ann,root\n",
    )
    assert accounts.uid == 1000
    assert "ann" not in accounts.passwd + accounts.group + accounts.shadow + accounts.gshadow
    assert accounts.passwd.endswith("ubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash\n")
    assert "sudo:x:27:ubuntu\ndocker:x:999:root\n" in accounts.group
    assert {row.split(":")[1] for row in accounts.shadow.splitlines()} == {"*"}


def test_homes_of_services_are_found_and_shared_folders_are_not() -> None:
    passwd = "db:x:101:1::/var/lib/db:/x\nodd:x:102:1::/var/lib:/x\nman:x:6:12::/var/cache/man/:/x\n"
    assert system_homes(passwd) == ["/var/cache/man", "/var/lib/db"]


@pytest.mark.skipif(os.geteuid() != 0, reason="whiteouts need root")
def test_image_hides_what_the_machine_keeps_from_ordinary_users(tmp_path: Path) -> None:
    machine, layers = tmp_path / "machine", tmp_path / "layers"
    secret = {"etc/vpn/key": 0o600}
    plain = ("etc/vpn/hint", "etc/ssl/key", "var/lib/db/rows", "var/log/apt/history", "var/log/syslog")
    for path, mode in {**secret, **dict.fromkeys(plain, 0o644)}.items():
        (machine / path).parent.mkdir(parents=True, exist_ok=True)
        (machine / path).write_text("x")
        (machine / path).chmod(mode)
    (machine / "etc/ssl").chmod(0o710)
    (machine / "etc/passwd").write_text("db:x:101:1::/var/lib/db:/x\n")
    (machine / "etc/group").write_text("")
    layers.mkdir()
    prepare(layers, machine=machine)
    assert (layers / "etc/vpn/key").is_char_device()
    assert not (layers / "etc/vpn/hint").exists()
    assert (layers / "etc/ssl").stat().st_mode & 0o777 == 0o710
    opaque = [path for path in ("etc/ssl", "var/lib/db", "var/log", "var/lib") if is_opaque(layers / path)]
    assert opaque == ["etc/ssl", "var/lib/db", "var/log"]
    assert [path.name for path in (layers / "var/log").iterdir()] == ["apt"]


def is_opaque(folder: Path) -> bool:
    return "trusted.overlay.opaque" in os.listxattr(folder)


def test_settings_say_what_is_wrong() -> None:
    for wrong, says in (
        ({"cores": "0", "cores_per_node": 1}, "not both"),
        ({"cores": "one"}, "0-3"),
        ({"link_rate": "fast"}, "10gbit"),
        ({"simulate_cpu": "z80"}, "sapphire-rapids"),
        ({"disk_mib": 1}, "at least 64"),
        ({"speed": 1}, "there are subnet, link_rate"),
    ):
        with pytest.raises(SettingsError, match=says):
            LocalSettings.from_mapping(wrong)


def test_cores_are_given_in_turn() -> None:
    in_turn = LocalSettings.from_mapping({"cores": ["0-1", "2,3"]})
    assert [in_turn.cores_of(index, ()) for index in range(3)] == ["0-1", "2,3", "0-1"]
    two_each = LocalSettings(cores_per_node=2)
    assert [two_each.cores_of(index, (0, 1, 2, 3)) for index in range(3)] == ["0,1", "2,3", "0,1"]
    assert LocalSettings().cores_of(0, (0, 1)) is None


def test_nodes_on_the_same_cores_share_them() -> None:
    indexes = {"n01": 0, "n02": 1}
    shared = cores_of_nodes(LocalSettings(), indexes)
    assert core_share("n01", shared) == 0.5
    assert core_share("n02", {"n01": "0", "n02": "1"}) == 1.0
    with pytest.raises(SettingsError, match="n01 cannot have cores 4095; this machine has 0"):
        cores_of_nodes(LocalSettings(cores="4095"), indexes)


def test_missing_programs_are_named_with_the_command_that_installs_them() -> None:
    def find(tool: str) -> str | None:
        return None if tool in ("sshd", "sudo") else tool

    with pytest.raises(ProviderError) as caught:
        requirements.check_tools(find)
    says = "local nodes need openssh-server and sudo: sudo apt-get install -y openssh-server sudo"
    assert str(caught.value) == says


def test_without_root_or_sudo_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(requirements, "find_tool", lambda name: None)
    with pytest.raises(ProviderError, match="run as root, or let sudo work without a password"):
        requirements.root_prefix()


def test_too_many_or_ill_named_nodes_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    cluster = LocalCluster(f"t{os.getpid()}", tmp_path)
    with pytest.raises(ProviderError, match="at most 250"):
        cluster.up(*names(251))
    with pytest.raises(ProviderError, match="cannot be a hostname"):
        cluster.up("../etc")
    with pytest.raises(ProviderError, match="named twice"):
        cluster.up("a", "a")
    assert not cluster.runtime().exists()


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="needs lscpu")
def test_lscpu_reads_the_simulated_cpu_and_that_it_is_simulated(tmp_path: Path) -> None:
    write_simulated_cpu(tmp_path, "sapphire-rapids")
    text = output("lscpu", "--sysroot", str(tmp_path))
    facts = {
        key.strip(): value.strip() for key, _, value in (row.partition(":") for row in text.splitlines())
    }
    assert facts["CPU(s)"] == "64"
    assert (facts["Thread(s) per core"], facts["Core(s) per socket"], facts["Socket(s)"]) == ("2", "32", "1")
    assert "simulated" in facts["Model name"]
    assert {"amx_bf16", "amx_tile", "amx_int8"} <= set(facts["Flags"].split())
    assert facts["L2 cache"] == "64 MiB (32 instances)"
    assert facts["NUMA node0 CPU(s)"] == "0-63"


# Real nodes from here on.

# 25 MB over one connection, and what the receiver saw of it in Mbit/s.
SERVE = """
import socket
there = socket.create_server(("", 7000)).accept()[0]
there.recv(1)
there.sendall(bytes(25 * 10**6))
"""
FETCH = """
import socket, sys, time
there = socket.create_connection((sys.argv[1], 7000))
there.sendall(b"x")
begun, count = time.time(), 0
while data := there.recv(1 << 20):
    count += len(data)
print(count * 8 / (time.time() - begun) / 1e6)
"""


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def new_cluster(own_cache: None, tmp_path: Path) -> Iterator[Callable[[str], LocalCluster]]:
    made: list[LocalCluster] = []

    def make(suffix: str) -> LocalCluster:
        made.append(LocalCluster(f"test-{os.getpid()}-{suffix}", tmp_path))
        return made[-1]

    yield make
    for cluster in made:
        cluster.destroy()
        assert_nothing_left(cluster)


def assert_nothing_left(cluster: LocalCluster) -> None:
    """No process, link, mount or folder; the machine may hold clusters of others meanwhile."""
    runtime = str(cluster.runtime())
    assert supervisors(runtime) == []
    assert not Path("/sys/class/net", network.link_name(runtime, "up")).exists()
    assert runtime not in Path("/proc/mounts").read_text()
    assert not cluster.runtime().exists()


@pytest.fixture
def cluster(new_cluster: Callable[[str], LocalCluster]) -> LocalCluster:
    return new_cluster("one")


@pytest.fixture(scope="module")
def pair(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes with every setting, shared by tests that leave them as they were."""
    cluster = LocalCluster(f"test-{os.getpid()}-pair", tmp_path_factory.mktemp("pair"))
    settings = {"link_rate": "200mbit", "cores": "0", "simulate_cpu": "sapphire-rapids", "disk_mib": 256}
    try:
        cluster.up(*names(2), **settings)
        yield cluster
    finally:
        cluster.destroy()


class TestRealNodes:
    pytestmark = needs_nodes

    def test_node_is_a_host_of_its_own(self, pair: LocalCluster) -> None:
        node = pair.nodes[1]
        who = (
            "id -un; hostname; cat /etc/hostname; getent hosts n02 | cut -d' ' -f1; sudo -n id -u; echo $LANG"
        )
        assert pair.ssh(node, who).split() == ["ubuntu", "n02", "n02", node.address, "0", "C.UTF-8"]
        assert (
            pair.ssh(node, "ip route show default; ip -brief link | cut -d@ -f1 | cut -d' ' -f1")
            == "lo\neth0"
        )

    def test_progress_tells_start_and_end_of_each_node(self, pair: LocalCluster) -> None:
        assert sorted(pair.seen[:4]) == [(name, what) for name in names(2) for what in ("ready", "starting")]

    def test_node_sees_its_own_processes_only(self, pair: LocalCluster) -> None:
        rows = pair.ssh(pair.nodes[0], "ps -eo pid=,args=").splitlines()
        assert rows[0].split() == ["1", "/bin/sh", "/run/clusterctl/init"]
        assert len(rows) < 12

    def test_orphans_are_reaped(self, pair: LocalCluster) -> None:
        pair.ssh(pair.nodes[0], "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done; sleep 0.3")
        assert "Z" not in pair.ssh(pair.nodes[0], "ps -eo stat=")

    def test_people_and_secrets_of_the_machine_are_hidden(self, pair: LocalCluster, tmp_path: Path) -> None:
        node = pair.nodes[0]
        assert pair.ssh(node, "ls /home; sudo ls -A /root /tmp /var/tmp /srv /media") == (
            "ubuntu\n/media:\n\n/root:\n\n/srv:\n\n/tmp:\n\n/var/tmp:"
        )
        tops = set(pair.ssh(node, "ls /").split())
        assert tops <= {*SYSTEM_FOLDERS, *FRESH}
        assert pair.ssh(node, "sudo cut -d: -f2 /etc/shadow | sort -u") == "*"
        assert pair.ssh(node, "sudo cat /etc/ssh/*_key.pub | wc -l; sudo ls /etc/sudoers.d").split() == [
            "1", "90-cloud-init-users",
        ]  # fmt: skip
        pair.ssh(node, f"sudo ls {tmp_path}", expect=2)
        opened = pair.ssh(node, "cat /proc/mounts; sudo ls -l /proc/1/fd /proc/1/cwd /proc/1/root")
        assert str(Path.cwd()) not in opened

    def test_what_a_node_writes_stays_in_it(self, pair: LocalCluster) -> None:
        status = Path("/var/lib/dpkg/status")
        before = (status.stat().st_size, status.stat().st_mtime_ns)
        files = "/var/lib/dpkg/status /etc/motd /usr/bin/from-a-node"
        pair.ssh(pair.nodes[0], f"echo x | sudo tee -a {files} >/dev/null; touch /tmp/mine")
        assert pair.ssh(pair.nodes[0], "tail -n1 /var/lib/dpkg/status; cat /usr/bin/from-a-node") == "x\nx"
        assert (status.stat().st_size, status.stat().st_mtime_ns) == before
        assert not Path("/usr/bin/from-a-node").exists()
        assert pair.ssh(pair.nodes[1], "ls /usr/bin/from-a-node /tmp/mine 2>&1 | grep -c 'No such'") == "2"

    def test_settings_of_the_machines_kernel_are_read_only(self, pair: LocalCluster) -> None:
        pair.ssh(pair.nodes[0], "cat /proc/sys/vm/swappiness | sudo tee /proc/sys/vm/swappiness", expect=1)
        pair.ssh(pair.nodes[0], "sudo date -s '2001-01-01'", expect=1)
        pair.ssh(pair.nodes[0], "cat /proc/sys/net/core/somaxconn | sudo tee /proc/sys/net/core/somaxconn")

    def test_only_keys_open_the_door(self, pair: LocalCluster) -> None:
        node = pair.nodes[0]
        argv = ["ssh", "-F", "none", "-i", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentityAgent=none",
                "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                f"ubuntu@{node.address}", "true"]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 255
        assert "Permission denied (publickey)" in done.stderr

    def test_name_look_ups_fail_at_once(self, pair: LocalCluster) -> None:
        begun = time.monotonic()
        pair.ssh(pair.nodes[0], "getent hosts example.com", expect=2)
        assert time.monotonic() - begun < 3

    def test_stack_store_is_seen_live_and_read_only(self, pair: LocalCluster) -> None:
        (stack_store() / "hello").write_text("built outside\n")
        folder = "/opt/clusterctl/stacks"
        assert pair.ssh(pair.nodes[1], f"cat {folder}/hello") == "built outside"
        pair.ssh(pair.nodes[1], f"sudo touch {folder}/x", expect=1)

    def test_cores_bind_everything_in_the_node(self, pair: LocalCluster) -> None:
        assert pair.ssh(pair.nodes[0], "nproc") == "1"
        assert pair.ssh(pair.nodes[0], "sudo taskset -cp 1").endswith(": 0")
        assert [node.core_share for node in pair.nodes] == [0.5, 0.5]

    def test_lscpu_in_a_node_shows_the_simulated_cpu(self, pair: LocalCluster) -> None:
        text = pair.ssh(pair.nodes[0], "lscpu; cat /run/clusterctl/simulated-cpu")
        assert "(simulated)" in text
        assert "amx_tile" in text
        assert text.endswith("sapphire-rapids")
        pair.ssh(pair.nodes[0], "echo x | sudo tee /proc/cpuinfo", expect=1)

    def test_disk_is_bounded_for_the_node_alone(self, pair: LocalCluster) -> None:
        pair.ssh(pair.nodes[0], "head -c 400M /dev/zero > /tmp/big 2>/dev/null", expect=1)
        pair.ssh(pair.nodes[1], "head -c 50M /dev/zero > /tmp/big && rm /tmp/big")
        pair.ssh(pair.nodes[0], "rm /tmp/big")

    def test_link_rate_holds_between_nodes(self, pair: LocalCluster) -> None:
        one, two = pair.nodes
        pair.ssh(one, f"nohup /usr/bin/python3 -c '{SERVE}' >/dev/null 2>&1 & sleep 0.3")
        rate_mbit = float(pair.ssh(two, f"/usr/bin/python3 -c '{FETCH}' {one.address}"))
        assert 40 < rate_mbit < 215  # the lower end is for a busy machine
        assert "rate 200Mbit" in pair.ssh(two, "tc qdisc show dev eth0")

    def test_create_again_makes_nothing_twice(self, pair: LocalCluster) -> None:
        pid, before, told = pair.supervisor_pid(), pair.nodes, len(pair.seen)
        assert pair.up(*names(2), cores="0") == before
        assert (pair.supervisor_pid(), len(pair.seen)) == (pid, told)

    def test_growing_and_shrinking_leave_the_others_alone(self, cluster: LocalCluster) -> None:
        one = cluster.up("n01")[0]
        cluster.ssh(one, "echo kept > /tmp/kept")
        grown = cluster.up(*names(3))
        assert (grown[0].provider_id, grown[0].host_keys) == (one.provider_id, one.host_keys)
        assert [node.address.split(".")[-1] for node in grown] == ["2", "3", "4"]
        cluster.remove("n02", "n02", "never-was")
        assert cluster.states() == [RUNNING, GONE, RUNNING]
        assert cluster.ssh(one, "cat /tmp/kept") == "kept"
        again = cluster.up(*names(4))
        assert [node.address.split(".")[-1] for node in again] == ["2", "3", "4", "5"]
        assert again[1].host_keys != grown[1].host_keys

    def test_node_whose_sshd_was_killed_is_stopped_and_revived_with_its_disk(
        self, cluster: LocalCluster
    ) -> None:
        one, two = cluster.up(*names(2))
        cluster.ssh(
            one, "echo kept > ~/kept; sudo kill -9 $(pgrep -o sshd) && sudo pkill -9 sshd", expect=255
        )
        assert eventually(lambda: cluster.states() == [STOPPED, RUNNING])
        revived = cluster.up(*names(2))
        assert (revived[0].address, revived[0].host_keys) == (one.address, one.host_keys)
        assert revived[1] == two
        assert cluster.ssh(revived[0], "cat ~/kept") == "kept"

    def test_node_that_died_is_revived(self, cluster: LocalCluster) -> None:
        one = cluster.up("n01")[0]
        os.kill(int(one.provider_id or 0), signal.SIGKILL)
        assert eventually(lambda: cluster.states() == [STOPPED])
        revived = cluster.up("n01")[0]
        assert cluster.ssh(revived, "hostname") == "n01"
        assert revived.provider_id != one.provider_id

    def test_nothing_is_left_when_the_supervisor_is_killed(self, cluster: LocalCluster) -> None:
        before = cluster.up(*names(2))
        os.kill(cluster.supervisor_pid(), signal.SIGKILL)
        begun = time.monotonic()
        assert cluster.states() == [GONE, GONE]
        assert time.monotonic() - begun < 2
        assert eventually(lambda: not any(Path(f"/proc/{node.provider_id}").exists() for node in before))
        uplink = network.link_name(str(cluster.runtime()), "up")
        assert eventually(lambda: not Path("/sys/class/net", uplink).exists())
        assert str(cluster.runtime()) not in Path("/proc/mounts").read_text()
        route = subprocess.run(
            ["ip", "route", "get", before[0].address], capture_output=True, text=True, check=False
        )
        assert "No route to host" in route.stderr or "unreachable" in route.stdout
        after = cluster.up(*names(2))
        assert [node.address for node in after] == [node.address for node in before]
        assert [node.host_keys for node in after] != [node.host_keys for node in before]
        assert cluster.ssh(after[1], "hostname") == "n02"

    def test_destroy_leaves_nothing_also_without_a_supervisor_and_twice(self, cluster: LocalCluster) -> None:
        nodes = cluster.up("n01")
        subnet = str(IPv4Network(f"{nodes[0].address}/24", strict=False))
        assert subnet in output("ip", "route", "show", "type", "unreachable")
        os.kill(cluster.supervisor_pid(), signal.SIGKILL)
        cluster.destroy()
        assert subnet not in output("ip", "route", "show", "table", "all")
        assert not cluster.runtime().exists()
        assert cluster.states() == [GONE]
        cluster.destroy()
        cluster.remove("n01")

    def test_stuck_supervisor_is_named_by_find_and_ended_by_destroy(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster.up("n01")
        monkeypatch.setattr("provision.providers.local.FIND_TIMEOUT_S", 0.3)
        os.kill(cluster.supervisor_pid(), signal.SIGSTOP)
        with pytest.raises(ProviderError, match="does not answer"):
            cluster.states()
        cluster.destroy()
        assert cluster.states() == [GONE]

    def test_two_clusters_that_start_at_once_do_not_meet(
        self, new_cluster: Callable[[str], LocalCluster]
    ) -> None:
        one = new_cluster("one")
        pid, wish = os.getpid(), zlib.crc32(one.name.encode()) % 512
        same = (str(at) for at in range(100_000) if zlib.crc32(f"test-{pid}-{at}".encode()) % 512 == wish)
        two = new_cluster(next(same))  # looks for its subnet where the first one does
        make_key(one.folder)
        threads = [threading.Thread(target=cluster.up, args=names(2)) for cluster in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert one.states() == two.states() == [RUNNING, RUNNING]
        assert not {node.address for node in one.nodes} & {node.address for node in two.nodes}
        one.destroy()
        assert two.states() == [RUNNING, RUNNING]
        assert two.ssh(two.nodes[1], "hostname") == "n02"

    def test_subnet_of_another_cluster_or_the_machine_is_refused(
        self, pair: LocalCluster, new_cluster: Callable[[str], LocalCluster]
    ) -> None:
        other = new_cluster("other")
        taken = str(IPv4Network(f"{pair.nodes[0].address}/24", strict=False))
        with pytest.raises(ProviderError, match=f"subnet {taken} is in use by"):
            other.up("n01", subnet=taken)
        other.destroy()
        assert pair.states() == [RUNNING, RUNNING]

    def test_standing_cluster_does_not_move_to_another_subnet(self, pair: LocalCluster) -> None:
        with pytest.raises(ProviderError, match="destroy it first to move it"):
            pair.up(*names(2), subnet="10.201.77.0/24")

    def test_wanted_subnet_is_used(self, cluster: LocalCluster) -> None:
        assert cluster.up("n01", subnet="198.19.255.0/29")[0].address == "198.19.255.2"
        with pytest.raises(ProviderError, match="room for 5 nodes"):
            cluster.up(*names(6))
        assert cluster.states() == [RUNNING]

    def test_node_that_cannot_start_is_named_with_its_last_words_and_forgotten(
        self, cluster: LocalCluster
    ) -> None:
        cluster.up("n01")
        settings = {"cores": "4095", "disk_mib": 64}
        with pytest.raises(ProviderError, match=r"n02 did not start: taskset: .*affinity"):
            control.ask(cluster.name, do="start", node="n02", public_key="", settings=settings)
        cluster.up(*names(2))
        assert cluster.states() == [RUNNING, RUNNING]

    def test_interrupted_create_is_found_by_create_and_destroy(self, cluster: LocalCluster) -> None:
        def interrupt(name: str, what: str) -> None:
            raise KeyboardInterrupt

        cluster.progress = interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            cluster.up(*names(2))
        del cluster.progress
        cluster.destroy()
        assert not cluster.runtime().exists()

    def test_nodes_reach_each_other(self, pair: LocalCluster) -> None:
        one, two = pair.nodes
        greeting = pair.ssh(one, f"exec 3<>/dev/tcp/{two.address}/22; head -c 4 <&3")
        assert greeting == "SSH-"

    def test_many_log_in_at_once(self, pair: LocalCluster) -> None:
        pids: list[str] = []
        threads = [
            threading.Thread(target=lambda: pids.append(pair.ssh(pair.nodes[0], "echo $$")))
            for _ in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(pids)) == 24


def test_destroy_and_find_of_a_cluster_that_never_was_need_no_root() -> None:
    never = Cluster("never-was", "local", ())
    LocalProvider().destroy(never, lambda name, what: None)
    assert LocalProvider().find(never).states == {}


def test_cluster_name_that_leaves_its_folder_is_refused() -> None:
    with pytest.raises(ProviderError, match="cluster name"):
        control.runtime_dir("../../etc")

"""EC2 clusters, on a simulated EC2: a real API over HTTP, a real host behind each instance, real ssh."""

from __future__ import annotations

import json
import shutil
import signal
import time

import pytest
import yaml

from tests.ec2_command import Ec2Command
from tests.local_nodes import needs_nodes

pytestmark = needs_nodes


def test_a_cluster_grows_shrinks_and_vanishes(ec2: Ec2Command) -> None:
    ec2.up()
    before = ec2.instances()
    assert ec2.on("node1", "hostname; cat ~/hosts | tail -n +2").split()[1:] == ["node1", "node2"]
    assert ec2.on("node1", "ssh node2 hostname").startswith("ip-172-31-")
    ec2.ok("up", "--nodes", "3")
    assert ec2.instances().items() > before.items()
    assert ec2.on("node1", "ssh node3 echo there") == "there\n"
    ec2.ok("up", "--nodes", "1", "--yes")
    assert ec2.instances() == {"node1": before["node1"]}
    assert ec2.world.resources()["instances"] == [before["node1"]]
    ec2.ok("down", "--yes")
    assert ec2.world.resources() == {}


def test_up_again_changes_nothing_and_makes_nothing(ec2: Ec2Command) -> None:
    ec2.up()
    before = ec2.instances()
    ec2.world.reset_calls()
    out = ec2.up()
    assert ec2.instances() == before
    assert "changed" not in out.split("PLAY RECAP")[0]
    assert all(action.startswith(("Describe", "GetCallerIdentity")) for action in ec2.world.calls())


def test_everything_is_tagged_by_the_call_that_makes_it_and_instances_are_guarded(ec2: Ec2Command) -> None:
    ec2.write_inventory(nodes=1, tags={"project": "qa"})
    ec2.up()
    assert "CreateTags" not in ec2.world.calls()
    instance = ec2.instances()["node1"]
    without_token = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://169.254.169.254/latest/"]
    assert ec2.world.exec(instance, *without_token) == "401"


def test_calls_do_not_grow_with_the_nodes(ec2: Ec2Command) -> None:
    """But GetConsoleOutput, of which EC2 has one for each, and the looks while instances start."""
    ec2.up("--nodes", "1")
    few = ec2.world.calls()
    ec2.ok("down", "--yes")
    ec2.world.reset_calls()
    ec2.up("--nodes", "5")
    many = ec2.world.calls()
    for counts in (few, many):
        del counts["GetConsoleOutput"], counts["DescribeInstances"]
    assert many == few


def test_dry_run_says_what_it_costs_and_makes_nothing(ec2: Ec2Command) -> None:
    out = ec2.up("--dry-run", "--nodes", "3")
    assert "would make node1, node2, node3" in out
    assert "an hour for 3 nodes" in out
    assert ec2.world.resources() == {}
    assert not ec2.state.exists()


def test_host_keys_are_the_hosts_own_and_no_two_alike(ec2: Ec2Command) -> None:
    ec2.up()
    keys = [line.split()[2] for line in (ec2.state / "known_hosts").read_text().splitlines()]
    shown = [
        ec2.on(name, "cut -d' ' -f2 /etc/ssh/ssh_host_ed25519_key.pub").strip() for name in ("node1", "node2")
    ]
    assert keys == shown
    assert len(set(keys)) == 2


def test_only_the_operator_reaches_port_22_and_only_the_group_the_rest(ec2: Ec2Command) -> None:
    import subprocess

    ec2.up()
    record = yaml.safe_load((ec2.state / "record.yml").read_text())["all"]["hosts"]
    public, private = record["node1"]["ansible_host"], record["node1"]["clusterctl_private_address"]
    ec2.on("node1", "nohup python3 -m http.server 8080 --bind 0.0.0.0 >/dev/null 2>&1 & sleep 1")

    def reaches(prefix: tuple[str, ...], port: int) -> bool:
        code = f"import socket; socket.create_connection(('{public}', {port}), 2)"
        return subprocess.run([*prefix, "python3", "-c", code], capture_output=True).returncode == 0

    assert reaches(ec2.world.operator(), 22)
    assert not reaches(ec2.world.operator(), 8080)
    assert not reaches(ec2.world.stranger(), 22)
    assert not reaches(ec2.world.stranger(), 8080)
    inside = f"python3 -c \"import socket; socket.create_connection(('{private}', 8080), 2)\""
    ec2.on("node2", inside)


def test_tags_are_enough_when_this_machine_has_forgotten(ec2: Ec2Command) -> None:
    ec2.up()
    before = ec2.instances()
    shutil.rmtree(ec2.state)
    seen = json.loads(ec2("status", "--region", "us-east-1", "--json").out)
    assert [node["state"] for node in seen[0]["nodes"]] == ["running", "running"]
    refused = ec2("up", "-i", str(ec2.inventory))
    assert refused.code == 2
    assert "does not have the key that opens it" in refused.error_line
    assert sorted(ec2.world.resources()["instances"]) == sorted(before.values())
    ec2.up("--yes")
    assert set(ec2.instances().values()).isdisjoint(before.values())
    shutil.rmtree(ec2.state)
    ec2.ok("down", "--yes")
    assert ec2.world.resources() == {}


def test_ls_finds_clusters_in_every_region_and_gc_only_what_is_left_over(ec2: Ec2Command) -> None:
    ec2.up("--nodes", "1")
    found = json.loads(ec2.ok("ls", "--all-regions", "--json"))
    assert [(each["name"], each["region"], each["leftover"]) for each in found] == [
        (ec2.name, "us-east-1", None)
    ]
    assert json.loads(ec2.ok("gc", "--yes", "--json").splitlines()[-1])["removed"] == []
    ec2.world.fault("TerminateInstances", "UnauthorizedOperation", times=0)
    assert ec2.world.resources()["instances"]


def test_an_expired_cluster_ends_by_itself_and_gc_removes_the_rest(ec2: Ec2Command) -> None:
    ec2.up("--nodes", "1")
    assert "ends by itself at" in ec2("status").out
    ec2.ok("extend", "0.05m")
    deadline = time.monotonic() + 30
    while ec2.world.resources().get("instances"):
        assert time.monotonic() < deadline, "the node did not power itself off"
        time.sleep(0.5)
    ended = ec2("status")
    assert ended.code == 1
    assert "gone" in ended.out
    # Young leftovers may be an `up` at work: gc leaves them to their owner's down.
    assert json.loads(ec2.ok("gc", "--yes", "--json").splitlines()[-1])["removed"] == []


def test_extend_moves_the_end_on_the_node_and_in_the_tags(ec2: Ec2Command) -> None:
    ec2.up("--nodes", "1")
    told = json.loads(ec2.ok("extend", "3d", "--json"))["ends_at_s"]
    assert float(ec2.on("node1", "cat /etc/clusterctl/ends-at")) == pytest.approx(told, abs=1)
    assert json.loads(ec2.ok("ls", "--json"))[0]["ends_at_s"] == pytest.approx(told, abs=1)


def test_a_dead_node_is_replaced_and_a_silent_one_rebooted(ec2: Ec2Command) -> None:
    ec2.up()
    before = ec2.instances()
    ec2.world.exec(
        before["node2"], "python3", "-c", "import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)", expect=None
    )
    deadline = time.monotonic() + 10
    while before["node2"] in ec2.world.resources().get("instances", []):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    ec2.up()
    after = ec2.instances()
    assert after["node1"] == before["node1"]
    assert after["node2"] != before["node2"]
    ec2.world.exec(after["node2"], "pkill", "sshd", expect=None)
    out = ec2.up()
    assert "does not answer: rebooting" in out
    assert ec2.instances() == after


def test_replace_makes_a_node_anew(ec2: Ec2Command) -> None:
    ec2.up()
    before = ec2.instances()
    ec2.ok("up", "--replace", "node2", "--yes")
    after = ec2.instances()
    assert (after["node1"] == before["node1"], after["node2"] == before["node2"]) == (True, False)


def test_bake_starts_the_others_from_an_image_of_the_head(ec2: Ec2Command) -> None:
    ec2.up("--bake", "--nodes", "2")
    listed = json.loads(ec2.ok("images", "--json"))["images"]
    assert [image["state"] for image in listed] == ["available"]
    assert ec2.on("node1", "ssh node2 echo there") == "there\n"
    # node2 started from the head's image, and has neither its private mesh key nor its host key.
    assert "clusterctl_mesh" not in ec2.on("node2", "ls ~/.ssh")
    assert ec2.on("node2", "cat /etc/hosts").count("node1") == 1
    assert ec2.on("node2", "grep -c ssh- ~/.ssh/authorized_keys").strip() == "2"
    ec2.ok("down", "--yes", "--images")
    assert ec2.world.resources() == {}


# What goes wrong. Each: one clear line, an exit code, nothing leaked (the fixture looks).


def refused(ec2: Ec2Command, *args: str) -> str:
    ended = ec2("up", "-i", str(ec2.inventory), *args)
    assert ended.code != 0, ended.out
    return ended.err


def test_throttling_is_waited_out(ec2: Ec2Command) -> None:
    ec2.world.fault("*", "RequestLimitExceeded", status=503, times=4)
    ec2.up("--nodes", "1")


def test_what_was_just_made_may_not_be_known_yet(ec2: Ec2Command) -> None:
    ec2.world.fault("RunInstances", "InvalidGroup.NotFound", times=1)
    ec2.world.fault("DescribeInstances", "InvalidInstanceID.NotFound", times=2, after=1)
    ec2.up("--nodes", "1")


def test_no_capacity_in_one_zone_tries_the_next(ec2: Ec2Command) -> None:
    ec2.world.fault("RunInstances", "InsufficientInstanceCapacity", times=2)
    out = ec2.up("--nodes", "2")
    assert out.count("no capacity for 2 x m7i.large in us-east-1") == 2


def test_no_capacity_anywhere_names_what_was_tried(ec2: Ec2Command) -> None:
    ec2.write_inventory(instance_type=["m7i.large", "c7i.large"])
    ec2.world.fault("RunInstances", "InsufficientInstanceCapacity", times=99)
    said = refused(ec2)
    assert "m7i.large in us-east-1a" in said
    assert "c7i.large in us-east-1f" in said or "c7i.large in us-east-1" in said
    assert "instances" not in ec2.world.resources()


def test_no_permission_names_the_call_and_nothing_is_made(ec2: Ec2Command) -> None:
    ec2.world.fault("DescribeInstances", "UnauthorizedOperation", status=403)
    assert "permission for DescribeInstances" in refused(ec2)
    assert not ec2.state.exists()


def test_no_permission_halfway_is_one_line_and_down_removes_the_half(ec2: Ec2Command) -> None:
    ec2.world.fault("RunInstances", "UnauthorizedOperation", status=403)
    assert "permission for RunInstances" in refused(ec2)
    assert "security groups" in ec2.world.resources()


def test_an_expired_session_says_log_in_again(ec2: Ec2Command) -> None:
    ec2.world.fault("*", "RequestExpired", times=50)
    assert "expired: log in again" in refused(ec2)


def test_no_default_vpc_says_what_to_name(ec2: Ec2Command) -> None:
    ec2.write_inventory(vpc="vpc-0123456789abcdef0")
    assert "name a subnet" in refused(ec2)
    assert not ec2.state.exists()


def test_an_instance_that_dies_at_its_start_is_named_and_replaced(ec2: Ec2Command) -> None:
    ec2.world.next_boot("dies")
    said = refused(ec2)
    assert "Internal error" in said
    ec2.up()
    assert len(ec2.instances()) == 2


def test_an_sshd_that_never_comes_is_named_with_its_console(ec2: Ec2Command) -> None:
    ec2.write_inventory(boot_timeout_s=4)
    ec2.world.next_boot("no-sshd")
    said = refused(ec2)
    assert "no sshd answers" in said
    assert "console" in said
    assert len(ec2.world.resources()["instances"]) == 2
    silent = [name for name in ("node1", "node2") if said.startswith(f"clusterctl: {name}:")]
    ec2.ok("up", "--replace", *silent, "--yes")


def test_a_wrong_host_key_on_first_contact_is_refused_loudly(ec2: Ec2Command) -> None:
    ec2.world.next_boot("wrong-host-key")
    said = refused(ec2)
    assert "host key" in said
    assert "--replace" in said


def test_down_waits_for_what_still_depends(ec2: Ec2Command) -> None:
    ec2.up("--nodes", "1")
    ec2.world.fault("DeleteSecurityGroup", "DependencyViolation", times=2)
    ec2.ok("down", "--yes")
    assert ec2.world.resources() == {}


def test_down_without_permission_names_what_is_billed_and_exits_1(ec2: Ec2Command) -> None:
    ec2.up("--nodes", "1")
    ec2.world.fault("TerminateInstances", "UnauthorizedOperation", status=403)
    ended = ec2("down", "--yes")
    assert ended.code == 1
    assert f"still billed: {ec2.instances()['node1']}" in ended.err


@pytest.mark.parametrize("after_s", [0.6, 1.0, 1.4, 1.9])
def test_up_killed_at_any_moment_leaks_nothing(ec2: Ec2Command, after_s: float) -> None:
    _killed(ec2, after_s, "up", "-i", str(ec2.inventory))
    ec2.ok("down", "--yes")
    assert ec2.world.resources() == {}


@pytest.mark.parametrize("after_s", [0.8, 1.5])
def test_up_killed_and_forgotten_leaks_nothing(ec2: Ec2Command, after_s: float) -> None:
    _killed(ec2, after_s, "up", "-i", str(ec2.inventory))
    shutil.rmtree(ec2.state, ignore_errors=True)
    ec2.ok("down", "--yes")
    assert ec2.world.resources() == {}


@pytest.mark.parametrize("after_s", [0.8, 1.5])
def test_up_goes_on_after_a_kill_and_makes_nothing_twice(ec2: Ec2Command, after_s: float) -> None:
    _killed(ec2, after_s, "up", "-i", str(ec2.inventory))
    ec2.up()
    assert sorted(ec2.world.resources()["instances"]) == sorted(ec2.instances().values())
    assert len(ec2.instances()) == 2


@pytest.mark.slow
def test_up_and_down_killed_at_twenty_random_moments(ec2: Ec2Command) -> None:
    import random

    for _ in range(20):
        _killed(ec2, random.uniform(0.2, 4), "up", "-i", str(ec2.inventory))
        if random.random() < 0.3:
            shutil.rmtree(ec2.state, ignore_errors=True)
        _killed(ec2, random.uniform(0.2, 2), "down", "--yes")
        ec2.ok("down", "--yes")
        assert ec2.world.resources() == {}


def _killed(ec2: Ec2Command, after_s: float, *args: str) -> None:
    process = ec2.start(*args)
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_ctrl_c_ends_up_cleanly_and_the_next_goes_on(ec2: Ec2Command) -> None:
    process = ec2.start("up", "-i", str(ec2.inventory))
    time.sleep(1.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    ec2.up()
    assert len(ec2.instances()) == 2


def test_a_spot_notice_reaches_the_node(ec2: Ec2Command) -> None:
    ec2.write_inventory(nodes=1, spot=True)
    ec2.up()
    ec2.world.interrupt(ec2.instances()["node1"], notice_s=60)
    seen = ec2.on("node1", "for i in 1 2 3 4 5 6 7 8; do cat /run/clusterctl/notice && break; sleep 1; done")
    assert json.loads(seen)["reason"] == "spot interruption"


@pytest.mark.slow
def test_a_spot_interruption_is_survived(ec2: Ec2Command) -> None:
    """Notice, checkpoint, a new node in the old one's place, and on from the checkpoint to the end."""
    ec2.write_inventory(nodes=2, spot=True)
    ec2.up()
    before = ec2.instances()
    process = ec2.start("train", "run_qa", "--replace", "--", "--max_steps", "60")
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step ") and "interrupted" not in lines:
            lines.append("interrupted")
            ec2.world.interrupt(before["node2"], notice_s=45)
    assert process.wait() == 0, "".join(lines)
    after = ec2.instances()
    assert after["node1"] == before["node1"]
    assert after["node2"] != before["node2"]
    assert "making new nodes, and going on" in "".join(lines)
    assert "EM" in "".join(lines)

"""What goes wrong on real nodes while playbooks run: one clear line each, and the others go on."""

from __future__ import annotations

import re
import time

import pytest

from tests.local_nodes import needs_nodes

pytestmark = needs_nodes

NODES = ("node1", "node2", "node3", "node4", "node5", "node6", "node7")

# Every node's own fault; node1, the head, and node7 have none.
FAULTS = {
    "node2": "echo 'ubuntu ALL=(ALL) ALL' | sudo tee /etc/sudoers.d/* > /dev/null",
    "node3": "sudo sed -i '/node1/d' /etc/hosts; sudo dd if=/dev/zero of=/fill bs=1M 2> /dev/null; true",
    "node4": "sudo sh -c 'rm /etc/ssh/ssh_host_ed25519_key*; "
    'ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key; pkill -HUP -o -x sshd\'',
    "node5": "printf 'echo WILLKOMMEN; echo @@probe 3\\nexport LC_ALL=de_DE.UTF-8 LANGUAGE=de\\n' > /tmp/rc; "
    "cat /tmp/rc ~/.bashrc > /tmp/both 2> /dev/null; cp /tmp/both ~/.bashrc; cp /tmp/rc ~/.profile; "
    "sudo cp /tmp/rc /etc/profile.d/welcome.sh; sudo sh -c 'echo LANG=de_DE.UTF-8 >> /etc/environment'",
    "node6": 'printf \'#!/bin/sh\\n/usr/bin/date -d "1 hour ago" "$@"\\n\' | '
    "sudo install -m 755 /dev/stdin /usr/local/bin/date",
}
LINES = {
    "node2": r"node2: facts: gather: sudo refuses ubuntu \(.*password.*\); it needs `ubuntu ALL=",
    "node3": r"node3: base: block \S+ in /etc/hosts: .*No space left on device",
    "node4": r"node4: facts: gather: its host key is not the one recorded for .*",
    "node6": r"node6: base: clock: its clock is 3[56]\d\d s behind this machine's; set its clock",
}


def failures(out: str) -> list[str]:
    return [line.removeprefix("failed: ") for line in out.splitlines() if re.match(r"failed: \w", line)]


@pytest.fixture
def small(own):
    """Seven nodes whose disks are soon full."""
    inventory = own.home / "small.yml"
    inventory.write_text(
        f"all: {{vars: {{clusterctl: {{name: {own.name}, nodes: {len(NODES)}, local: {{disk_mib: 64}}}}}}}}\n"
    )
    own.ok("up", "-i", str(inventory))
    return own


def test_each_fault_is_one_line_and_the_others_are_made_right(small):
    for node in ("node1", "node5", "node7"):
        small.on(node, "sudo rm /etc/security/limits.d/50-clusterctl.conf")
    for node, fault in FAULTS.items():
        small.on(node, fault)

    ended = small("playbook", "run", "site")

    assert ended.code == 1
    told = failures(ended.out)
    assert len(told) == len(LINES), told
    for node, line in LINES.items():
        assert any(re.match(line, each) for each in told), (node, told)
    assert sorted(re.findall(r"^changed: \[(\w+)\]", ended.out, re.MULTILINE)) == ["node1", "node5", "node7"]
    recap = dict(re.findall(r"^(\w+) +: (.*)$", ended.out, re.MULTILINE))
    assert all("unreachable=1" in recap[node] for node in ("node2", "node4"))
    assert all("unreachable=0    failed=0" in recap[node] for node in ("node1", "node5", "node7"))
    assert "failed" not in ended.err
    assert "sudo: " in small.ok("log", "node2", "--last", "1")


UNPLUG = """
from dataclasses import dataclass
from provision.steps import TextFile

@dataclass(frozen=True)
class Unplug:
    name: str = "slow work"
    probe: str = ""

    def drift(self, actual):
        return "to be done"

    def apply(self, host):
        down = "for each in /sys/class/net/*; do ip link set ${each##*/} down; done; sleep 300"
        host.run(down, sudo=True)

def steps(node, cluster, facts):
    first = [Unplug()] if node.name == "node2" else []
    return [*first, TextFile("/etc/motd-clusterctl", "hello\\n")]
"""


def test_a_node_that_is_unplugged_in_the_middle_of_a_step_is_named_in_time(own):
    own.ok("up", "--nodes", "3")
    path = own.home / "unplug.py"
    path.write_text(UNPLUG)

    started = time.monotonic()
    ended = own("playbook", "run", f"{path},base", "--json")
    took = time.monotonic() - started

    assert ended.code == 1
    assert 5 < took < 35, took
    recap = own_recap(ended.out)
    (line,) = recap["failed"]
    assert re.match(r"node2: unplug: slow work: connection lost", line)
    assert [recap["recap"][node]["failed"] for node in ("node1", "node2", "node3")] == [0, 1, 0]
    assert recap["recap"]["node3"]["ok"] == 5
    assert "connection lost" in own.ok("log", "node2", "--last", "1")


def own_recap(out: str):
    import json

    return json.loads(out.splitlines()[-1])

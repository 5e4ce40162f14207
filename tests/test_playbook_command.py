"""`playbook list`, `show` and `run`, `log`, and the same playbooks through the real `fab`, on real nodes."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local_nodes import needs_nodes

pytestmark = needs_nodes

ROOT = Path(__file__).parents[1]
FAB = Path(sys.executable).parent / "fab"

MOTD = """
from provision.steps.files import TextFile

TAGS = ("greeting",)

def steps(node, cluster, facts):
    return [TextFile("/etc/motd-clusterctl", f"{node.name} of {len(cluster.nodes)}\\n")]
"""


@pytest.fixture
def motd(cluster):
    path = cluster.home / "motd.py"
    path.write_text(MOTD)
    yield path
    for node in ("node1", "node2", "node3"):
        cluster.on(node, "sudo rm -f /etc/motd-clusterctl")


def recap(out):
    """Node -> its counts."""
    rows = re.findall(r"^(\S+) +: (ok=.*)$", out, re.MULTILINE)
    return {
        node: {k: int(v) for k, v in (cell.split("=") for cell in counts.split())} for node, counts in rows
    }


def test_list_has_the_site_in_order(cluster):
    names = [each["name"] for each in cluster.json("playbook", "list")]

    assert names[:3] == ["base", "ssh_mesh_key", "ssh_mesh"]
    assert "PLAYBOOK" in cluster.ok("playbook", "list")


def test_show_says_what_each_step_wants_of_which_node(cluster):
    out = cluster.ok("playbook", "show", "ssh_mesh")

    assert "on node1:\n  1. directory /home/ubuntu/.ssh" in out
    assert "A directory with its owner and mode" in out
    assert "on node2, node3, when node1 has done what comes before:" in out
    shown = cluster.json("playbook", "show", "ssh_mesh")
    assert [len(each["steps"]) for each in shown["nodes"]] == [5, 3, 3]


def test_run_goes_the_way_of_up(cluster):
    cluster.on("node2", "sudo sed -i '/node3/d' /etc/hosts")
    cluster.on("node3", "sudo sed -i '/node2/d' /etc/hosts")

    foreseen = cluster("playbook", "run", "base", "--check", "--diff")
    assert foreseen.out.count("+198.") == 2
    limited = cluster("playbook", "run", "base,ssh_mesh", "--limit", "node2")
    assert list(recap(limited.out)) == ["node2"]
    assert recap(limited.out)["node2"]["changed"] == 1
    assert "\nPLAY [base]\nchanged: [node2] base: block" in limited.out
    assert "PLAY [ssh_mesh]" not in limited.out  # no news of it
    assert [counts["changed"] for counts in recap(cluster.ok("playbook", "run", "site")).values()] == [
        0,
        0,
        1,
    ]
    assert cluster.json("up")["changed"] is False


def test_step_and_tags_leave_the_others_out_and_count_them(cluster):
    counts = recap(cluster.ok("playbook", "run", "base", "--step", "block*"))["node1"]
    assert (counts["ok"], counts["skipped"]) == (1, 3)
    counts = recap(cluster.ok("playbook", "run", "site", "--tags", "mesh"))["node2"]
    assert counts["ok"] == 3
    ended = cluster("playbook", "run", "site", "--tags", "nothing")
    assert ended.code == 2
    assert "--tags nothing: no step is of that" in ended.error_line


def test_a_file_of_the_users_own_is_run_by_path(cluster, motd):
    first, again = (recap(cluster.ok("playbook", "run", str(motd))) for _ in range(2))

    assert [counts["changed"] for counts in first.values()] == [1, 1, 1]
    assert [counts["changed"] for counts in again.values()] == [0, 0, 0]
    assert cluster.on("node2", "cat /etc/motd-clusterctl") == "node2 of 3\n"
    assert "  1. file /etc/motd-clusterctl" in cluster.ok("playbook", "show", str(motd))


def test_a_file_that_is_wrong_is_one_line(cluster, motd):
    motd.write_text("def steps(node, cluster, facts):\n    return 1 / 0\n")
    ended = cluster("playbook", "run", str(motd))
    assert ended.code == 1
    assert ended.out.count(f"failed: node1: motd: plan: {motd}:2: ZeroDivisionError") == 1
    motd.write_text("def steps(:\n")
    ended = cluster("playbook", "run", str(motd))
    assert ended.code == 2
    assert f"{motd}:1: invalid syntax" in ended.error_line


def test_up_runs_the_inventorys_own_playbooks_after_the_site_and_the_record_keeps_them(own):
    (own.home / "own").mkdir()
    path = own.home / "own" / "motd.py"
    path.write_text("def steps(:\n")
    inventory = own.home / "mine.yml"
    inventory.write_text(
        f"all: {{vars: {{clusterctl: {{name: {own.name}, nodes: 1, playbooks: [own/motd.py]}}}}}}\n"
    )

    ended = own("up", "-i", str(inventory))
    assert (ended.code, f"{path}:1: invalid syntax" in ended.error_line) == (2, True)
    assert not own.state.exists()  # said before a node is made
    path.write_text(MOTD)
    assert own.ok("up", "-i", str(inventory)).count("PLAY [motd]") == 1
    own.on("node1", "sudo rm /etc/motd-clusterctl")
    assert own.json("up")["recap"]["node1"]["changed"] == 1
    assert own.json("playbook", "list")[-1]["name"] == "motd"


def test_what_was_run_is_in_the_log(cluster):
    cluster.on("node2", "sudo sed -i '/node3/d' /etc/hosts")
    cluster.ok("up")

    path = cluster.state / "log" / "node2.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    out = cluster.ok("log", "node2", "--last", "5")
    assert f"--- node2: {path}" in out
    assert f"base: block {cluster.name} in /etc/hosts" in out
    assert "facts, probes (" in out
    entries = cluster.json("log", "--last", "1")
    assert [each["node"] for each in entries] == ["node1", "node2", "node3"]


def fab(cluster, *args):
    done = subprocess.run(
        [FAB, "-r", ROOT / "playbooks", *args],
        capture_output=True,
        text=True,
        env=cluster.environment | {"CLUSTERCTL_NAME": cluster.name},
        cwd=cluster.home,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_fab_runs_the_same_steps_on_the_nodes_named(cluster):
    address = json.loads(cluster.ok("status", "--json"))[0]["nodes"][2]["address"]
    cluster.on("node1", "sudo sed -i '/node3/d' /etc/hosts")
    cluster.on("node3", "sudo sed -i '/node1/d' /etc/hosts")

    assert "[node1]" in fab(cluster, "-H", "node1", "base", "--check").stdout
    done = fab(cluster, "-H", f"node1,{address}", "base", "ssh_mesh")

    assert done.returncode == 0
    assert done.stdout.count("changed: [node1] base: block") == 1
    assert done.stdout.count("changed: [node3] base: block") == 1
    assert "node2" not in done.stdout
    assert cluster.json("up")["changed"] is False


def test_fab_without_hosts_means_all_and_errors_are_one_line(cluster):
    assert set(recap(fab(cluster, "site").stdout)) == {"node1", "node2", "node3"}
    done = fab(cluster, "-H", "web", "base")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"clusterctl: cluster {cluster.name} has no node 'web'; it has node1, node2, node3"
    ]


def test_fab_trusts_only_the_pinned_host_keys(own):
    own.ok("up", "--nodes", "1")
    record = own.state / "record.yml"
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG3bXgU6cXqb6nCq4rZ4r5f9c0Q5b1tCkq4mZC5aV0bW"
    text = re.sub(r"- ssh-\S+ \S+|- ecdsa-\S+ \S+", f"- {other}", record.read_text())
    record.write_text(text)

    done = fab(own, "-H", "node1", "base")

    assert done.returncode == 1
    assert "its host key is not the one recorded" in done.stderr

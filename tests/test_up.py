"""up, status, exec, ssh, check-amx and down, on real nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from playbooks import site
from provision.host import SshHost
from provision.inventory import load_record
from provision.play import run_playbooks
from provision.providers.local.control import ask
from provision.step import Mode, Status
from tests.local_nodes import eventually, needs_nodes, output
from tests.shell_host import SilentWatcher

pytestmark = needs_nodes


def test_up_again_changes_nothing(cluster):
    recap = cluster.json("up")

    assert recap["changed"] is False
    assert recap["failed"] == []
    assert [counts["changed"] for counts in recap["recap"].values()] == [0, 0, 0]


def test_the_head_reaches_every_node_and_the_key_never_leaves_it(cluster):
    for node in ("node1", "node2", "node3"):
        assert cluster.on("node1", f"ssh {node} hostname").strip() == node
    assert cluster.on("node1", "cat ~/hosts").split("\n")[1:4] == ["node1", "node2", "node3"]
    assert "clusterctl_mesh" not in cluster.on("node2", "ls -a ~/.ssh")


def test_host_keys_are_pinned_and_checked(cluster):
    options = "-o HostKeyAlias=node3 -o BatchMode=yes"

    cluster.on("node1", f"ssh {options} node3 true")
    cluster.on(
        "node1", f"ssh {options} node2 true", expect=255
    )  # node2 answers with another key than node3's
    cluster.on("node1", "ssh -o BatchMode=yes -o HostKeyAlias=stranger node2 true", expect=255)


def test_the_operators_ssh_config_includes_the_cluster(cluster):
    config = cluster.home / ".ssh" / "config"

    assert f'Include "{cluster.state / "ssh_config"}"' in config.read_text()
    assert output("ssh", "-F", str(config), f"node2.{cluster.name}", "hostname").strip() == "node2"


def test_names_resolve_to_addresses_and_never_to_loopback(cluster):
    lines = cluster.on("node2", "getent hosts node1 node2 node3").splitlines()

    assert {line.split()[1] for line in lines} == {"node1", "node2", "node3"}
    assert not any(line.startswith("127.") for line in lines)


def test_what_has_drifted_is_mended_and_the_users_own_lines_stay(cluster):
    cluster.on(
        "node1", "printf 'Host mine\\n    Port 1\\n' >> ~/.ssh/config; echo '# mine' | sudo tee -a /etc/hosts"
    )
    cluster.on("node1", "sudo sed -i '/node3/d' /etc/hosts")

    foreseen = cluster("up", "--check", "--diff")
    assert "block" in foreseen.out
    assert "+198." in foreseen.out
    assert "node3" not in cluster.on("node1", "cat /etc/hosts")

    recap = cluster.json("up")
    assert recap["recap"]["node1"]["changed"] == 1
    assert "node3" in cluster.on("node1", "cat /etc/hosts")
    assert "# mine" in cluster.on("node1", "cat /etc/hosts")
    assert "Host mine" in cluster.on("node1", "cat ~/.ssh/config")


def test_a_node_that_dies_in_the_middle_is_named_and_the_others_go_on(cluster):
    record = load_record(cluster.state / "record.yml")
    cluster.on("node3", "sudo sed -i '/node2/d' /etc/hosts")
    cluster.on("node2", "sudo sed -i '/node3/d' /etc/hosts")
    hosts = [SshHost(node) for node in record.nodes]
    cluster.on("node3", "sudo pkill -x sshd", expect=255)

    result = run_playbooks(record, hosts, site.PLAYBOOKS, {}, Mode(), SilentWatcher())

    assert {(r.node, r.status) for r in result.failed} == {("node3", Status.FAILED)}
    assert "refuses connections: no sshd there; run `clusterctl up`" in result.failed[0].detail
    assert {r.node for r in result.results if r.status is Status.CHANGED} == {"node2"}
    for host in hosts:
        host.close()
    status = cluster("status")
    assert status.code == 1
    assert "stopped" in status.out
    assert cluster.json("up")["failed"] == []  # the next up goes on, node3 included
    assert cluster("status").code == 0


def test_a_full_disk_is_named_and_loses_nothing(own):
    inventory = own.home / "small.yml"
    inventory.write_text(
        f"all: {{vars: {{clusterctl: {{name: {own.name}, nodes: 2, local: {{disk_mib: 64}}}}}}}}\n"
    )
    own.ok("up", "-i", str(inventory))
    own.on("node2", "sudo sed -i '/node1/d' /etc/hosts; sudo dd if=/dev/zero of=/fill bs=1M", expect=1)
    before = own.on("node2", "cat /etc/hosts")

    ended = own("up")

    assert ended.code == 1
    assert "failed: node2: base: block" in ended.out
    assert "No space left on device" in ended.out
    assert own.on("node2", "cat /etc/hosts") == before
    assert "node2: 0.0 GiB free" in own("train", "run_qa", "--dry-run").err
    own.on("node2", "sudo rm /fill")
    assert own.json("up")["failed"] == []


def test_exec_groups_the_same_output_and_returns_the_highest_code(cluster):
    ended = cluster("exec", "--", '[ "$(hostname)" = node2 ] && exit 3; echo same')

    assert ended.code == 3
    assert "--- node1,node3\nsame\n--- node2 (exit code 3)" in ended.out


def test_ssh_runs_a_command_on_the_node_named(cluster):
    assert cluster.ok("ssh", "node2", "--", "hostname").strip() == "node2"
    assert "no node 'node9'; it has node1, node2, node3" in cluster("ssh", "node9").error_line


def test_a_node_without_the_amx_it_must_have_fails(own):
    if " amx_tile" in Path("/proc/cpuinfo").read_text():
        pytest.skip("this machine has AMX")
    inventory = own.home / "strict.yml"
    inventory.write_text(
        f"all: {{vars: {{clusterctl: {{name: {own.name}, nodes: 1, require_amx: true}}}}}}\n"
    )

    ended = own("up", "-i", str(inventory))

    assert ended.code == 1
    assert "failed: node1: amx: AMX flags: no amx_tile" in ended.out
    assert "require_amx is true" in own("train", "run_qa").err


def test_grow_shrink_and_down_leave_nothing_behind(own):
    config = own.home / ".ssh" / "config"
    config.parent.mkdir()
    config.write_text("Host mine\n    Port 1\n")
    links, routes = output("ip", "-br", "link"), output("ip", "route")

    own.ok("up", "--nodes", "1")
    own.ok("up", "--nodes", "3")
    assert own.on("node1", "ssh node3 hostname").strip() == "node3"
    assert "say --yes" in own("up", "--nodes", "1").error_line
    own.ok("up", "--nodes", "1", "--yes")
    assert own.on("node1", "cat ~/hosts").split("\n")[1:] == ["node1", ""]
    assert "say --yes" in own("down").error_line
    own.ok("down", "--yes")

    assert config.read_text() == "Host mine\n    Port 1\n"
    assert not own.state.exists()
    assert (output("ip", "-br", "link"), output("ip", "route")) == (links, routes)
    assert own("down", "--yes").code == 0
    assert f"no cluster '{own.name}'" in own("status").error_line


def test_after_the_supervisor_was_killed_status_tells_and_up_makes_it_right(own):
    own.ok("up", "--nodes", "2")
    state = ask(own.name, do="state")
    assert state
    os.kill(int(state["pid"]), signal.SIGKILL)

    ended = own("status")
    assert ended.code == 1
    assert ended.out.count("gone") == 2
    own.ok("up")
    assert own.on("node1", "ssh node2 hostname").strip() == "node2"


def test_an_interrupted_up_is_gone_on_with(own):
    process = own.start("up", "--nodes", "4")
    assert eventually(lambda: (own.state / "record.yml").exists(), 10)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert "Traceback" not in err
    assert process.returncode in (0, 130)
    assert own.json("up", "--nodes", "4")["failed"] == []


def test_without_a_name_up_means_the_cluster_that_stands(own):
    own.ok("up", "--nodes", "1")
    argv = [sys.executable, "-m", "run.cli", "up", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, env=own.environment, cwd=own.home)

    assert json.loads(done.stdout.splitlines()[-1])["cluster"] == own.name


WRONG = {
    "zero nodes": (("up", "--nodes", "0"), "0 nodes: a cluster has at least one"),
    "no inventory": (("up", "-i", "nowhere.yml"), "nowhere.yml: No such file"),
    "train before up": (("train", "run_qa"), "run `clusterctl up"),
    "a subnet that is none": (("up", "-i", "subnet.yml"), "subnet.yml:1: local: subnet"),
    "check before up": (("check-amx",), "run `clusterctl up"),
    "exec before up": (("exec", "--", "true"), "run `clusterctl up"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line_and_exit_code_2(own, case):
    args, message = WRONG[case]
    (own.home / "subnet.yml").write_text("all: {vars: {clusterctl: {local: {subnet: 10.0.0.0/33}}}}\n")
    ended = own(*args)

    assert ended.code == 2
    assert message in ended.error_line
    assert not own.state.exists()


def test_up_without_root_says_what_is_needed(tmp_path):
    here = Path(__file__).parents[1]
    if any(folder.stat().st_mode & 0o001 == 0 for folder in [Path(sys.executable).parent, *here.parents]):
        pytest.skip("the checkout lies where only root can read")
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        folder.chmod(folder.stat().st_mode | 0o001)
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/usr/sbin", "PYTHONPATH": str(here)}

    ended = subprocess.run(
        [sys.executable, "-m", "run.cli", "up", "--nodes", "1"],
        user=65534,
        group=65534,
        extra_groups=[],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 1
    assert "root" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1

"""`clusterctl inventory` is an inventory that the real ansible-playbook runs on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.model import Cluster, Node
from provision.state import ClusterState
from run.commands.inventory import listing, variables, write_new
from tests.command import Command
from tests.local_nodes import needs_nodes

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
needs_ansible = pytest.mark.skipif(
    not ANSIBLE_PLAYBOOK.exists(), reason="ansible-core is not installed (pip install -e '.[dev]')"
)

NODES = (
    Node("a", "10.0.0.1", user="ann", port=2222, identity_file=Path("/keys/k")),
    Node("b", "10.0.0.2", jump="bob@gate"),
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state"))
    return ClusterState("demo")


def test_groups_and_variables_are_those_of_the_record(state):
    answer = listing(state, Cluster("demo", "local", NODES))

    assert answer["head"] == {"hosts": ["a"]}
    assert answer["workers"] == {"hosts": ["b"]}
    assert answer["all"]["vars"]["clusterctl"]["name"] == "demo"
    a = answer["_meta"]["hostvars"]["a"]
    assert (a["ansible_host"], a["ansible_port"], a["ansible_user"]) == ("10.0.0.1", 2222, "ann")
    assert a["ansible_ssh_private_key_file"] == "/keys/k"


def test_a_cluster_of_one_has_no_workers(state):
    assert listing(state, Cluster("demo", "local", NODES[:1]))["workers"] == {"hosts": []}


def test_ssh_is_held_to_the_pinned_keys_and_goes_through_the_jump_host(state):
    known = f"-o 'UserKnownHostsFile=\"{state.known_hosts}\"' -o StrictHostKeyChecking=yes"

    assert " " in str(state.known_hosts)
    assert variables(state, NODES[0])["ansible_ssh_common_args"] == f"{known} -o IdentitiesOnly=yes"
    assert variables(state, NODES[1])["ansible_ssh_common_args"] == f"{known} -o ProxyJump=bob@gate"
    assert variables(state, NODES[0])["ansible_host_key_checking"] is True


def test_a_script_never_goes_over_another_file(tmp_path):
    (tmp_path / "hosts").write_text("mine")
    with pytest.raises(Exception, match="hosts is there already"):
        write_new(tmp_path / "hosts", "other")
    assert (tmp_path / "hosts").read_text() == "mine"


def test_without_a_cluster_it_says_so(tmp_path):
    ended = Command("none", tmp_path)("inventory", "--list")

    assert (ended.code, ended.out) == (2, "")
    assert "no cluster 'none'" in ended.error_line


# On real nodes.

PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - command: hostname
      register: said
      changed_when: false
    - assert: {that: said.stdout == inventory_hostname}
- hosts: head
  gather_facts: false
  tasks:
    - assert: {that: "groups.workers == ['node2', 'node3'] and clusterctl.provider == 'local'"}
"""


def play(cluster: Command, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """ansible-playbook through the script that `inventory --script` writes, under an unsafe ansible.cfg."""
    script, playbook, config = folder / "hosts", folder / "play.yml", folder / "ansible.cfg"
    if not script.exists():
        cluster.ok("inventory", "--script", str(script))
    playbook.write_text(PLAYBOOK)
    config.write_text(
        "[defaults]\nhost_key_checking = False\n[ssh_connection]\nssh_args = -o ControlMaster=no\n"
    )
    command = (str(ANSIBLE_PLAYBOOK), "-i", str(script), str(playbook))
    variables = {**cluster.environment, "ANSIBLE_CONFIG": str(config), "PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=folder, check=False)


def as_json(cluster: Command, *args: str) -> Any:
    return json.loads(cluster.ok("inventory", *args))


class TestOnNodes:
    pytestmark = needs_nodes

    @needs_ansible
    def test_a_playbook_of_ones_own_runs_on_the_cluster(self, cluster, tmp_path):
        done = play(cluster, tmp_path)

        assert done.returncode == 0, done.stdout + done.stderr
        for node in ("node1", "node2", "node3"):
            assert f"{node} " in done.stdout
        assert "unreachable=1" not in done.stdout

    @needs_ansible
    def test_a_node_with_another_host_key_is_not_spoken_to(self, cluster, tmp_path):
        other = tmp_path / "state" / "clusterctl" / cluster.name
        shutil.copytree(cluster.state, other)
        lines = [line.split(" ", 1) for line in (other / "known_hosts").read_text().splitlines()]
        swapped = [
            f"{address} {key}\n" for (address, _), (_, key) in zip(lines, lines[1:] + lines[:1], strict=True)
        ]
        (other / "known_hosts").write_text("".join(swapped))

        done = play(cluster, tmp_path, XDG_STATE_HOME=str(tmp_path / "state"))

        assert done.returncode != 0
        assert done.stdout.count("unreachable=1") == 3

    def test_host_answers_with_the_variables_that_list_has(self, cluster):
        listed = as_json(cluster, "--list")["_meta"]["hostvars"]

        assert as_json(cluster, "--host", "node2") == listed["node2"]
        assert as_json(cluster, "--json")["_meta"]["hostvars"] == listed
        assert "has no node 'node9'" in cluster("inventory", "--host", "node9").error_line
        assert "say one of them" in cluster("inventory", "--list", "--host", "node1").error_line

    def test_without_an_option_it_is_a_table(self, cluster):
        lines = cluster.ok("inventory").splitlines()

        assert lines[0].split() == ["HOST", "GROUP", "ADDRESS", "PORT", "USER"]
        assert [line.split()[:2] for line in lines[1:]] == [
            ["node1", "head"], ["node2", "workers"], ["node3", "workers"]
        ]  # fmt: skip

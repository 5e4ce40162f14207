"""What preflight says of answers that nodes gave, and what probe.py answers on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from provision.errors import CommandError, ConnectError, LaunchError
from provision.host import CommandResult, Host, Stream
from provision.model import Node
from run.preflight import NO_STACK, PROBE, NodesEnding, Seen, check, judge
from run.probe import active_runs, free_port, reach, read_notice, resolve, stack_digest
from tests.run_cases import RUN_ID, STACK, TWO_CORES, cluster, facts, job

TWO = cluster(2)
FACTS = facts(TWO_CORES, TWO_CORES)


def answers(number: int, **changes: Any) -> dict[str, Any]:
    """What a node answers when all is well."""
    return {
        "home": "/home/ubuntu",
        "interfaces": ["lo", f"eth{number}"],
        "peers": {f"node{n}": {"resolved": [f"10.0.0.{n}"], "unreached": ""} for n in (1, 2)},
        "ssh_failed": {},
        "stack_digest": "d1",
        "has_mpirun": True,
        "free_gib": 20.0,
        "active_runs": [],
        "free_port": 40000 + number,
        "hostfile": ["node1", "node2"] if number == 1 else None,
        "notice": None,
        "clock_s": time.time(),
        **changes,
    }


def said(
    one: Mapping[str, Any] | None = None, two: Mapping[str, Any] | None = None, apart_s: float = 0
) -> list[str]:
    """Findings when the answers of node1 and node2 have these changes."""
    seen = {
        "node1": Seen(answers(1, **(one or {})), 0.0, 0.1),
        "node2": Seen(answers(2, **(two or {})), apart_s, 0.1),
    }
    return [str(finding) for finding in judge(TWO, seen, FACTS, job())]


def peer(name: str, resolved: Sequence[str], unreached: str = "") -> dict[str, Any]:
    peers: dict[str, Any] = answers(1)["peers"]
    return {"peers": {**peers, name: {"resolved": list(resolved), "unreached": unreached}}}


def test_nothing_is_said_when_all_is_well() -> None:
    assert said() == []


CASES: Mapping[str, tuple[dict[str, Any], str]] = {
    "loopback": (
        peer("node2", ["127.0.1.1"]),
        "node1: the name node2 means 127.0.1.1: gloo would tell others to come to themselves; "
        "run `clusterctl up` again, it writes /etc/hosts",
    ),
    "unknown name": (
        peer("node2", []),
        "node1: the name node2 is unknown there; run `clusterctl up` again",
    ),
    "other address": (
        peer("node2", ["10.9.9.9"]),
        "node1: the name node2 means 10.9.9.9, not 10.0.0.2; run `clusterctl up` again",
    ),
    "unreached": (
        peer("node2", ["10.0.0.2"], "Connection refused"),
        "node1: cannot reach node2 at 10.0.0.2 port 22: Connection refused; "
        "open the firewall between the nodes, or start its sshd",
    ),
    "interface": (
        {"interfaces": ["lo", "ens5"]},
        "node1: no network interface eth1 (there is lo, ens5); run `clusterctl up` again",
    ),
    "disk": (
        {"free_gib": 0.25},
        "node1: 0.2 GiB free in /home/ubuntu, 1 wanted; remove old runs in ~/.clusterctl/runs",
    ),
    "active run": (
        {"active_runs": ["20260101-000000-run_qa-aaaa"]},
        "node1: run 20260101-000000-run_qa-aaaa is active; wait for it, or stop it where it was started",
    ),
    "ssh": (
        {"ssh_failed": {"node2": "Permission denied (publickey)."}},
        "node1: ssh node2 fails there: Permission denied (publickey).; run `clusterctl up` again",
    ),
    "no mpirun": (
        {"has_mpirun": False},
        "node1: the training stack has no bin/mpirun; run `clusterctl up` again",
    ),
    "no hostfile": (
        {"hostfile": None},
        "node1: ~/hosts is missing, the cluster has node1 node2; run `clusterctl up` again",
    ),
    "other hostfile": (
        {"hostfile": ["node1"]},
        "node1: ~/hosts names node1, the cluster has node1 node2; run `clusterctl up` again",
    ),
    "address": (
        {"free_port": 0},
        "node1: none of its interfaces has the address 10.0.0.1; "
        "correct its private address in the inventory",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_one_line_with_node_and_fix(name: str) -> None:
    changes, line = CASES[name]
    assert said(changes) == [line]


def test_another_stack_on_a_worker_is_found() -> None:
    assert said(two={"stack_digest": "d2"}) == [
        "node2: its training stack differs from node1's; run `clusterctl up` again"
    ]


def test_a_stack_without_its_description_is_found() -> None:
    assert said(two={"stack_digest": ""}) == [
        "node2: the stack has no readable clusterctl-stack.json; run `clusterctl up` again"
    ]


def test_clocks_six_seconds_apart_are_found() -> None:
    assert said(apart_s=-6) == ["node2: its clock is 6 s away from node1's; start its time service"]


def test_clocks_within_the_limit_and_the_round_trips_doubt_pass() -> None:
    assert said(apart_s=5.1) == []


# --- asking nodes ------------------------------------------------------------------------------


class FakeHost:
    """Answers what it is told to."""

    def __init__(self, node: Node, answer: Mapping[str, Any] | Exception) -> None:
        self._node, self.answer = node, answer

    @property
    def node(self) -> Node:
        return self._node

    def run(
        self,
        script: str,
        *args: str,
        sudo: bool = False,
        stdin: bytes = b"",
        expect: Sequence[int] = (0,),
        timeout_s: float = 60,
    ) -> CommandResult:
        self.asked = json.loads(args[-1])
        if isinstance(self.answer, Exception):
            raise self.answer
        return CommandResult(0, "Welcome!\n" + json.dumps(self.answer), "")

    def stream(self, script: str, *args: str) -> Stream:
        raise NotImplementedError

    def close(self) -> None: ...


def check_hosts(one: Mapping[str, Any] | Exception, two: Mapping[str, Any] | Exception) -> tuple[Any, Any]:
    hosts: list[Host] = [FakeHost(TWO.nodes[0], one), FakeHost(TWO.nodes[1], two)]
    return check(TWO, hosts, FACTS, job(), stack_dir=STACK), hosts


def test_the_heads_free_port_is_the_rendezvous() -> None:
    ready, hosts = check_hosts(answers(1), answers(2))
    assert ready.master_port == 40001
    assert (hosts[0].asked["ssh_to"], hosts[1].asked["ssh_to"]) == (["node2"], [])


def test_every_finding_gets_a_line_of_its_own() -> None:
    gone = ConnectError("node2", "does not answer; is it up?")
    with pytest.raises(LaunchError) as caught:
        check_hosts(answers(1, hostfile=None, free_gib=0), gone)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["node2", "node1", "node1"]
    assert lines[0] == "node2: does not answer; is it up?; see `clusterctl status`"


def test_a_node_without_the_stack_is_told_to_converge() -> None:
    with pytest.raises(LaunchError, match="node2: the training stack is not installed; run `clusterctl up`"):
        check_hosts(answers(1), CommandError("node2", "...", NO_STACK, ""))


ENDS = {"notice": {"reason": "spot interruption", "ends_at": 1795269790.0}}
OVER = {"notice": {"reason": "time to live is over", "ends_at": 1795269790.0}}


def test_a_node_that_is_about_to_end_is_refused_and_named() -> None:
    with pytest.raises(NodesEnding) as caught:
        check_hosts(answers(1), answers(2, **ENDS))
    assert str(caught.value) == (
        "node2: will end at 14:03:10 UTC (spot interruption); `clusterctl up --replace node2` first"
    )
    assert [notice.node for notice in caught.value.notices] == ["node2"]
    assert caught.value.exit_code == 75


def test_a_time_to_live_that_is_over_is_no_matter_of_another_node() -> None:
    with pytest.raises(NodesEnding, match=r"\(time to live is over\); `clusterctl extend` in time"):
        check_hosts(answers(1, **OVER), answers(2))


def test_a_notice_beside_what_must_be_mended_is_one_line_more() -> None:
    with pytest.raises(LaunchError) as caught:
        check_hosts(answers(1, hostfile=None), answers(2, **ENDS))
    assert not isinstance(caught.value, NodesEnding)
    assert len(str(caught.value).splitlines()) == 2


# --- probe.py itself ---------------------------------------------------------------------------


def test_the_probe_answers_over_stdin_with_nothing_but_python(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = {
            "peers": [{"name": "localhost", "address": "127.0.0.1", "port": server.getsockname()[1]}],
            "ssh_to": [],
            "stack_dir": str(tmp_path),
            "own_address": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, "-I", "-", json.dumps(asked)],
            input=PROBE.read_bytes(),
            capture_output=True,
            check=True,
        )
    about = json.loads(done.stdout)
    assert about["peers"] == {"localhost": {"resolved": ["127.0.0.1"], "unreached": ""}}
    assert "lo" in about["interfaces"]
    assert about["free_port"] > 0
    assert set(answers(1)) == set(about)


def test_a_notice_long_past_is_none(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    assert read_notice(path) is None
    for ago_s, is_told in ((599, True), (601, False)):
        path.write_text(json.dumps({"reason": "x", "ends_at": time.time() - ago_s}))
        assert (read_notice(path) is not None) == is_told


def test_a_refused_port_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert reach("127.0.0.1", port) == "Connection refused"


def test_an_unknown_name_has_no_addresses() -> None:
    assert resolve("no-such-node.invalid") == []


def test_an_address_of_another_node_gives_no_port() -> None:
    assert free_port("192.0.2.77") == 0


def test_the_stacks_digest_depends_on_its_description(tmp_path: Path) -> None:
    assert stack_digest(str(tmp_path)) == ""
    description = tmp_path / "clusterctl-stack.json"
    description.write_text("{}")
    first = stack_digest(str(tmp_path))
    description.write_text('{"torch": "2.13.0"}')
    assert len(first) == 64
    assert stack_digest(str(tmp_path)) != first


@contextmanager
def running(run_id: str) -> Iterator[None]:
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, "CLUSTERCTL_RUN_ID": run_id})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_an_active_run_is_found_by_its_environment() -> None:
    mine = f"{RUN_ID}-{os.getpid()}"
    with running(mine):
        assert mine in active_runs()
    assert mine not in active_runs()

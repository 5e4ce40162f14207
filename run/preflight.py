"""Find in seconds what would let a launch hang for minutes: one exec a node, then pure judgement.

Hydra hides ssh, name and path trouble behind "unable to run bstrap_proxy"; gloo waits for a node that it was
given a wrong address of. Here each gets its name, its node and what to do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.errors import ClusterctlError, CommandError, HostError, LaunchError
from provision.facts import NodeFacts
from provision.host import Host
from provision.model import Cluster
from provision.step import run_on_hosts
from run.interruption import INTERRUPTED_CODE, Notice, ending, parse_notice
from run.job import TrainJob

CLOCK_LIMIT_S = 5.0
PROBE_TIMEOUT_S = 30.0
PROBE = Path(__file__).parent / "probe.py"
CONVERGE = "run `clusterctl up` again"
NO_STACK = 71


@dataclass(frozen=True)
class Finding:
    """One thing that must be mended before a run, and how."""

    node: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.node}: {self.problem}; {self.fix}"


class NodesEnding(LaunchError):
    """Nothing is wrong but that nodes are about to end."""

    exit_code = INTERRUPTED_CODE

    def __init__(self, text: str, notices: tuple[Notice, ...]) -> None:
        super().__init__(text)
        self.notices = notices


@dataclass(frozen=True)
class Ready:
    """The cluster can train; the head has this port free for the rendezvous."""

    master_port: int


@dataclass(frozen=True)
class Seen:
    """A node's answers (see probe.look) and how far its clock is from the operator's, in seconds.

    `doubt_s` is half the round trip: the clock may have been read at any time in it.
    """

    answers: Mapping[str, Any]
    clock_offset_s: float
    doubt_s: float


def check(
    cluster: Cluster, hosts: Sequence[Host], facts: Mapping[str, NodeFacts], job: TrainJob, *, stack_dir: str
) -> Ready:
    """All looks on all nodes of `hosts` at once.

    Raises LaunchError with a line for each finding; NodesEnding where all of them are notices.
    """
    seen = run_on_hosts(hosts, lambda host: _look(host, cluster, hosts, stack_dir))
    answered = {name: result for name, result in seen.items() if isinstance(result, Seen)}
    findings = [_silent(name, result) for name, result in seen.items() if isinstance(result, ClusterctlError)]
    findings += judge(cluster, answered, facts, job)
    ends = endings(answered)
    text = "\n".join(grouped([*findings, *map(_ending, ends)]))
    if findings:
        raise LaunchError(text)
    if ends:
        raise NodesEnding(text, ends)
    return Ready(int(answered[cluster.head.name].answers["free_port"]))


def grouped(findings: Sequence[Finding]) -> list[str]:
    """A line for each thing that is wrong, with all the nodes that have it."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        nodes.setdefault((finding.problem, finding.fix), []).append(finding.node)
    return [f"{', '.join(names)}: {problem}; {fix}" for (problem, fix), names in nodes.items()]


def judge(
    cluster: Cluster, seen: Mapping[str, Seen], facts: Mapping[str, NodeFacts], job: TrainJob
) -> list[Finding]:
    """What is wrong, from what the nodes answered. Pure."""
    findings = [finding for name in seen for finding in _judge_node(cluster, name, seen[name], facts, job)]
    findings += _judge_head(cluster, seen)
    findings += _judge_alike(cluster, seen)
    return findings


def endings(seen: Mapping[str, Seen]) -> tuple[Notice, ...]:
    """The nodes that are about to end. Pure."""
    told = [(name, node.answers.get("notice")) for name, node in seen.items()]
    return tuple(notice for name, data in told if data and (notice := parse_notice(name, data)))


def _ending(notice: Notice) -> Finding:
    fix = f"`clusterctl up --replace {notice.node}` first"
    if not notice.is_accident:
        fix = "`clusterctl extend` in time, or `clusterctl up` after it"
    return Finding(notice.node, ending(notice.reason, notice.ends_at), fix)


def _look(host: Host, cluster: Cluster, hosts: Sequence[Host], stack_dir: str) -> Seen:
    """One exec on one node. Raises HostError."""
    node, head = host.node, cluster.head.name
    names = {other.node.name for other in hosts}
    others = [other for other in cluster.nodes if other.name in names]
    asked = {
        "peers": [{"name": o.name, "address": o.mesh_address, "port": o.port} for o in others],
        "ssh_to": [o.name for o in others if o.name != head] if node.name == head else [],
        "stack_dir": stack_dir,
        "own_address": node.mesh_address,
    }
    began_s = time.time()
    result = host.run(
        f"[ -x %s ] || exit {NO_STACK}; exec %s - %s",
        *(f"{stack_dir}/bin/python", f"{stack_dir}/bin/python", json.dumps(asked)),
        stdin=PROBE.read_bytes(),
        timeout_s=PROBE_TIMEOUT_S,
    )
    ended_s = time.time()
    answers = _parse(node.name, result.stdout)
    middle_s, doubt_s = (began_s + ended_s) / 2, (ended_s - began_s) / 2
    return Seen(answers, float(answers["clock_s"]) - middle_s, doubt_s)


def _parse(node: str, text: str) -> Mapping[str, Any]:
    try:
        answers: Mapping[str, Any] = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise HostError(node, f"its preflight answered {text[:80]!r}, not JSON") from None
    return answers


def _silent(name: str, error: ClusterctlError) -> Finding:
    if isinstance(error, CommandError) and error.command_exit_code == NO_STACK:
        return Finding(name, "the training stack is not installed", CONVERGE)
    problem = error.problem if isinstance(error, HostError) else str(error)
    return Finding(name, problem, "see `clusterctl status`")


def _judge_node(
    cluster: Cluster, name: str, seen: Seen, facts: Mapping[str, NodeFacts], job: TrainJob
) -> Iterator[Finding]:
    answers = seen.answers
    if facts[name].interface not in answers["interfaces"]:
        there = ", ".join(answers["interfaces"])
        yield Finding(name, f"no network interface {facts[name].interface} (there is {there})", CONVERGE)
    if answers["free_gib"] < job.disk_room_gib:
        room = f"{answers['free_gib']:.1f} GiB free in {answers['home']}, {job.disk_room_gib:g} wanted"
        yield Finding(name, room, "remove old runs in ~/.clusterctl/runs")
    for run in answers["active_runs"]:
        yield Finding(name, f"run {run} is active", "wait for it, or stop it where it was started")
    for peer, about in answers["peers"].items():
        yield from _judge_peer(cluster, name, peer, about)


def _judge_peer(cluster: Cluster, name: str, peer: str, about: Mapping[str, Any]) -> Iterator[Finding]:
    address, resolved = cluster.node(peer).mesh_address, about["resolved"]
    if not resolved:
        yield Finding(name, f"the name {peer} is unknown there", CONVERGE)
    elif any(found.startswith("127.") for found in resolved) and not address.startswith("127."):
        text = f"the name {peer} means {', '.join(resolved)}: gloo would tell others to come to themselves"
        yield Finding(name, text, f"{CONVERGE}, it writes /etc/hosts")
    elif address not in resolved:
        yield Finding(name, f"the name {peer} means {', '.join(resolved)}, not {address}", CONVERGE)
    if about["unreached"]:
        port = cluster.node(peer).port
        text = f"cannot reach {peer} at {address} port {port}: {about['unreached']}"
        yield Finding(name, text, "open the firewall between the nodes, or start its sshd")


def _judge_head(cluster: Cluster, seen: Mapping[str, Seen]) -> Iterator[Finding]:
    head = cluster.head
    if head.name not in seen:
        return
    answers = seen[head.name].answers
    if not answers["has_mpirun"]:
        yield Finding(head.name, "the training stack has no bin/mpirun", CONVERGE)
    if not answers["free_port"]:
        text = f"none of its interfaces has the address {head.mesh_address}"
        yield Finding(head.name, text, "correct its private address in the inventory")
    expected = [node.name for node in cluster.nodes]
    if answers["hostfile"] != expected:
        found = "is missing" if answers["hostfile"] is None else f"names {' '.join(answers['hostfile'])}"
        yield Finding(head.name, f"~/hosts {found}, the cluster has {' '.join(expected)}", CONVERGE)
    for name, why in answers["ssh_failed"].items():
        yield Finding(head.name, f"ssh {name} fails there: {why}", CONVERGE)


def _judge_alike(cluster: Cluster, seen: Mapping[str, Seen]) -> Iterator[Finding]:
    """What must be equal on all nodes, measured against the head (or the first that answered)."""
    if not seen:
        return
    first = cluster.head.name if cluster.head.name in seen else next(iter(seen))
    reference = seen[first]
    for name, node in seen.items():
        apart_s = abs(node.clock_offset_s - reference.clock_offset_s)
        if apart_s - node.doubt_s - reference.doubt_s > CLOCK_LIMIT_S:
            yield Finding(name, f"its clock is {apart_s:.0f} s away from {first}'s", "start its time service")
        if not node.answers["stack_digest"]:
            yield Finding(name, "the stack has no readable clusterctl-stack.json", CONVERGE)
        elif node.answers["stack_digest"] != reference.answers["stack_digest"]:
            yield Finding(name, f"its training stack differs from {first}'s", CONVERGE)

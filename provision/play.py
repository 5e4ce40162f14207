"""Playbooks run over a cluster: one look at every host, then only what that look says is needed.

With facts known from an earlier run, the steps of all playbooks are planned before the first connection,
and their probes travel with the facts' own script in one exec per host. When nothing has drifted, that
was all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from provision.errors import ClusterctlError
from provision.facts import NodeFacts, facts_script
from provision.host import Host
from provision.model import Cluster, Node
from provision.state import FactText
from provision.step import (
    Mode,
    Status,
    Step,
    StepResult,
    Watcher,
    converge,
    probe_script,
    run_on_hosts,
    split_answers,
)

Facts = Mapping[str, NodeFacts]


@dataclass(frozen=True)
class Playbook:
    """A named, ordered list of steps, worked out for each node.

    `steps` is pure. The facts of a node that could not be reached are absent; the node's own and the
    head's are always there.
    """

    name: str
    steps: Callable[[Node, Cluster, Facts], Sequence[Step]]


@dataclass(frozen=True)
class SiteResult:
    """What a run over all playbooks did: every step's result, and the facts as they are now."""

    results: tuple[StepResult, ...] = ()
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    fact_texts: Mapping[str, FactText] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[StepResult, ...]:
        return tuple(result for result in self.results if result.status is Status.FAILED)

    @property
    def changed(self) -> bool:
        return any(result.status is Status.CHANGED for result in self.results)


@dataclass(frozen=True)
class Look:
    """What one exec saw of a host: its facts, and the answers to the probes of some steps."""

    facts: NodeFacts
    text: FactText
    answers: Mapping[Step, str]


def look(host: Host, cluster: Cluster, steps: Sequence[Step] = ()) -> Look:
    """Facts of the host and the answers to the steps' probes, in one round trip."""
    peer = cluster.head if host.node.name != cluster.head.name else (*cluster.workers, cluster.head)[0]
    script = facts_script(host.node.user, peer.mesh_address) + "\n" + probe_script(steps)
    before = time.time()
    # Facts are world-readable or the user's own; sudo alone costs a node as much as three processes.
    text = host.run(script, sudo=bool(steps)).stdout
    # The node read its clock somewhere between the question and the answer: the middle is nearest.
    seen = FactText(text.partition("\n@@probe ")[0], (before + time.time()) / 2)
    return Look(seen.parse(), seen, dict(zip(steps, split_answers(host, text, len(steps)), strict=True)))


def gather(cluster: Cluster, hosts: Sequence[Host]) -> dict[str, NodeFacts | ClusterctlError]:
    """Facts of every host at once, or why there are none."""
    return run_on_hosts(hosts, lambda host: look(host, cluster).facts)


def run_playbooks(
    cluster: Cluster,
    hosts: Sequence[Host],
    playbooks: Sequence[Playbook],
    known: Facts,
    mode: Mode,
    watcher: Watcher,
) -> SiteResult:
    """Converge all hosts to all playbooks, in order; a host that fails drops out, the others go on.

    A playbook starts when the one before it is done on every host that still takes part, since it may
    need what that one learnt (the mesh key of the head, say).
    """
    site = _Site(cluster, {host.node.name: host for host in hosts}, mode, watcher)
    site.first_look(playbooks, known)
    for playbook in playbooks:
        site.play(playbook)
    return SiteResult(tuple(site.results), site.facts, site.texts)


class _Site:
    """The state of one run: who takes part, what is known of them, and what has been answered."""

    def __init__(self, cluster: Cluster, hosts: dict[str, Host], mode: Mode, watcher: Watcher) -> None:
        self._cluster = cluster
        self._hosts = hosts
        self._mode = mode
        self._watcher = watcher
        self.facts: dict[str, NodeFacts] = {}
        self.texts: dict[str, FactText] = {}
        self.results: list[StepResult] = []
        self._answers: dict[str, Mapping[Step, str]] = {}

    def first_look(self, playbooks: Sequence[Playbook], known: Facts) -> None:
        planned = self._plan_all(playbooks, known)
        for name in self._hosts:
            self._watcher.started(name, "facts", "gather")
        self._look(lambda host: planned.get(host.node.name, ()))

    def play(self, playbook: Playbook) -> None:
        """Run one playbook on the hosts that still take part, then see anew those that it changed."""
        if self._cluster.head.name not in self._hosts:
            return
        steps = {
            name: playbook.steps(host.node, self._cluster, self.facts) for name, host in self._hosts.items()
        }
        done = run_on_hosts(list(self._hosts.values()), lambda host: self._converge(host, playbook, steps))
        for name, results in done.items():
            if isinstance(results, ClusterctlError):
                self._fail(name, playbook.name, "connection", results)
                continue
            self.results.extend(results)
            if any(result.status is Status.FAILED for result in results):
                del self._hosts[name]
            elif any(result.status is Status.CHANGED for result in results) and not self._mode.check:
                self._answers.pop(name, None)
        self._look(lambda host: (), only=set(self._hosts) - set(self._answers))

    def _plan_all(self, playbooks: Sequence[Playbook], known: Facts) -> dict[str, tuple[Step, ...]]:
        """All steps of all playbooks for each node, as far as facts known from before allow."""
        if set(known) != set(self._hosts):
            return {}
        return {
            name: tuple(
                step for playbook in playbooks for step in playbook.steps(host.node, self._cluster, known)
            )
            for name, host in self._hosts.items()
        }

    def _look(self, steps: Callable[[Host], Sequence[Step]], only: set[str] | None = None) -> None:
        hosts = [host for name, host in self._hosts.items() if only is None or name in only]
        looks = run_on_hosts(hosts, lambda host: look(host, self._cluster, steps(host)))
        for name, seen in looks.items():
            if isinstance(seen, ClusterctlError):
                self._fail(name, "facts", "gather", seen)
            else:
                self.facts[name], self.texts[name] = seen.facts, seen.text
                self._answers[name] = seen.answers

    def _converge(
        self, host: Host, playbook: Playbook, steps: Mapping[str, Sequence[Step]]
    ) -> list[StepResult]:
        mine = steps[host.node.name]
        answers = self._answers.get(host.node.name, {})
        read = [answers[step] for step in mine if step in answers]
        actual = read if len(read) == len(mine) else None
        return converge(host, playbook.name, mine, actual, self._mode, self._watcher)

    def _fail(self, name: str, play: str, step: str, error: ClusterctlError) -> None:
        result = StepResult(name, play, step, Status.FAILED, str(error))
        self.results.append(result)
        self._watcher.ended(result)
        self._hosts.pop(name, None)

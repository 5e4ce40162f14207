"""Playbooks run over a cluster: one look at every host, then only what that look says is needed.

With facts known from an earlier run, the steps of all playbooks are planned before the first connection,
and their probes travel with the facts' own script in one exec per host. When nothing has drifted, that
was all.

Every host goes through the playbooks in a thread of its own, at its own speed. It waits for another only
where a playbook says that it needs it (`needs`) or comes after it (`after`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from provision.barrier import Progress
from provision.commandlog import labelled
from provision.errors import ClusterctlError, StepError, Unforeseen, place_in
from provision.facts import NodeFacts, facts_script
from provision.host import Host
from provision.model import Cluster, Node
from provision.state import FactText
from provision.step import (
    FANOUT,
    Mode,
    Status,
    Step,
    StepResult,
    Watcher,
    ask,
    converge,
    probe_script,
    run_on_hosts,
    split_answers,
    survey,
)

Facts = Mapping[str, NodeFacts]
Others = Callable[[Node, Cluster], Sequence[Node]]


def nobody(node: Node, cluster: Cluster) -> Sequence[Node]:
    """Every node for itself."""
    return ()


def the_head(node: Node, cluster: Cluster) -> Sequence[Node]:
    """The workers with the head."""
    return (cluster.head,)


def everybody(node: Node, cluster: Cluster) -> Sequence[Node]:
    """All with all: the slowest node holds up the others here."""
    return cluster.nodes


@dataclass(frozen=True)
class Playbook:
    """A named, ordered list of steps, worked out for each node.

    `steps` is pure. Its facts are the node's own and those of the nodes it has waited for so far.
    `needs`: the nodes that must have done all earlier playbooks; when one of them failed, a node that
    needs it ends here. `after`: those that are waited for as well, and whose failure is theirs alone:
    their facts are absent then. `source` is the file of a user's own playbook.
    """

    name: str
    steps: Callable[[Node, Cluster, Facts], Sequence[Step]]
    tags: tuple[str, ...] = ()
    needs: Others = nobody
    after: Others = nobody
    source: Path | None = None


Selection = Callable[[Playbook, Step], bool]


def everything(playbook: Playbook, step: Step) -> bool:
    """No step is left out."""
    return True


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
    with labelled(host, f"facts, probes ({len(steps)})", brief=True):
        # Facts are world-readable or the user's own; sudo alone costs a node as much as three processes.
        text = ask(host, script, sudo=bool(steps))
    # The node read its clock somewhere between the question and the answer: the middle is nearest.
    seen = FactText(text.partition("\n@@probe ")[0], (before + time.time()) / 2)
    answers = zip(steps, split_answers(host, text, steps), strict=True)
    return Look(seen.parse(), seen, {step: answer for step, answer in answers if answer is not None})


def gather(cluster: Cluster, hosts: Sequence[Host]) -> dict[str, NodeFacts | ClusterctlError]:
    """Facts of every host at once, or why there are none."""
    return run_on_hosts(hosts, lambda host: look(host, cluster).facts)


def view_of(playbooks: Sequence[Playbook], node: Node, cluster: Cluster, facts: Facts) -> Facts:
    """The facts that a node sees in the last of these playbooks: its own, and of those it has waited for."""
    waited = {
        other.name
        for playbook in playbooks
        for which in (playbook.needs, playbook.after)
        for other in which(node, cluster)
    }
    return {name: each for name, each in facts.items() if name in waited or name == node.name}


@dataclass(frozen=True)
class _Site:
    """One run: what is to be done, by all hosts alike, and what they know of each other."""

    cluster: Cluster
    playbooks: Sequence[Playbook]
    known: Facts
    mode: Mode
    watcher: Watcher
    selection: Selection
    progress: Progress
    # One for each host that is at work; those that wait for another have given theirs back.
    slots: threading.Semaphore


def run_playbooks(
    cluster: Cluster,
    hosts: Sequence[Host],
    playbooks: Sequence[Playbook],
    known: Facts,
    mode: Mode,
    watcher: Watcher,
    selection: Selection = everything,
) -> SiteResult:
    """Converge the hosts to the playbooks, each in order; a host that fails drops out, the others go on.

    A node of the cluster that is not among the hosts counts as done with everything, its facts the known
    ones. A step that `selection` leaves out is reported as skipped.
    """
    if not hosts:
        return SiteResult()
    names = [host.node.name for host in hosts]
    elsewhere = {name: facts for name, facts in known.items() if name not in names}
    site = _Site(
        cluster, playbooks, known, mode, watcher, selection,
        Progress(names, elsewhere), threading.Semaphore(FANOUT),
    )  # fmt: skip
    runs = [_HostRun(site, host) for host in hosts]
    # A thread each, since any of them may have to wait for any other.
    with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
        going = [pool.submit(run.go) for run in runs]
        try:
            for each in going:
                each.result()
        except BaseException:
            site.progress.stop()
            raise
    results = tuple(result for run in runs for result in run.results)
    seen = {run.name: run.seen for run in runs if run.seen is not None}
    return SiteResult(
        results,
        {name: each.facts for name, each in seen.items()},
        {name: each.text for name, each in seen.items()},
    )


class _HostRun:
    """One host's way through the playbooks. `seen` is the last look at it, None before the first."""

    def __init__(self, site: _Site, host: Host) -> None:
        self._site = site
        self._host = host
        self.name = host.node.name
        self.seen: Look | None = None
        self.results: list[StepResult] = []
        self._looked_s = 0.0
        self._others: dict[str, NodeFacts] = {}
        self._answers: dict[Step, str] = {}

    def go(self) -> None:
        """All playbooks, or as far as the first that fails or cannot begin."""
        try:
            with self._site.slots:
                self._site.watcher.started(self.name, "facts", "gather")
                if not self._look_again("facts", 0):
                    return
                for stage, playbook in enumerate(self._site.playbooks):
                    if not (self._may_begin(stage, playbook) and self._play(stage, playbook)):
                        return
        finally:
            self._site.progress.leave(self.name)

    def _may_begin(self, stage: int, playbook: Playbook) -> bool:
        """Wait for those that the playbook needs or comes after. False when one it needs has failed."""
        needs, after = (
            [other.name for other in which(self._host.node, self._site.cluster) if other.name != self.name]
            for which in (playbook.needs, playbook.after)
        )
        others = (*needs, *after)
        if others:
            with self._waiting():
                came = self._site.progress.wait(others, stage)
            self._others = {name: facts for name, facts in self._others.items() if name not in others} | came
        if self._site.progress.stopped:
            return False
        lacking = [name for name in needs if name not in self._others]
        if lacking:
            self._skip(playbook.name, f"all of {playbook.name}", f"needs {', '.join(lacking)}, which failed")
            return False
        # What another node did since may have been done to this one: a stack copied here, say.
        if self._site.progress.changed_since(others, self._looked_s):
            return self._look_again(playbook.name, stage)
        return True

    def _play(self, stage: int, playbook: Playbook) -> bool:
        """Converge to one playbook and tell the others how far we are. False when a step failed."""
        before = len(self.results)
        with self._explained(playbook):
            self._converge(stage, playbook)
        statuses = {result.status for result in self.results[before:]}
        if Status.FAILED in statuses:
            return False
        changed = Status.CHANGED in statuses and not self._site.mode.check
        if changed and not self._look_again(playbook.name, stage + 1):
            return False
        assert self.seen is not None
        self._site.progress.reach(self.name, self.seen.facts, changed=changed)
        return True

    def _converge(self, stage: int, playbook: Playbook) -> None:
        site = self._site
        try:
            planned = tuple(playbook.steps(self._host.node, site.cluster, self._view()))
        except Unforeseen as error:
            if not site.mode.check:
                raise
            self._skip(playbook.name, f"all of {playbook.name}", str(error))
            return
        steps = [step for step in planned if site.selection(playbook, step)]
        for step in planned:
            if step not in steps:
                self._skip(playbook.name, step.name, "not selected")
        if steps:
            self.results += converge(
                self._host, playbook.name, steps, self._answers_to(steps, stage), site.mode, site.watcher
            )

    def _answers_to(self, steps: Sequence[Step], stage: int) -> list[str]:
        """What the steps' probes read; one round trip where that is not known yet, for later ones too."""
        if not all(step in self._answers for step in steps):
            asked = tuple(dict.fromkeys((*steps, *self._foreseen(stage))))
            self._answers = dict(zip(asked, survey(self._host, asked), strict=True))
        return [self._answers[step] for step in steps]

    def _look_again(self, play: str, stage: int) -> bool:
        """Facts and the answers for the playbooks from this stage on, as they are now. False on failure."""
        looked_s = time.monotonic()
        try:
            self.seen = look(self._host, self._site.cluster, self._foreseen(stage))
        except ClusterctlError as error:
            self._fail(play, "gather" if play == "facts" else "connection", error)
            return False
        self._looked_s, self._answers = looked_s, dict(self.seen.answers)
        if play == "facts":
            self._site.progress.reach(self.name, self.seen.facts)
        return True

    def _view(self) -> Facts:
        assert self.seen is not None
        return {**self._others, self.name: self.seen.facts}

    def _foreseen(self, stage: int) -> tuple[Step, ...]:
        """The steps from this stage on, as far as what is known by now lets them be planned.

        A guess: only where the true plan has an equal step, its answer is used.
        """
        site, node = self._site, self._host.node
        facts = {**site.known, **self._others} | ({self.name: self.seen.facts} if self.seen else {})
        steps: list[Step] = []
        for at, playbook in enumerate(site.playbooks[stage:] if self.name in facts else (), stage + 1):
            # Whatever is wrong with the guess, the true plan will meet it and say it.
            with contextlib.suppress(Exception):
                view = view_of(site.playbooks[:at], node, site.cluster, facts)
                planned = playbook.steps(node, site.cluster, view)
                steps += [step for step in planned if site.selection(playbook, step)]
        return tuple(dict.fromkeys(steps))

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self._site.slots.release()
        try:
            yield
        finally:
            self._site.slots.acquire()

    @contextlib.contextmanager
    def _explained(self, playbook: Playbook) -> Iterator[None]:
        """Failures as results. A bug is raised, but one in a user's own file is told by file and line."""
        try:
            yield
        except ClusterctlError as error:
            step = "plan" if isinstance(error, StepError) else "connection"
            self._fail(playbook.name, step, error)
        except Exception as error:
            if playbook.source is None:
                raise
            self._fail(playbook.name, "its file", StepError(place_in(playbook.source, error)))

    def _fail(self, play: str, step: str, error: ClusterctlError) -> None:
        self._note(StepResult(self.name, play, step, Status.FAILED, str(error)))

    def _skip(self, play: str, step: str, why: str) -> None:
        self._note(StepResult(self.name, play, step, Status.SKIPPED, why))

    def _note(self, result: StepResult) -> None:
        self.results.append(result)
        self._site.watcher.ended(result)

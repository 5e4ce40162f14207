"""Steps: wanted state against actual state, read again after the fix; and how they run on many hosts.

A step says in sh how to read what it cares about (`probe`), judges what was read (`drift`), and removes
the drift (`apply`). Because reading is text in, judging is pure and applying is separate, the probes of a
whole playbook travel in one exec per host: a run that changes nothing costs one round trip. Check mode,
diff and idempotence are the same path, ended earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar, runtime_checkable

from provision.errors import ClusterctlError, HostError
from provision.host import Host

# Threads hold one ssh session each. Two cores open about 250 sessions a second, so more threads only queue.
FANOUT = 64

T = TypeVar("T")


class Step(Protocol):
    """One thing that is to be so on a node.

    1. `probe` only reads, prints to stdout, and may be empty when facts alone decide.
    2. `drift` is pure: None means as wanted, else one line that says what is not.
    3. `apply` removes the drift; it must be safe to run again after being killed half way.
    """

    @property
    def name(self) -> str: ...

    @property
    def probe(self) -> str: ...

    def drift(self, actual: str) -> str | None: ...

    def apply(self, host: Host) -> None: ...


@runtime_checkable
class HasDiff(Protocol):
    """A step that can show what it would change in a text. Never with a secret in it."""

    def diff(self, actual: str) -> str: ...


class Status(Enum):
    """How a step ended on a node, in Ansible's words."""

    OK = "ok"
    CHANGED = "changed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class StepResult:
    """How one step ended on one node. `detail` is the drift, or why it failed; `diff` a unified diff."""

    node: str
    play: str
    step: str
    status: Status
    detail: str = ""
    diff: str = ""
    seconds: float = 0.0


class Watcher(Protocol):
    """Told of every step as it happens, from many threads at once."""

    def started(self, node: str, play: str, step: str) -> None: ...

    def ended(self, result: StepResult) -> None: ...


def run_on_hosts(
    hosts: Sequence[Host], work: Callable[[Host], T], fanout: int = FANOUT
) -> dict[str, T | ClusterctlError]:
    """What `work` returned for each host, by node name, or the expected error it raised.

    One host's failure is captured and the others go on. An unexpected error (a bug) is raised.
    """

    def guarded(host: Host) -> T | ClusterctlError:
        try:
            return work(host)
        except ClusterctlError as error:
            return error

    if not hosts:
        return {}
    with ThreadPoolExecutor(max_workers=min(fanout, len(hosts))) as pool:
        futures = {host.node.name: pool.submit(guarded, host) for host in hosts}
        return {name: future.result() for name, future in futures.items()}


_MARK = "@@probe "


def probe_script(steps: Sequence[Step]) -> str:
    """One sh script that prints what every step wants to read, in marked sections.

    Each probe runs in a subshell, so that one cannot disturb the next; its exit code means nothing, since
    "not there" is an answer too.
    """
    probes = [
        f"echo; echo {_MARK}{index}" + (f"\n({step.probe}\n) 2>&1" if step.probe else "")
        for index, step in enumerate(steps)
    ]
    return "\n".join([*probes, ":"])


def split_probes(text: str, count: int) -> list[str]:
    """What each of `count` probes printed; lines before the first (a login banner) are dropped.

    Raises ValueError when one is missing.
    """
    chunks = ("\n" + text).split("\n" + _MARK)[1:]
    found = {int(number): body for number, _, body in (chunk.partition("\n") for chunk in chunks)}
    if sorted(found) != list(range(count)):
        raise ValueError(f"{len(found)} of {count} probes answered")
    # The runner's blank line before each mark ends what the probe printed without adding to it.
    return [found[index] for index in range(count)]


def survey(host: Host, steps: Sequence[Step]) -> list[str]:
    """What each step's probe reads on the host now, in one round trip."""
    result = host.run(probe_script(steps), sudo=True)
    return split_answers(host, result.stdout, len(steps))


def split_answers(host: Host, text: str, count: int) -> list[str]:
    """split_probes() with the host's name in the error."""
    try:
        return split_probes(text, count)
    except ValueError as error:
        raise HostError(host.node.name, f"{error}; does its shell end early?") from None


@dataclass(frozen=True)
class Mode:
    """`check`: say what would change and touch nothing. `diff`: show texts before and after."""

    check: bool = False
    diff: bool = False


def converge(
    host: Host,
    play: str,
    steps: Sequence[Step],
    actual: Sequence[str] | None,
    mode: Mode,
    watcher: Watcher,
) -> list[StepResult]:
    """Bring one host to what the steps want, in order; stop at the first that fails.

    `actual` is what a survey already read for these very steps, nothing having changed since; None reads
    it now. After a step has changed something, the later ones are read afresh, together.
    """
    results: list[StepResult] = []
    answers = list(survey(host, steps) if actual is None else actual)
    for index, step in enumerate(steps):
        watcher.started(host.node.name, play, step.name)
        started = time.monotonic()
        result = _one(host, play, step, answers[index], mode, started)
        results.append(result)
        watcher.ended(result)
        if result.status is Status.FAILED:
            break
        if result.status is Status.CHANGED and not mode.check and index + 1 < len(steps):
            answers[index + 1 :] = survey(host, steps[index + 1 :])
    return results


def _one(host: Host, play: str, step: Step, actual: str, mode: Mode, started: float) -> StepResult:
    """Judge, fix and judge again one step on one host."""

    def ended(status: Status, detail: str = "", diff: str = "") -> StepResult:
        return StepResult(host.node.name, play, step.name, status, detail, diff, time.monotonic() - started)

    drift = step.drift(actual)
    if drift is None:
        return ended(Status.OK)
    diff = step.diff(actual) if mode.diff and isinstance(step, HasDiff) else ""
    if mode.check:
        return ended(Status.CHANGED, drift, diff)
    try:
        step.apply(host)
        remaining = step.drift(survey(host, [step])[0])
    except ClusterctlError as error:
        return ended(Status.FAILED, str(error), diff)
    if remaining is not None:
        return ended(Status.FAILED, remaining, diff)
    return ended(Status.CHANGED, drift, diff)

"""Steps: wanted state against actual state, read again after the fix; and how they run on many hosts.

A step says in sh how to read what it cares about (`probe`), judges what was read (`drift`), and removes
the drift (`apply`). Because reading is text in, judging is pure and applying is separate, the probes of a
whole playbook travel in one exec per host: a run that changes nothing costs one round trip. Check mode,
diff and idempotence are the same path, ended earlier.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar, runtime_checkable

from provision.commandlog import labelled
from provision.errors import ClusterctlError, CommandError, HostError
from provision.host import Host

# Threads hold one ssh session each. Two cores open about 250 sessions a second, so more threads only queue.
FANOUT = 64

T = TypeVar("T")


class Step(Protocol):
    """One thing that is to be so on a node.

    1. `probe` only reads, prints to stdout, and may be empty when facts alone decide.
    2. `drift` is pure: None means as wanted, else one line that says what is not.
    3. `apply` removes the drift; it must be safe to run again after being killed half way.

    A step with `secret = True` is logged by its name alone, and no command or output of it is shown. One
    with `foreseeable = False` is skipped in check mode where an earlier step would change something.
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


class FileProbe(str):
    """A probe that prints "owner mode", a newline and the content of one file; nothing when it is not there.

    Those of all steps are read together: two processes a node, not two a file.
    """

    path: str

    def __new__(cls, probe: str, path: str) -> FileProbe:
        self = super().__new__(cls, probe)
        self.path = path
        return self


_MARK = "@@probe "
_STAT = "@@stat "


def probe_script(steps: Sequence[Step]) -> str:
    """One sh script that prints what every step wants to read, in marked sections.

    Each probe runs in a subshell, so that one cannot disturb the next; its exit code means nothing, since
    "not there" is an answer too. The files of FileProbes come first.
    """
    probes = [step.probe for step in steps]
    paths = _paths(probes)
    files = " ".join(shlex.quote(path) for path in paths)
    # tail -v names each file and adds nothing to its content.
    read = f"{{ stat -L -c '{_STAT}%U %a %n' {files}; tail -v -c +1 {files}; }} 2>/dev/null"
    sections = [
        f"echo; echo {_MARK}{number}"
        + (f"\n({probe}\n) 2>&1" if probe and not isinstance(probe, FileProbe) else "")
        for number, probe in enumerate(probes, 1)
    ]
    return "\n".join([f"echo; echo {_MARK}0", *([read] if paths else []), *sections, ":"])


def _paths(probes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(probe.path for probe in probes if isinstance(probe, FileProbe)))


def split_probes(text: str, count: int) -> list[str]:
    """What each of `count` sections printed; lines before the first (a login banner) are dropped.

    Raises ValueError when one is missing.
    """
    chunks = ("\n" + text).split("\n" + _MARK)[1:]
    found = {int(number): body for number, _, body in (chunk.partition("\n") for chunk in chunks)}
    if sorted(found) != list(range(count)):
        raise ValueError(f"{len(found)} of {count} probes answered")
    # The runner's blank line before each mark ends what the probe printed without adding to it.
    return [found[index] for index in range(count)]


def split_files(text: str, paths: Sequence[str]) -> dict[str, str | None]:
    """Path -> what a FileProbe wants, from `stat` and `tail -v` in the paths' order; absent: no such file.

    None where the text could be read in two ways, a file's content having a line like tail's headings.

    >>> split_files("@@stat root 644 /a\\n==> /a <==\\nmine\\n", ["/a", "/b"])
    {'/a': 'root 644\\nmine\\n'}
    """
    heads: dict[str, str] = {}
    while text.startswith(_STAT):
        line, _, text = text.partition("\n")
        owner, mode, path = line.removeprefix(_STAT).split(" ", 2)
        heads[path] = f"{owner} {mode}\n"
    there = [path for path in paths if path in heads]
    rest = "\n" + text
    if any(rest.count(f"\n==> {path} <==\n") > 1 for path in there):
        return dict.fromkeys(there)
    contents: dict[str, str] = {}
    for path in reversed(there):
        before, found, content = rest.rpartition(f"\n==> {path} <==\n")
        if found:
            rest, contents[path] = before, content
    return {path: heads[path] + contents.get(path, "") for path in there}


def survey(host: Host, steps: Sequence[Step]) -> list[str]:
    """What each step's probe reads on the host now, in one round trip."""
    with labelled(host, f"probes ({len(steps)})", brief=True):
        answers = split_answers(host, ask(host, probe_script(steps)), steps)
        # One at a time where a file's content was mistakable.
        return [
            host.run(step.probe, sudo=True, expect=range(256)).stdout if answer is None else answer
            for step, answer in zip(steps, answers, strict=True)
        ]


def ask(host: Host, script: str, *, sudo: bool = True) -> str:
    """What a script that only reads prints. Raises HostError; where sudo refuses, with what to do."""
    try:
        return host.run(script, sudo=sudo).stdout
    except CommandError as error:
        refusal = next((line for line in error.last_lines if line.startswith("sudo: ")), None)
        if refusal is None:
            raise
        user = host.node.user
        raise HostError(
            error.host, f"sudo refuses {user} ({refusal[6:]}); it needs `{user} ALL=(ALL) NOPASSWD: ALL`"
        ) from error


def split_answers(host: Host, text: str, steps: Sequence[Step]) -> list[str | None]:
    """What each step's probe printed; None where that cannot be told. Raises HostError."""
    try:
        first, *answers = split_probes(text, len(steps) + 1)
    except ValueError as error:
        raise HostError(host.node.name, f"{error}; does its shell end early?") from None
    probes = [step.probe for step in steps]
    files = split_files(first, _paths(probes))
    return [
        files.get(probe.path, "") if isinstance(probe, FileProbe) else answer
        for probe, answer in zip(probes, answers, strict=True)
    ]


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
        is_after_change = any(result.status is Status.CHANGED for result in results)
        if mode.check and is_after_change and not getattr(step, "foreseeable", True):
            status, detail, diff = Status.SKIPPED, "depends on what an earlier step would change", ""
        else:
            status, detail, diff = _judge(step, answers[index], mode)
        if status is Status.CHANGED and not mode.check:
            status, detail, answers[index:] = _fix(host, play, steps[index:], answers[index:], detail)
        seconds = time.monotonic() - started
        results.append(StepResult(host.node.name, play, step.name, status, detail, diff, seconds))
        watcher.ended(results[-1])
        if status is Status.FAILED:
            break
    return results


def _judge(step: Step, actual: str, mode: Mode) -> tuple[Status, str, str]:
    """Whether the step has something to change, what, and the diff where one is wanted."""
    drift = step.drift(actual)
    if drift is None:
        return Status.OK, "", ""
    diff = step.diff(actual) if mode.diff and isinstance(step, HasDiff) and not is_secret(step) else ""
    return Status.CHANGED, drift, diff


def _fix(
    host: Host, play: str, steps: Sequence[Step], answers: Sequence[str], drift: str
) -> tuple[Status, str, Sequence[str]]:
    """Remove the first step's drift; then read it and all later steps anew, in one round trip."""
    step = steps[0]
    try:
        with labelled(host, f"{play}: {step.name}", secret=is_secret(step)):
            step.apply(host)
        fresh = survey(host, steps)
    except ClusterctlError as error:
        return Status.FAILED, _told(step, error), answers
    remaining = step.drift(fresh[0])
    return (Status.CHANGED, drift, fresh) if remaining is None else (Status.FAILED, remaining, fresh)


def is_secret(step: Step) -> bool:
    return bool(getattr(step, "secret", False))


def _told(step: Step, error: ClusterctlError) -> str:
    """Why it failed; of a secret step's command only how it ended."""
    if is_secret(step) and isinstance(error, CommandError):
        return f"{error.host}: exit code {error.command_exit_code}; it is secret, so no more is shown"
    return str(error)

"""Carry a LaunchPlan out on the nodes, follow it to its end, clean up, bring the results home.

Every wait is bounded: what can hang is asked with a timeout, and what does not end when told is killed.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provision.errors import ClusterctlError, LaunchError
from provision.host import Host, Stream
from provision.step import run_on_hosts
from run.events import Event, parse_line
from run.folders import Collected, Folders, bring, collect, leave_what_was_made, remove
from run.interruption import INTERRUPTED_CODE, STOPPED_CODE, Interruption
from run.job import LaunchPlan, TrainJob
from run.results import keep, make_room
from run.summary import RunSummary, summarise
from run.transfer import fetch_folder, sweep
from run.watch import Watch

ALIVE_EVERY_S = 5.0  # head.py takes the operator for lost after 60 s
KILL_GRACE_S = 10.0  # for head.py to report after "kill"; then its channel is closed
SLOW_S = 2.0

_START = "cd ~/.clusterctl/runs/%s && CLUSTERCTL_RUN_ID=%s exec %s head.py"


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended that did not fail: to its end (0), stopped by the user (130), or before nodes that
    were about to end (75; then summary.interruption says how far it came).

    `folder` is on this machine. `missing` says for nodes, by name, why their logs are not in it. `request` is
    the job's.
    """

    run_id: str
    exit_code: int
    folder: Path
    summary: RunSummary
    missing: tuple[str, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)


def train(
    hosts: Sequence[Host],
    plan: LaunchPlan,
    job: TrainJob,
    *,
    on_event: Callable[[Event], None],
    stop_requests: Callable[[], int],
    runs_folder: Path,
) -> RunOutcome:
    """Run the plan and fetch its results into `runs_folder`/<run id>, whether it ends well or not.

    `stop_requests` counts how often the user asked to stop: once stops the ranks, twice kills them.
    Raises LaunchError when the run ended badly, HostError when it could not be brought to the nodes,
    SettingsError when there is no place for its results.
    """
    chosen = _in_order(hosts, plan)
    began_s = time.monotonic()
    events: list[Event] = []

    def note(event: Event) -> None:
        if event.name not in ("output", "heartbeat", "progress"):
            events.append(event)
        on_event(event)

    partial = make_room(runs_folder, plan)
    watch = Watch(plan, job, time.monotonic())
    try:
        with _told_if_slow(note, "bring the files to the nodes", "start the ranks"):
            folders = bring(chosen, plan, stop_requests)
        watch = Watch(plan, job, time.monotonic())
        heeded = _Follower(chosen[0], plan, job, watch, note, stop_requests).follow()
    except BaseException:
        partial.rmdir()
        raise
    finally:
        unreachable = _sweep_all(chosen, plan, note)
    stopped = heeded > 0
    interruption = None if stopped else watch.interruption(unreachable)
    failed = None if stopped or interruption else _name_the_node(watch.cause(), unreachable)
    duration_s = time.monotonic() - began_s
    collected = _collect(folders, plan, partial, note, lambda: stop_requests() - heeded)
    missing, stopped = collected.missing, stopped or bool(collected.unwanted)
    if interruption:
        interruption = _bring_checkpoint(folders[0], plan, interruption, partial)
    problem = failed or ("stopped" if stopped else str(interruption) if interruption else None)
    summary = summarise(plan, events, duration_s, problem, interruption)
    folder = keep(partial, plan, job, summary, missing)
    _tidy(folders, plan, job, collected, is_good=not problem)
    if failed:
        raise LaunchError(f"{failed}; logs are in {folder / 'logs'}")
    code = STOPPED_CODE if stopped else INTERRUPTED_CODE if interruption else 0
    return RunOutcome(plan.run_id, code, folder, summary, missing, job.request)


class _Follower:
    """Reads the head's output until it ends, and ends it when the user or the watch says so."""

    def __init__(
        self,
        head: Host,
        plan: LaunchPlan,
        job: TrainJob,
        watch: Watch,
        note: Callable[[Event], None],
        stop_requests: Callable[[], int],
    ) -> None:
        self._watch, self._note, self._stop_requests, self._job = watch, note, stop_requests, job
        self._stream: Stream = head.stream(_START, plan.run_id, plan.run_id, plan.python)
        self._alive_at = time.monotonic()
        self._stop_sent_at = float("inf")
        self._kill_sent_at = float("inf")
        self._heeded = 0

    def follow(self) -> int:
        """Until the output ends; how often the user has asked to stop the run."""
        try:
            while time.monotonic() < self._kill_sent_at + KILL_GRACE_S and self._read():
                self._steer(time.monotonic())
        finally:
            self._stream.close()
        return self._heeded

    def _read(self) -> bool:
        """Take the lines that have come; False after the last."""
        try:
            line = self._stream.readline(0.2)
        except EOFError:
            return False
        if line is not None:
            event = parse_line(line)
            self._watch.feed(event, time.monotonic())
            self._note(event)
        return True

    def _steer(self, now_s: float) -> None:
        asked = self._heeded = self._stop_requests()
        overdue = now_s > self._stop_sent_at + self._job.stop_grace_s + KILL_GRACE_S
        if asked > 1 or overdue or self._watch.verdict(now_s):
            self._send_once("kill", now_s)
        elif asked or self._watch.is_out_of_time(now_s):
            # Until all ranks run there is nothing to be saved, and hydra heeds no signal while it starts.
            self._send_once("stop" if self._watch.all_started else "kill", now_s)
        elif now_s >= self._alive_at:
            self._send("alive")
            self._alive_at = now_s + ALIVE_EVERY_S

    def _send_once(self, word: str, now_s: float) -> None:
        if word == "stop" and self._stop_sent_at > now_s:
            self._stop_sent_at = now_s
        elif word == "kill" and self._kill_sent_at > now_s:
            self._kill_sent_at = now_s
        else:
            return
        self._note(Event("stop", data={"text": word}))
        self._send(word)

    def _send(self, word: str) -> None:
        # A dead connection shows itself in readline(), which then ends.
        with contextlib.suppress(OSError, EOFError):
            self._stream.write(f"{word}\n".encode())


def _in_order(hosts: Sequence[Host], plan: LaunchPlan) -> tuple[Host, ...]:
    by_name = {host.node.name: host for host in hosts}
    return tuple(by_name[name] for name in plan.nodes)


def _sweep_all(hosts: Sequence[Host], plan: LaunchPlan, note: Callable[[Event], None]) -> dict[str, str]:
    """Nothing of the run stays behind; returns the nodes that did not answer and why."""
    unreachable: dict[str, str] = {}
    for name, result in run_on_hosts(hosts, lambda host: sweep(host, plan.run_id)).items():
        if isinstance(result, ClusterctlError):
            unreachable[name] = str(result)
            text = f"{result}; when it is back: clusterctl ssh {name} pkill -KILL -f {plan.run_id}"
            note(Event("sweep", node=name, data={"text": text}))
        elif result[0] or result[1]:
            processes = "1 process" if result[0] == 1 else f"{result[0]} processes"
            text = f"{name}: killed {processes} the run left" + (
                f", {result[1]} are still there" if result[1] else ""
            )
            note(Event("sweep", node=name, data={"killed": result[0], "left": result[1], "text": text}))
    return unreachable


def _name_the_node(cause: str | None, unreachable: dict[str, str]) -> str | None:
    """A node that is gone is the likelier cause than what its peers said of it."""
    return "; ".join([*unreachable.values(), cause]) if cause else None


def _collect(
    folders: Folders,
    plan: LaunchPlan,
    into: Path,
    note: Callable[[Event], None],
    stop_requests: Callable[[], int],
) -> Collected:
    with _told_if_slow(note, f"fetch the results from {plan.nodes[0]}"):
        collected = collect(folders, plan, into, stop_requests)
    for node in collected.unwanted:
        text = f"{node}: not all was fetched; it is still there, in {plan.run_folder}"
        note(Event("warning", node=node, data={"text": text}))
    return collected


@contextlib.contextmanager
def _told_if_slow(note: Callable[[Event], None], phase: str, then: str = "") -> Iterator[None]:
    """What is waited for, if it takes long, and what comes `then`: nothing else would be seen meanwhile."""
    told: list[Event] = []

    def tell(name: str) -> None:
        told.append(Event("phase", data={"name": name}))
        note(told[-1])

    slow = threading.Timer(SLOW_S, tell, [phase])
    slow.start()
    try:
        yield
    finally:
        slow.cancel()
    if told and then:
        tell(then)


def _tidy(folders: Folders, plan: LaunchPlan, job: TrainJob, collected: Collected, *, is_good: bool) -> None:
    """What stays on the nodes: after a bad end what the run made, a checkpoint may be all that is left of it;
    and all of it where not all could be fetched.
    """
    if job.is_trial or (is_good and not collected.missing):
        remove(folders, plan)
    elif not collected.missing and not collected.unwanted:
        leave_what_was_made(folders, plan)


def _bring_checkpoint(
    holders: Sequence[Host], plan: LaunchPlan, interruption: Interruption, partial: Path
) -> Interruption:
    """The last checkpoint into the results if all that have it end: the head, and who shares its home."""
    checkpoint = interruption.checkpoint
    leaving = {notice.node for notice in interruption.notices}
    if checkpoint is None or any(host.node.name not in leaving for host in holders):
        return interruption
    try:
        fetch_folder(holders[0], plan.run_id, checkpoint.path, partial)
    except ClusterctlError as error:
        shutil.rmtree(partial / checkpoint.path, ignore_errors=True)
        return replace(interruption, trouble=f"it was not brought here: {error}")
    return replace(interruption, at_home=True)

"""Carry a LaunchPlan out on the nodes, follow it to its end, clean up, bring the results home.

Every wait is bounded: what can hang is asked with a timeout, and what does not end when told is killed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.errors import ClusterctlError, LaunchError
from provision.host import Host, Stream
from provision.step import run_on_hosts
from run.events import Event, parse_line
from run.job import LaunchPlan, TrainJob
from run.summary import RunSummary, summarise
from run.transfer import fetch, forget, pack, sweep, upload
from run.watch import Watch

ALIVE_EVERY_S = 5.0  # head.py takes the operator for lost after 60 s
KILL_GRACE_S = 10.0  # for head.py to report after "kill"; then its channel is closed
STOPPED_CODE = 130  # what shells report for Ctrl-C

_START = "cd ~/.clusterctl/runs/%s && CLUSTERCTL_RUN_ID=%s exec %s head.py"


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended that did not fail: to its end (0), or stopped by the user (130).

    `folder` is on this machine. `missing` says for nodes, by name, why their logs are not in it.
    """

    run_id: str
    exit_code: int
    folder: Path
    summary: RunSummary
    missing: tuple[str, ...] = ()


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
    Raises LaunchError when the run ended badly, HostError when it could not be brought to the nodes.
    """
    chosen = _in_order(hosts, plan)
    began_s = time.monotonic()
    events: list[Event] = []

    def note(event: Event) -> None:
        if event.name not in ("output", "heartbeat", "progress"):
            events.append(event)
        on_event(event)

    watch = Watch(plan, job, time.monotonic())
    try:
        _upload_all(chosen, plan)
        watch = Watch(plan, job, time.monotonic())
        stopped = _Follower(chosen[0], plan, job, watch, note, stop_requests).follow()
    finally:
        unreachable = _sweep_all(chosen, plan, note)
    problem = None if stopped else _name_the_node(watch.cause(), unreachable)
    summary = summarise(plan, events, time.monotonic() - began_s, problem or ("stopped" if stopped else None))
    folder, missing = _collect(chosen, plan, summary, runs_folder)
    if problem:
        raise LaunchError(f"{problem}; logs are in {folder / 'logs'}")
    if not stopped and not missing:
        # Kept after any other end: a checkpoint there may be all that is left of a long run.
        run_on_hosts(chosen, lambda host: forget(host, plan.run_id))
    return RunOutcome(plan.run_id, STOPPED_CODE if stopped else 0, folder, summary, missing)


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
        self._stopped = False

    def follow(self) -> bool:
        """Until the output ends; True when the user stopped the run."""
        try:
            while time.monotonic() < self._kill_sent_at + KILL_GRACE_S and self._read():
                self._steer(time.monotonic())
        finally:
            self._stream.close()
        return self._stopped

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
        asked = self._stop_requests()
        self._stopped = self._stopped or asked > 0
        overdue = now_s > self._stop_sent_at + self._job.stop_grace_s + KILL_GRACE_S
        if asked > 1 or overdue or self._watch.verdict(now_s):
            self._send_once("kill", now_s)
        elif asked:
            self._send_once("stop", now_s)
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


def _upload_all(hosts: Sequence[Host], plan: LaunchPlan) -> None:
    packed = pack(plan)
    for result in run_on_hosts(hosts, lambda host: upload(host, plan, packed)).values():
        if isinstance(result, ClusterctlError):
            raise result


def _sweep_all(hosts: Sequence[Host], plan: LaunchPlan, note: Callable[[Event], None]) -> dict[str, str]:
    """Nothing of the run stays behind; returns the nodes that did not answer and why."""
    unreachable: dict[str, str] = {}
    for name, result in run_on_hosts(hosts, lambda host: sweep(host, plan.run_id)).items():
        if isinstance(result, ClusterctlError):
            unreachable[name] = str(result)
            text = f"{result}; when it is back: clusterctl ssh {name} pkill -KILL -f {plan.run_id}"
            note(Event("sweep", node=name, data={"text": text}))
        elif result[0] or result[1]:
            text = f"{name}: killed {result[0]} processes the run left" + (
                f", {result[1]} are still there" if result[1] else ""
            )
            note(Event("sweep", node=name, data={"killed": result[0], "left": result[1], "text": text}))
    return unreachable


def _name_the_node(cause: str | None, unreachable: dict[str, str]) -> str | None:
    """A node that is gone is the likelier cause than what its peers said of it."""
    return "; ".join([*unreachable.values(), cause]) if cause else None


def _collect(
    hosts: Sequence[Host], plan: LaunchPlan, summary: RunSummary, runs_folder: Path
) -> tuple[Path, tuple[str, ...]]:
    """Results under a temporary name, renamed once all are there: (folder, what is missing and why)."""
    partial, folder = runs_folder / f".{plan.run_id}.partial", runs_folder / plan.run_id
    partial.mkdir(parents=True)
    results = run_on_hosts(
        hosts, lambda host: fetch(host, plan.run_id, partial, with_output=host is hosts[0])
    )
    missing = tuple(str(result) for result in results.values() if isinstance(result, ClusterctlError))
    (partial / "plan.json").write_text(plan.files["plan.json"])
    (partial / "plan.txt").write_text(plan.render())
    about = {**summary.to_json(), "missing": missing}
    (partial / "summary.json").write_text(json.dumps(about, indent=2) + "\n")
    shutil.move(partial, folder)
    return folder, missing

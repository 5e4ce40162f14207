"""Carry a LaunchPlan out on the nodes, follow it to its end, clean up, bring the results home.

Every wait is bounded: what can hang is asked with a timeout, and what does not end when told is killed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provision.errors import ClusterctlError, LaunchError
from provision.host import Host, Stream
from provision.step import run_on_hosts
from run.events import Event, parse_line
from run.interruption import INTERRUPTED_CODE, Interruption
from run.job import LaunchPlan, TrainJob
from run.parcel import parcel
from run.proof import PROOF_FILE
from run.summary import RunSummary, summarise
from run.transfer import fetch, fetch_folder, forget, sweep, upload
from run.watch import Watch

ALIVE_EVERY_S = 5.0  # head.py takes the operator for lost after 60 s
KILL_GRACE_S = 10.0  # for head.py to report after "kill"; then its channel is closed
STOPPED_CODE = 130  # what shells report for Ctrl-C
REQUEST_FILE = "request.json"

_START = "cd ~/.clusterctl/runs/%s && CLUSTERCTL_RUN_ID=%s exec %s head.py"


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended that did not fail: to its end (0), stopped by the user (130), or before nodes that
    were about to end (75; then summary.interruption says how far it came).

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
    interruption = None if stopped else watch.interruption(unreachable)
    failed = None if stopped or interruption else _name_the_node(watch.cause(), unreachable)
    duration_s = time.monotonic() - began_s
    partial, missing = _collect(chosen, plan, runs_folder)
    if interruption:
        interruption = _bring_checkpoint(chosen[0], plan, interruption, partial)
    problem = failed or ("stopped" if stopped else str(interruption) if interruption else None)
    summary = summarise(plan, events, duration_s, problem, interruption)
    folder = _keep(partial, plan, job, summary, missing)
    if failed:
        raise LaunchError(f"{failed}; logs are in {folder / 'logs'}")
    if not problem and not missing:
        # Kept after any other end: a checkpoint there may be all that is left of a long run.
        run_on_hosts(chosen, lambda host: forget(host, plan.run_id))
    code = STOPPED_CODE if stopped else INTERRUPTED_CODE if interruption else 0
    return RunOutcome(plan.run_id, code, folder, summary, missing)


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
        elif asked or self._watch.is_out_of_time(now_s):
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
    for_all = parcel(plan)
    for_head = parcel(plan, for_head=True) if plan.head_uploads else for_all
    results = run_on_hosts(hosts, lambda host: upload(host, plan, for_head if host is hosts[0] else for_all))
    for result in results.values():
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


def _collect(hosts: Sequence[Host], plan: LaunchPlan, runs_folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Results under a temporary name: (folder, what is missing and why)."""
    partial = runs_folder / f".{plan.run_id}.partial"
    partial.mkdir(parents=True)
    results = run_on_hosts(
        hosts, lambda host: fetch(host, plan.run_id, partial, with_output=host is hosts[0])
    )
    return partial, tuple(str(each) for each in results.values() if isinstance(each, ClusterctlError))


def _bring_checkpoint(
    head: Host, plan: LaunchPlan, interruption: Interruption, partial: Path
) -> Interruption:
    """The last checkpoint into the results if the head is among the nodes that end: only it may have one."""
    checkpoint = interruption.checkpoint
    if checkpoint is None or head.node.name not in {notice.node for notice in interruption.notices}:
        return interruption
    try:
        fetch_folder(head, plan.run_id, checkpoint.path, partial)
    except ClusterctlError as error:
        shutil.rmtree(partial / checkpoint.path, ignore_errors=True)
        return replace(interruption, trouble=f"it was not brought here: {error}")
    return replace(interruption, at_home=True)


def _keep(
    partial: Path, plan: LaunchPlan, job: TrainJob, summary: RunSummary, missing: tuple[str, ...]
) -> Path:
    """The results with all that is known of the run, renamed now that they are whole."""
    (partial / "plan.json").write_text(plan.files["plan.json"])
    (partial / "plan.txt").write_text(plan.render())
    about = {**summary.to_json(), "missing": missing}
    (partial / "summary.json").write_text(json.dumps(about, indent=2) + "\n")
    if summary.amx_proof is not None:
        (partial / PROOF_FILE).write_text(json.dumps(about["amx_proof"], indent=2) + "\n")
    if job.request:
        (partial / REQUEST_FILE).write_text(json.dumps(dict(job.request), indent=2) + "\n")
    folder = partial.with_name(plan.run_id)
    shutil.move(partial, folder)
    return folder

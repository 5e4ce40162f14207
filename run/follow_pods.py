"""Follow a job on Kubernetes to its end: its state, its pods, what they say. Every wait is bounded."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from provision.errors import LaunchError
from run.events import Event, parse_line
from run.kube import Gone, Kubectl
from run.podlogs import PodLogs
from run.pods import JobState, Pod

FAILURE_GRACE_S = 3.0
"""After a failure, so that the lines that tell its cause can still arrive."""
_PEER_LOST = re.compile(r"onnection (closed|reset) by peer|Broken pipe|onnection refused|Socket closed", re.I)


@dataclass(frozen=True)
class Limits:
    """Seconds for all pods to run, for the first to be there at all, for a running one to be heard of again
    (rank.py is heard every 5 s), for the rest once one is done, and for a silent cluster to answer again.
    """

    pending_s: float = 600
    no_pods_s: float = 60
    silent_s: float = 120
    finish_s: float = 600
    unreachable_s: float = 120
    poll_s: float = 2


@dataclass(frozen=True)
class Followed:
    """A job that was created: as kubectl names it, its bare name, its pods' label, how many pods must run.

    `forgives`: the job may succeed though a pod failed, since another took its place.
    """

    reference: str
    name: str
    selector: str
    least_pods: int
    forgives: bool = False


@dataclass
class _Said:
    """What the ranks said of failures; a rank that begins anew has none."""

    errors: dict[int, str] = field(default_factory=dict)
    exits: dict[int, str] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        if event.rank is None:
            return
        if event.name == "start":
            self.errors.pop(event.rank, None)
            self.exits.pop(event.rank, None)
        elif event.name == "error":
            self.errors[event.rank] = f"rank {event.rank}: {event.text}"
        elif event.name == "exit" and event.data.get("code"):
            lines = event.data.get("last_lines") or ["it printed nothing"]
            where = f"rank {event.rank} on {event.node}"
            self.exits[event.rank] = f"{where} ended with exit code {event.data['code']}: {lines[-1]}"

    def cause(self) -> str:
        """The most telling; what a rank says of a lost peer is another's doing."""
        told = [*self.errors.values(), *self.exits.values()]
        return next((text for text in told if not _PEER_LOST.search(text)), told[0] if told else "")


class Follower:
    """One job, from its creation until all its pods have ended, or something is wrong."""

    def __init__(
        self,
        kubectl: Kubectl,
        job: Followed,
        logs: PodLogs,
        *,
        on_event: Callable[[Event], None],
        stop_requests: Callable[[], int],
        limits: Limits,
    ) -> None:
        self._kubectl, self._job, self._logs = kubectl, job, logs
        self._on_event, self._stop_requests, self._limits = on_event, stop_requests, limits
        self._began_s = self._seen_s = time.monotonic()
        self._state = JobState()
        self.pods: tuple[Pod, ...] = ()
        self._heard_s: dict[str, float] = {}
        self._ranks: dict[str, set[int]] = {}
        self._warned: set[str] = set()
        self._told = ""
        self._said = _Said()
        self._all_ended_s = self._succeeded_s = float("inf")

    def follow(self) -> str | None:
        """Why the job ended badly; None when it went well, or the user asked to stop.

        Raises LaunchError when the cluster does not answer, or the job is gone.
        """
        next_look_s = 0.0
        while not self._stop_requests():
            for pod, line in self._logs.lines(0.1):
                self._take(pod, line)
            now_s = time.monotonic()
            if now_s >= next_look_s:
                next_look_s = now_s + self._limits.poll_s
                self._look(now_s)
                problem = self._problem(now_s)
                if problem is not None:
                    return self._explain(problem) if problem else None
        return None

    def _take(self, pod: str, line: str) -> None:
        self._heard_s[pod] = time.monotonic()
        event = parse_line(line)
        self._said.take(event)
        if event.rank is not None and event.name in ("start", "exit"):
            alive = self._ranks.setdefault(pod, set())
            (alive.add if event.name == "start" else alive.discard)(event.rank)
        self._on_event(event)

    def _look(self, now_s: float) -> None:
        """See how things are; an answer that does not come is waited for."""
        try:
            self._state = self._kubectl.job(self._job.reference)
            self.pods = self._kubectl.pods(self._job.selector)
        except Gone:
            raise
        except LaunchError:
            if now_s - self._seen_s > self._limits.unreachable_s:
                raise
            return
        self._seen_s = now_s
        self._logs.attach(self.pods)
        for pod in self.pods:
            if pod.started:
                self._heard_s.setdefault(pod.name, now_s)
        self._note_ends(now_s)
        self._tell()

    def _note_ends(self, now_s: float) -> None:
        if self._state.has_succeeded:
            self._succeeded_s = min(self._succeeded_s, now_s)
        ended = len(self.pods) >= self._job.least_pods and all(pod.has_ended for pod in self.pods)
        self._all_ended_s = min(self._all_ended_s, now_s) if ended else float("inf")

    def _problem(self, now_s: float) -> str | None:
        """None to go on, "" for a good end, else what is wrong."""
        if self._state.has_failed:
            return self._state.message or "the job failed"
        if self._all_ended_s <= now_s and self._logs.have_ended(self.pods):
            failed = [pod.trouble() for pod in self.pods if pod.phase == "Failed"]
            if not failed or (self._job.forgives and self._state.has_succeeded):
                return ""
            # The operator may begin it anew.
            if now_s - self._all_ended_s > 10 * self._limits.poll_s:
                return failed[0]
        return self._not_there(now_s) or self._not_running(now_s) or self._too_long(now_s)

    def _not_there(self, now_s: float) -> str | None:
        if self.pods or now_s - self._began_s < self._limits.no_pods_s:
            return None
        warnings: tuple[str, ...] = ()
        with contextlib.suppress(LaunchError):  # who may create a job may not always read events
            warnings = self._kubectl.warnings(self._job.name)
        why = warnings[-1] if warnings else "is the operator running? `kubectl get pods -A` shows it"
        waited = f"{self._limits.no_pods_s:.0f} s"
        return f"{self._job.reference}: taken by the cluster, but has no pods after {waited}; {why}"

    def _not_running(self, now_s: float) -> str | None:
        stuck = [pod for pod in self.pods if pod.cannot_start]
        if stuck:
            return stuck[0].trouble()
        begun = sum(1 for pod in self.pods if pod.started)
        if begun >= self._job.least_pods or now_s - self._began_s < self._limits.pending_s:
            return None
        waiting = [pod for pod in self.pods if not pod.started]
        why = next((pod.trouble() for pod in waiting if pod.trouble()), "")
        told = f"{begun} of {self._job.least_pods} pods run after {self._limits.pending_s:.0f} s"
        return (
            f"{told}; {why or f'{waiting[0].name} is {waiting[0].phase}' if waiting else self._state.message}"
        )

    def _too_long(self, now_s: float) -> str | None:
        running = [pod for pod in self.pods if pod.phase == "Running" and pod.started]
        for pod in running:
            if self._ranks.get(pod.name) == set():
                continue  # its ranks are done: torchrun waits for those of other pods, and says nothing
            if now_s - self._heard_s.get(pod.name, now_s) > self._limits.silent_s:
                return (
                    f"pod {pod.name} on {pod.node} is lost: nothing heard for {self._limits.silent_s:.0f} s"
                )
        if running and now_s - self._succeeded_s > self._limits.finish_s:
            return f"pod {running[0].name} still runs {self._limits.finish_s:.0f} s after others were done"
        return None

    def _explain(self, problem: str) -> str:
        """With what the ranks said, which tells more than that a pod ended."""
        deadline = time.monotonic() + FAILURE_GRACE_S
        while time.monotonic() < deadline and not self._logs.have_ended(
            [pod for pod in self.pods if pod.has_ended]
        ):
            for pod, line in self._logs.lines(0.1):
                self._take(pod, line)
        ended = [pod.trouble() for pod in self.pods if pod.reason and pod.trouble()]
        is_killed = any(pod.reason == "OOMKilled" for pod in self.pods)
        return (ended[0] if is_killed else "") or self._said.cause() or (ended[0] if ended else problem)

    def _tell(self) -> None:
        """Changes of the pods, and troubles that may pass."""
        for pod in self.pods:
            trouble = "" if pod.started or pod.cannot_start else pod.trouble()
            if trouble and trouble not in self._warned:
                self._warned.add(trouble)
                self._on_event(Event("warning", data={"text": f"{trouble}; waiting"}))
        counts: Mapping[str, int] = {
            phase: sum(pod.phase == phase for pod in self.pods)
            for phase in dict.fromkeys(pod.phase for pod in self.pods)
        }
        told = ", ".join(f"{number} {phase.lower()}" for phase, number in counts.items())
        if told != self._told:
            self._told = told
            nodes = sorted({pod.node for pod in self.pods if pod.node})
            about = {"pods": {pod.name: pod.phase for pod in self.pods}, "nodes": nodes}
            self._on_event(Event("phase", data={"name": f"pods: {told or 'none yet'}", **about}))

"""The follower and the pods' logs over a kubectl made up here: what a real cluster does rarely."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from provision.errors import LaunchError
from run.events import Event
from run.follow_pods import Followed, Follower, Limits
from run.kube import Gone, Kubectl
from run.podlogs import PodLogs
from run.pods import JobState, Pod

JOB = Followed("pytorchjob.kubeflow.org/t", "t", "x=t", 1)
LIMITS = Limits(pending_s=5, no_pods_s=5, silent_s=0.4, finish_s=0.6, unreachable_s=0.3, poll_s=0.05)
RUNNING = Pod("t-worker-0", "Running", "node7", started=1)
ENDED = Pod("t-worker-0", "Succeeded", "node7", exit_code=0, started=1)
RUNS, DONE = JobState("Running"), JobState("Succeeded")


class FakeKubectl:
    """Answers with the next of `states` and `pods`, the last for ever; logs() has lines and a code a call."""

    def __init__(
        self,
        states: Sequence[JobState | Exception],
        pods: Sequence[tuple[Pod, ...]],
        logs: Sequence[tuple[Sequence[str], int | None]] = (((), None),),
    ) -> None:
        self._states, self._pods, self._logs = list(states), list(pods), list(logs)
        self.since: list[str | None] = []

    def job(self, _name: str) -> JobState:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if isinstance(state, Exception):
            raise state
        return state

    def pods(self, _selector: str) -> tuple[Pod, ...]:
        return self._pods.pop(0) if len(self._pods) > 1 else self._pods[0]

    def logs(self, _pod: str, since: str | None) -> subprocess.Popen[bytes]:
        self.since.append(since)
        lines, code = self._logs.pop(0) if len(self._logs) > 1 else self._logs[0]
        end = "sleep 30" if code is None else f"exit {code}"
        script = f'printf "%s\\n" "$@"; {end}' if lines else end
        return subprocess.Popen(["sh", "-c", script, "sh", *lines], stdout=subprocess.PIPE)


def at(second: int, text: str) -> str:
    return f"2026-11-21T10:15:{second:02d}.000000000Z {text}"


def event(second: int, name: str, **fields: object) -> str:
    return at(second, "@clusterctl " + json.dumps({"event": name, "rank": 0, "node": "n", **fields}))


def follow(
    kubectl: FakeKubectl,
    folder: Path,
    on_event: Callable[[Event], None] = lambda event: None,
    job: Followed = JOB,
    limits: Limits = LIMITS,
) -> str | None:
    logs = PodLogs(cast(Kubectl, kubectl), folder)
    follower = Follower(
        cast(Any, kubectl), job, logs, on_event=on_event, stop_requests=lambda: 0, limits=limits
    )
    try:
        return follower.follow()
    finally:
        logs.close()


def test_output_that_was_cut_off_is_taken_up_where_it_ended(tmp_path: Path) -> None:
    first, again = [at(1, "one"), at(2, "two")], [at(2, "two"), at(3, "three")]
    kubectl = FakeKubectl([RUNS] * 3 + [DONE], [(RUNNING,)] * 3 + [(ENDED,)], [(first, 1), (again, 0)])
    seen: list[str] = []
    patient = replace(LIMITS, silent_s=20)
    problem = follow(kubectl, tmp_path, lambda event: seen.append(event.text), limits=patient)
    assert problem is None
    assert [text for text in seen if text in ("one", "two", "three")] == ["one", "two", "three"]
    assert kubectl.since[:2] == [None, at(2, "").strip()]
    assert (tmp_path / "t-worker-0.log").read_text() == "one\ntwo\nthree\n"


def test_a_pod_whose_ranks_are_done_may_be_silent_but_not_for_ever(tmp_path: Path) -> None:
    lines = [event(1, "start"), event(2, "exit", code=0)]
    kubectl = FakeKubectl([RUNS] * 3 + [DONE], [(RUNNING,)], [(lines, None)])
    began_s = time.monotonic()
    problem = follow(kubectl, tmp_path)
    assert problem == "pod t-worker-0 still runs 1 s after others were done"
    assert time.monotonic() - began_s > LIMITS.finish_s


def test_a_pod_whose_rank_is_alive_may_not_be_silent(tmp_path: Path) -> None:
    kubectl = FakeKubectl([RUNS], [(RUNNING,)], [([event(1, "start")], None)])
    assert follow(kubectl, tmp_path) == "pod t-worker-0 on node7 is lost: nothing heard for 0 s"


def test_a_cluster_that_is_silent_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    moment = [RUNS, LaunchError("the cluster does not answer"), LaunchError("again"), DONE]
    assert follow(FakeKubectl(moment, [(ENDED,)], [((), 0)]), tmp_path) is None
    with pytest.raises(LaunchError, match="does not answer"):
        follow(FakeKubectl([LaunchError("the cluster does not answer")], [()]), tmp_path)


def test_a_job_that_somebody_deleted_ends_the_wait_at_once(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="is gone"):
        follow(FakeKubectl([RUNS, Gone("pytorchjobs t is gone")], [(RUNNING,)]), tmp_path)


def test_a_pod_out_of_memory_outweighs_what_ranks_said_of_it(tmp_path: Path) -> None:
    killed = replace(ENDED, phase="Failed", exit_code=137, reason="OOMKilled")
    lines = [event(1, "error", text="connection closed by peer")]
    problem = follow(FakeKubectl([RUNS, JobState("Failed")], [(killed,)], [(lines, 0)]), tmp_path)
    assert problem == "pod t-worker-0 on node7 took more memory than it may; give more: --set memory_gib=N"


def test_what_a_rank_did_outweighs_what_its_peers_saw(tmp_path: Path) -> None:
    lost = event(1, "error", text="Connection closed by peer")
    told = event(2, "exit", rank=1, code=1, last_lines=["KeyError: 'x'"])
    failed = replace(ENDED, phase="Failed", exit_code=1)
    kubectl = FakeKubectl([RUNS, JobState("Failed", "gave up")], [(failed,)], [([lost, told], 0)])
    assert follow(kubectl, tmp_path) == "rank 1 on n ended with exit code 1: KeyError: 'x'"


def test_a_pod_that_another_replaced_is_forgiven_where_jobs_do_that(tmp_path: Path) -> None:
    pods = (replace(ENDED, phase="Failed", exit_code=1), replace(ENDED, name="t-worker-0-b"))
    job = replace(JOB, forgives=True)
    assert follow(FakeKubectl([DONE], [pods], [((), 0)]), tmp_path, job=job) is None
    assert follow(FakeKubectl([DONE], [pods], [((), 0)]), tmp_path) == (
        "pod t-worker-0 on node7 ended with exit code 1"
    )

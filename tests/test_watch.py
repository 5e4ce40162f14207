"""Verdicts on runs from events and times alone, and what a summary is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provision.model import Cluster
from run.events import Event, parse_line
from run.job import LaunchPlan
from run.launchers.common import Ground
from run.launchers.mpirun import plan
from run.program import Program
from run.summary import summarise
from run.watch import FAILURE_GRACE_S, READY_MARGIN_S, Watch
from tests.run_cases import STACK, TWO_CORES, TWO_SOCKETS, cluster, facts, job, layouts

JOB = job()


def made_plan() -> LaunchPlan:
    """Ranks 0 and 1 on node1, rank 2 on node2."""
    known = facts(TWO_SOCKETS, TWO_CORES)
    two: Cluster = cluster(2)
    return plan(Ground(JOB, two, layouts(known), known, STACK, 1))


def watch(*events: Event, at_s: float = 1.0) -> Watch:
    made = Watch(made_plan(), JOB, 0.0)
    for event in events:
        made.feed(event, at_s)
    return made


def all_ranks(name: str) -> list[Event]:
    return [Event(name, rank, "x") for rank in range(3)]


def ended(rank: int, code: int, line: str = "x") -> Event:
    return Event("exit", rank, "x", {"code": code, "last_lines": [line]})


STARTED = all_ranks("start")
READY = all_ranks("ready")
GOOD_END = [ended(rank, 0) for rank in range(3)]
LAUNCHER_0 = Event("launcher_exit", data={"code": 0})


def test_a_run_whose_ranks_and_launcher_end_well_has_no_problem() -> None:
    assert watch(*STARTED, *READY, *GOOD_END, LAUNCHER_0).cause() is None


def test_a_launcher_that_ends_well_without_all_ranks_is_a_problem() -> None:
    cause = watch(*STARTED, *READY, *GOOD_END[:2], LAUNCHER_0).cause()
    assert cause is not None
    assert "rank 2 on node2 never reported an end" in cause


def test_missing_ranks_are_waited_for_until_the_limit() -> None:
    made = watch(*STARTED[:2], at_s=1)
    assert made.verdict(20) is None
    verdict = made.verdict(60)
    assert verdict is not None
    assert verdict.startswith("rank 2 on node2 did not start within 60 s")


def test_ranks_that_did_not_meet_are_named() -> None:
    made = watch(*STARTED, READY[0])
    limit_s = JOB.rendezvous_timeout_s + READY_MARGIN_S
    for event in all_ranks("heartbeat"):
        made.feed(event, limit_s - 1)
    assert made.verdict(limit_s - 1) is None
    verdict = made.verdict(limit_s)
    assert verdict is not None
    assert verdict.startswith("rank 1 on node1, rank 2 on node2 did not meet the others within 120 s")


def test_a_silent_rank_is_lost_and_a_heartbeat_keeps_one() -> None:
    made = watch(*STARTED, *READY)
    made.feed(Event("heartbeat", 0), 30)
    made.feed(Event("heartbeat", 1), 30)
    verdict = made.verdict(32)
    assert verdict is not None
    assert verdict.startswith("rank 2 on node2 is lost (nothing heard for 30 s)")


def test_when_all_are_silent_the_way_to_the_head_is_suspected() -> None:
    verdict = watch(*STARTED, *READY).verdict(32)
    assert verdict is not None
    assert verdict.startswith("all ranks are lost (nothing heard for 30 s): node1 or the way to it fails")


def test_a_summary_that_rank_0_sends_for_all_is_no_sign_of_life() -> None:
    made = watch(*STARTED, *READY)
    made.feed(Event("rank_summary", 2), 30)
    made.feed(Event("heartbeat", 0), 30)
    made.feed(Event("heartbeat", 1), 30)
    assert "rank 2 on node2 is lost" in str(made.verdict(32))


def test_a_failure_is_judged_after_a_grace() -> None:
    made = watch(*STARTED, ended(0, 1), at_s=1)
    assert made.verdict(1 + FAILURE_GRACE_S) is None
    assert made.verdict(1.1 + FAILURE_GRACE_S) is not None


def test_the_victim_of_a_lost_peer_is_not_the_cause() -> None:
    victim = ended(0, 1, "RuntimeError: Connection closed by peer [10.0.0.2]:4711")
    made = watch(*STARTED, victim, ended(2, 137, "loading"))
    assert made.cause() == (
        "rank 2 on node2 was killed by signal 9: out of memory? see `dmesg` there; last output: loading"
    )


def test_an_abort_while_python_ended_is_told_from_any_other() -> None:
    cause = watch(*STARTED, ended(2, 134, "terminate called without an active exception")).cause()
    assert cause == (
        "rank 2 on node2 was killed by signal 6: Python ended under a thread of gloo's, a known fault of "
        "PyTorch's; where all the work was done, let the script end with `sys.stdout.flush(); os._exit(0)`; "
        "last output: terminate called without an active exception"
    )
    cause = watch(*STARTED, ended(2, 134, "free(): invalid pointer")).cause()
    assert cause == "rank 2 on node2 was killed by signal 6: last output: free(): invalid pointer"


def test_nor_where_the_lost_peer_merely_failed() -> None:
    victim = ended(0, 1, "Connection reset by peer")
    made = watch(*STARTED, victim, ended(2, 1, "ValueError: 7"))
    assert made.cause() == "rank 2 on node2 ended with exit code 1: ValueError: 7"


def test_the_recipes_own_error_is_the_cause_before_a_bare_exit_code() -> None:
    made = watch(*STARTED, ended(0, 1), Event("error", 2, data={"text": "no model"}), ended(2, 2))
    assert made.cause() == "rank 2 on node2 ended with exit code 2: no model"


def test_what_follows_a_verdict_does_not_change_it() -> None:
    made = watch(*STARTED, *READY)
    made.feed(Event("heartbeat", 0), 30)
    made.feed(Event("heartbeat", 1), 30)
    verdict = made.verdict(32)
    made.feed(ended(0, 137), 33)
    assert made.cause() == verdict


def test_hydras_banner_tells_of_a_killed_wrapper() -> None:
    event = parse_line("=   RANK 2 PID 5867 RUNNING AT node2")
    assert (event.name, event.rank, event.node) == ("killed", 2, "node2")
    cause = watch(*STARTED, event).cause()
    assert cause is not None
    assert cause.startswith("rank 2 on node2 was killed")


def test_a_lost_connection_is_named_with_the_last_output() -> None:
    cause = watch(*STARTED, Event("output", data={"text": "[0] step 5"})).cause()
    assert cause == "node1: the connection ended in the middle of the run; last output: [0] step 5"


def test_lines_that_are_no_whole_event_are_output() -> None:
    for line in ("plain", "@clusterctl {", "@clusterctl []", '@clusterctl {"rank": 1}'):
        assert parse_line(line) == Event("output", data={"text": line})


# --- nodes that are about to end ---------------------------------------------------------------

NOTICE = Event(
    "notice", 2, "node2", {"reason": "spot interruption", "ends_at": 1795269790.0, "left_s": 120.0}
)
SAVED = {"path": "output/checkpoint-7", "step": 7}


def test_a_noticed_run_has_until_shortly_before_the_end() -> None:
    made = watch(*STARTED, *READY, NOTICE, at_s=1)
    assert not made.is_out_of_time(100.9)
    assert made.is_out_of_time(101)
    assert made.is_out_of_time(50), "once it is, it stays so"
    assert str(made.interruption()) == (
        "node2 will end at 14:03:10 UTC (spot interruption): no checkpoint came in time"
    )


def test_a_run_that_saved_and_ended_is_interrupted_and_nothing_is_lost() -> None:
    saved, done = Event("checkpoint", 0, data=SAVED), Event("interrupted", 0, data=SAVED)
    made = watch(*STARTED, *READY, NOTICE, saved, done, *GOOD_END, LAUNCHER_0)
    assert not made.is_out_of_time(1000)
    interruption = made.interruption()
    assert interruption is not None
    assert interruption.is_fresh
    assert str(interruption) == ("node2 will end at 14:03:10 UTC (spot interruption): checkpointed at step 7")


def test_the_last_checkpoint_is_named_when_no_new_one_came() -> None:
    made = watch(*STARTED, *READY, Event("checkpoint", 0, data=SAVED), NOTICE)
    assert made.is_out_of_time(200)
    assert str(made.interruption()).endswith("no checkpoint came in time; the last one is of step 7")


def test_a_run_that_comes_to_its_own_end_in_time_is_not_interrupted() -> None:
    assert watch(*STARTED, *READY, NOTICE, *GOOD_END, LAUNCHER_0).interruption() is None


def test_a_noticed_node_that_is_gone_early_explains_a_failure() -> None:
    lost = ended(0, 1, "Connection closed by peer")
    assert watch(*STARTED, *READY, NOTICE, lost).interruption(gone={"node2"}) is not None
    assert watch(*STARTED, *READY, NOTICE, lost).interruption(gone={"node1"}) is None
    assert watch(*STARTED, *READY, lost).interruption(gone={"node2"}) is None


def test_a_notice_without_sense_is_none() -> None:
    broken = Event("notice", 2, "node2", {"reason": "x", "ends_at": 1e30, "left_s": 1})
    assert not watch(*STARTED, broken).is_out_of_time(1e9)


# --- summary -----------------------------------------------------------------------------------

RESULT = Event(
    "result",
    0,
    data={"exact_match": 23.64, "f1": 42.44, "samples_per_s": 29.9, "epoch_s": 33.3, "dtype": "bf16"},
)
SPEEDS = [Event("rank_summary", rank, data={"samples_per_s": 10.0 + rank}) for rank in range(3)]


def test_a_summary_in_lines() -> None:
    summary = summarise(made_plan(), [*SPEEDS, RESULT], 92.04)
    assert summary.lines() == (
        "2 nodes, 3 ranks x 2 threads, bf16, 92 s",
        "29.9 samples/s over all ranks, 33.3 s an epoch",
        "slowest rank 0 on node1 10.00, fastest rank 2 on node2 12.00 samples/s",
        "EM 23.6, F1 42.4",
    )


def test_a_run_that_only_evaluates_has_no_speed() -> None:
    result = Event("result", 0, data={"exact_match": 1.0, "f1": 2.0})
    assert summarise(made_plan(), [result], 5).lines() == (
        "2 nodes, 3 ranks x 2 threads, 5 s",
        "EM 1.0, F1 2.0",
    )


def test_a_failed_run_still_has_a_summary() -> None:
    summary = summarise(made_plan(), [Event("warning", 0, data={"text": "slow"})], 5, "rank 1 failed")
    assert (summary.problem, summary.warnings, summary.metrics) == ("rank 1 failed", ("slow",), {})
    assert summary.to_json()["nodes"] == ("node1", "node2")


def test_a_rank_that_told_its_error_is_the_cause_though_its_peers_end_first() -> None:
    told = Event("error", 0, None, {"text": "train.json is empty"})
    assert watch(*STARTED, told, ended(1, 1, "noise")).cause() == "rank 0 on node1: train.json is empty"


def test_what_a_peer_says_of_a_lost_rank_is_not_the_cause() -> None:
    told = Event("error", 0, None, {"text": "lost another rank (Connection closed by peer)"})
    cause = watch(*STARTED, told, ended(2, 139)).cause()
    assert cause is not None
    assert cause.startswith("rank 2 on node2 was killed by signal 11")


def lost_agent(node: str, code: int, *lines: str) -> Event:
    return Event("agent_exit", node=node, data={"code": code, "last_lines": lines})


DOCKERD = "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
LOST_AGENTS = {
    "no image, in podman 4.3.1's words": (
        "docker",
        [("node2", 125, "Trying to pull me/x:1...", "Error: initializing source docker://me/x:1: refused")],
        "node2: the container ended with exit code 125: Error: initializing source docker://me/x:1: refused; "
        "bring the image there first, by pull or load: `clusterctl exec -- podman pull IMAGE`",
    ),
    "no daemon, in Docker 28's": (
        "docker",
        [(node, 125, DOCKERD, "", "Run 'docker run --help' for more") for node in ("node1", "node2")],
        f"node1, node2: the container ended with exit code 125: {DOCKERD}; "
        "start Docker there, and let its user use it",
    ),
    "no engine on one": (
        "docker",
        [("node2", 127, "node2: docker cannot be started: No such file or directory"), ("node1", 143)],
        "node2: the container ended with exit code 127: docker cannot be started: No such file or "
        "directory; install that engine there, or choose the other: --set engine=...",
    ),
    "torchrun's own error": (
        "torchrun",
        [("node2", 1, "RendezvousTimeoutError: it took too long", "=" * 60)],
        "node2: the agent ended with exit code 1: RendezvousTimeoutError: it took too long",
    ),
    "a node that is gone": (
        "torchrun",
        [("node2", 255, "Timeout, server 10.0.0.2 not responding.")],
        "node2: the way there from node1 was lost: Timeout, server 10.0.0.2 not responding.",
    ),
}


@pytest.mark.parametrize(("launcher", "agents", "said"), LOST_AGENTS.values(), ids=LOST_AGENTS)
def test_an_agent_that_starts_no_rank_is_named_with_its_node_and_what_to_do(launcher, agents, said) -> None:
    made = Watch(replace(made_plan(), launcher=launcher), JOB, 0.0)
    for agent in agents:
        made.feed(lost_agent(*agent), 1.0)
    made.feed(Event("launcher_exit", data={"code": agents[0][1]}), 1.0)
    assert made.cause() == said


def test_ranks_that_failed_say_more_than_their_agents() -> None:
    made = Watch(replace(made_plan(), launcher="torchrun"), JOB, 0.0)
    for event in (*STARTED, ended(2, 1, "ValueError: x"), lost_agent("node2", 1, "ChildFailedError:")):
        made.feed(event, 1.0)
    assert made.cause() == "rank 2 on x ended with exit code 1: ValueError: x"


@pytest.mark.parametrize(
    ("launcher", "where"),
    [("mpirun", "`packages` of the inventory"), ("docker", "the image, `clusterctl image --package`")],
)
def test_a_package_that_a_script_lacks_is_told_with_the_place_for_it(launcher, where) -> None:
    own = replace(JOB, program=Program("mine", ("mine.py",), source=Path()))
    why = "ModuleNotFoundError: No module named 'evaluate'"
    for job_of, told in ((own, f"{why}; what pip has goes into {where}"), (JOB, why)):
        made = Watch(replace(made_plan(), launcher=launcher), job_of, 0.0)
        made.feed(ended(0, 1, why), 1.0)
        assert made.cause() == f"rank 0 on node1 ended with exit code 1: {told}"

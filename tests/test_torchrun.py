"""Plans of the torchrun launcher, its agents as real processes, and runs that begin anew."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from provision.errors import SettingsError
from run.commands.launch import TrainOptions, node_range
from run.events import Event
from run.launchers.common import Ground
from run.launchers.torchrun import Elastic, first_of, plan
from run.watch import FAILURE_GRACE_S, Watch
from tests.golden import assert_golden
from tests.run_cases import STACK, TWO_CORES, TWO_SOCKETS, cluster, facts, job, layouts
from tests.test_rank import await_death, wait_until

AGENTS = Path(__file__).parents[1] / "run" / "agents.py"


def planned(restarts: int = 0, least: int | None = None):
    known = facts(TWO_SOCKETS, TWO_CORES)
    return plan(Ground(job(), cluster(2), layouts(known), known, STACK, 29501), Elastic(restarts, least))


def test_plan_for_uneven_nodes():
    assert_golden("torchrun-uneven.txt", planned(2, 1).render())


@pytest.mark.parametrize(
    ("head", "others"),
    [
        ("10.0.0.1", ["10.0.0.2", "10.0.0.3"]),
        ("10.0.0.9", ["10.0.0.8", "10.0.0.10"]),
        ("198.18.0.2", ["198.18.0.10"]),
        ("9.0.0.1", ["10.0.0.1"]),
    ],
)
def test_the_heads_agent_comes_first_and_is_still_the_same_address(head, others):
    """Torch gives rank 0 to the first as text; a results folder is fetched from the head alone."""
    addresses = (head, *others)
    apart = cluster(len(addresses))
    nodes = [replace(node, private_address=each) for node, each in zip(apart.nodes, addresses, strict=True)]
    known = facts(*[TWO_CORES] * len(nodes))
    ground = Ground(job(), replace(apart, nodes=tuple(nodes)), layouts(known), known, STACK, 29501)

    agents = json.loads(plan(ground).files["plan.json"])["launcher"]["agents"]
    written = [argv[argv.index("--local-addr") + 1] for argv in agents.values()]
    assert min(written) == written[0]
    assert [socket.gethostbyname(each) for each in written] == list(addresses)


def test_a_name_of_the_head_is_left_as_it_is():
    assert first_of("n2.lab", ["n1.lab"]) == "n2.lab"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": "3:2", "launcher": "torchrun"}, "the smaller number comes first"),
        ({"nodes": "0", "launcher": "torchrun"}, "is 1 or more"),
        ({"nodes": "1:2", "launcher": "mpirun"}, "mpirun cannot go on with fewer; use torchrun"),
        ({"nodes": "two", "launcher": "mpirun"}, "a number, or under torchrun LEAST:MOST"),
        ({"nodes": "5", "launcher": "mpirun"}, "cluster demo has 2 nodes; `clusterctl up` adds more"),
        ({"nodes": "1:2", "launcher": "torchrun"}, "add --restarts 3"),
        ({"restarts": 1, "launcher": "mpirun"}, "mpirun starts ranks once; add --launcher torchrun"),
    ],
)
def test_a_range_that_is_none_is_refused(options, said):
    with pytest.raises(SettingsError, match=said):
        node_range(cluster(2), TrainOptions("run_qa", **options))


def test_a_range_is_the_first_nodes():
    least, nodes = node_range(
        cluster(3), TrainOptions("run_qa", nodes="1:2", launcher="torchrun", restarts=1)
    )
    assert (least, [node.name for node in nodes]) == (1, ["node1", "node2"])


# --- agents: real processes, /bin/sh in place of ssh -------------------------------------------


@pytest.fixture
def start_agents(tmp_path):
    started = []

    def start(least: int | None = None, **scripts: str) -> subprocess.Popen[str]:
        shutil.copy(AGENTS, tmp_path)
        # What ssh would run on the node runs here, in the same folder.
        far = tmp_path / "ssh"
        far.write_text(f'#!/bin/sh\ncd {tmp_path} && exec {sys.executable} agents.py "$1"\n')
        far.chmod(0o755)
        launcher = {
            "python": sys.executable,
            "ssh": [str(far)],
            "least": len(scripts) if least is None else least,
            "environment": {"MARK": "here", "CLUSTERCTL_RUN_ID": "one"},
            "agents": {node: ["sh", "-c", script] for node, script in scripts.items()},
        }
        (tmp_path / "plan.json").write_text(json.dumps({"launcher": launcher}))
        process = subprocess.Popen(
            [sys.executable, "agents.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and bool(path.read_text().strip()), f"{path}")
    return int(path.read_text())


SLEEP = "echo $$ > {0}.tmp; mv {0}.tmp {0}; exec sleep 600"


def test_all_agents_output_comes_in_whole_lines(start_agents):
    loop = 'for i in $(seq 300); do printf "%s " $MARK; echo {0} $i; done'
    out, _ = (process := start_agents(n1=loop.format("a"), n2=loop.format("b"))).communicate(timeout=20)

    assert process.returncode == 0
    lines = out.splitlines()
    assert [line for line in lines if " a " in line] == [f"here a {i}" for i in range(1, 301)]
    assert len(lines) == 600


def test_one_that_fails_takes_the_others_along_and_is_named(start_agents, tmp_path):
    process = start_agents(n1=SLEEP.format("first"), n2="sleep 0.5; echo why; exit 7")
    pid = pid_in(tmp_path / "first")
    out, _ = process.communicate(timeout=20)

    assert process.returncode == 7
    assert json.loads(out.splitlines()[1].removeprefix("@clusterctl ")) == {
        "event": "agent_exit", "node": "n2", "code": 7, "last_lines": ["why"],
    }  # fmt: skip
    await_death([pid], 1)


def test_enough_that_are_left_go_on(start_agents):
    process = start_agents(least=1, n1="sleep 4; echo done", n2="exit 7")
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out.splitlines()[-1]) == (0, "done")


def test_those_that_are_left_are_made_to_meet_anew(start_agents, tmp_path):
    """Their ranks would wait for ever for one whose node is gone."""
    (tmp_path / "rank.py").write_text("import time; print('a rank', flush=True); time.sleep(600)")
    waits = f"{sys.executable} -u rank.py recipe.py; echo ended with $?"
    out, _ = (process := start_agents(least=1, n1=waits, n2="sleep 1; exit 255")).communicate(timeout=20)

    assert process.returncode == 0
    assert out.splitlines()[0] == "a rank"
    assert out.splitlines()[-1] == "ended with 143"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_when_it_is_ended_so_are_all_commands(start_agents, tmp_path, number):
    process = start_agents(n1=SLEEP.format("first"), n2=SLEEP.format("second"))
    pids = [pid_in(tmp_path / name) for name in ("first", "second")]
    process.send_signal(number)

    assert process.wait(20) == (128 + 15 if number == signal.SIGTERM else -9)
    await_death(pids, 5)


def test_a_command_that_ignores_the_end_is_killed(start_agents, tmp_path):
    process = start_agents(n1="exit 3", n2="trap '' TERM; " + SLEEP.format("second").replace("exec ", ""))
    pid = pid_in(tmp_path / "second")
    began = time.monotonic()

    assert process.wait(40) == 3
    assert time.monotonic() - began < 30
    await_death([pid], 1)


# --- a run that begins anew, as the watch sees it ----------------------------------------------

JOB = job()


def watch(*events: Event, restarts: int = 2) -> Watch:
    made = Watch(planned(restarts), JOB, 0.0)
    for event in events:
        made.feed(event, 1.0)
    return made


def begun(node: str = "node1", ranks: int = 3) -> list[Event]:
    return [Event("start", rank, node, {"world_size": ranks}) for rank in range(ranks)]


def ended(code: int, *ranks: int) -> list[Event]:
    return [Event("exit", rank, "node1", {"code": code, "last_lines": ["boom"]}) for rank in ranks]


READY = [Event("ready", rank) for rank in range(3)]
LAUNCHER_0 = Event("launcher_exit", data={"code": 0})


def test_a_rank_that_failed_is_given_time_to_begin_anew():
    failed = watch(*begun(), *READY, *ended(137, 1))
    assert failed.verdict(1 + FAILURE_GRACE_S + 1) is None
    assert "rank 1 on node1 was killed by signal 9" in failed.verdict(1 + 500)
    once = watch(*begun(), *READY, *ended(137, 1), restarts=0)
    assert once.verdict(1 + FAILURE_GRACE_S + 1) is not None


def test_what_was_before_the_restart_counts_no_more():
    again = watch(*begun(), *READY, *ended(137, 1), *ended(1, 0, 2), *begun("node2"), *READY)
    assert again.verdict(10) is None
    again.feed(Event("heartbeat", 0, "node2"), 20)
    for event in [*ended(0, 0, 1, 2), LAUNCHER_0]:
        again.feed(event, 21)
    assert again.all_done


def test_a_run_that_goes_on_with_fewer_waits_for_none_that_is_gone():
    fewer = watch(
        *begun(), *READY, *ended(137, 2), *begun("node1", 2), *READY[:2], *ended(0, 0, 1), LAUNCHER_0
    )
    assert fewer.all_done
    assert fewer.cause() is None


def test_the_last_failure_is_the_cause_once_the_launcher_gives_up():
    failed = watch(*begun(), *READY, *ended(137, 1), *begun(), *READY, *ended(3, 1))
    failed.feed(Event("launcher_exit", data={"code": 1}), 2.0)
    assert failed.cause() == "rank 1 on node1 ended with exit code 3: boom"


def test_ranks_are_where_they_say_they_are():
    elsewhere = watch(*begun("node2"), *ended(3, 0), restarts=0)
    assert elsewhere.cause() == "rank 0 on node2 ended with exit code 3: boom"


# --- a run in which nothing happens ------------------------------------------------------------


def heartbeat(rank: int, cpu_s: float) -> Event:
    return Event("heartbeat", rank, "node1", {"cpu_s": cpu_s})


def follow(cpu_s_at, until_s: float) -> str | None:
    """The verdict on three ranks that beat every 5 s, their CPU time being a function of the time."""
    made = watch(*begun(), *READY, restarts=0)
    for now in range(5, int(until_s), 5):
        for rank in range(3):
            made.feed(heartbeat(rank, cpu_s_at(rank, now)), now)
        if made.verdict(now):
            return made.verdict(now)
    return None


def test_ranks_that_all_wait_are_ended_and_what_to_do_is_said():
    said = follow(lambda rank, now: 3 + now * 0.002, JOB.idle_after_s + 20)
    assert said.startswith("no rank has printed or computed anything for 600 s; last output: nothing;")
    assert said.endswith("give it more with --idle-timeout")


def test_a_rank_that_computes_in_silence_is_left_alone():
    assert follow(lambda rank, now: now * 0.05 if rank == 2 else 0, 2 * JOB.idle_after_s) is None


def test_a_rank_that_prints_is_left_alone():
    made = watch(*begun(), *READY, restarts=0)
    for now in range(5, 1200, 5):
        for rank in range(3):
            made.feed(heartbeat(rank, 0), now)
        if now % 100 == 0:
            made.feed(Event("output", data={"text": "[1] still here"}), now)
    assert made.verdict(1200) is None

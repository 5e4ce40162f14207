"""Whole runs with several nodes that are folders of this machine, real head.py and rank.py, a fake mpirun."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import run.results
import run.watch
from provision.errors import CommandError, ConnectError, HostError, LaunchError, SettingsError
from provision.host import CommandResult, quoted
from provision.model import Node
from run.events import Event
from run.execute import RunOutcome, train
from run.folders import Stopped
from run.job import LaunchPlan, TrainJob
from run.launchers.common import Ground
from run.launchers.mpirun import plan as make_plan
from run.program import recipe_program
from tests.run_cases import RUN_ID, TWO_CORES, cluster, facts, layouts
from tests.test_rank import await_death, wait_until

GOOD = """
import json, os, pathlib, sys, time
def emit(**event): print("@clusterctl " + json.dumps(event), flush=True)
rank = int(os.environ["RANK"])
emit(event="ready", rank=rank)
print("hello from", rank)
if rank == 0:
    assert json.load(open("data/train_file/squad.json")) == {"data": []}
    for r in range(2): emit(event="rank_summary", rank=r, samples_per_s=10.0 + r)
    pathlib.Path("output/checkpoint-5").mkdir(parents=True)
    pathlib.Path("output/model.bin").write_bytes(bytes(range(256)) * 1000)
    emit(event="result", exact_match=50.0, f1=60.5, samples_per_s=21.0, epoch_s=2.5, dtype="bf16")
"""
WAIT = """
import os, time
open("pid", "w").write(str(os.getpid()))
print('@clusterctl {"event": "ready"}', flush=True)
time.sleep(600)
"""
SAVES = """
import json, os, pathlib, time
def emit(**event): print("@clusterctl " + json.dumps(event), flush=True)
def is_wanted(): return os.path.exists(os.environ["CLUSTERCTL_CHECKPOINT_REQUEST"])
open("pid", "w").write(str(os.getpid()))
emit(event="ready")
agreed = pathlib.Path(os.environ["FAKE_AGREED"])
while not agreed.exists():
    if is_wanted(): agreed.touch()
    time.sleep(0.05)
if os.environ["RANK"] == "0":
    folder = pathlib.Path("output/checkpoint-7")
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text("{}\\n")
    emit(event="checkpoint", path=str(folder), step=7)
    emit(event="interrupted", path=str(folder), step=7)
"""
RANK_1 = "import os, signal, sys, time, subprocess\nif os.environ['RANK'] == '1':\n    "


class LocalHost:
    """A node that is a home folder on this machine; its own `programs` come before those of the machine."""

    def __init__(self, node: Node, home: Path) -> None:
        self._node, self.home, self.is_dead = node, home, False
        self.programs = home.parent / "programs" / node.name
        self.running: list[subprocess.Popen[bytes]] = []
        home.mkdir(exist_ok=True)
        self.programs.mkdir(parents=True)
        self.program("uname", f"echo {self.hostname}")

    @property
    def hostname(self) -> str:
        return f"host-of-{self.node.name}"

    def program(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    @property
    def node(self) -> Node:
        return self._node

    def run(
        self,
        script: str,
        *args: str,
        sudo: bool = False,
        stdin: bytes = b"",
        expect: Sequence[int] = (0,),
        timeout_s: float = 60,
    ) -> CommandResult:
        self._require_life()
        command = quoted(script, *args)
        process = subprocess.Popen(
            ["sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment(),
            start_new_session=True,
        )
        self.running.append(process)
        out, err = process.communicate(stdin, timeout_s)
        self.running.remove(process)
        result = CommandResult(process.returncode, out.decode(), err.decode())
        if result.exit_code not in expect:
            raise CommandError(self.node.name, command, result.exit_code, result.output)
        return result

    def stream(self, script: str, *args: str) -> LocalStream:
        self._require_life()
        return LocalStream(quoted(script, *args), self._environment())

    def close(self) -> None:
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def _environment(self) -> Mapping[str, str]:
        return {"HOME": str(self.home), "PATH": f"{self.programs}:{os.environ['PATH']}"}

    def _require_life(self) -> None:
        if self.is_dead:
            raise ConnectError(self.node.name, "does not answer; is it up?")


class LocalStream:
    """The Stream of a LocalHost."""

    def __init__(self, command: str, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        self._lines: list[str] = []
        self._more, self._ended = threading.Condition(), False
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._lines.append(line.decode().rstrip("\n"))
                self._more.notify()
        with self._more:
            self._ended = True
            self._more.notify()

    def readline(self, timeout_s: float) -> str | None:
        with self._more:
            self._more.wait_for(lambda: self._lines or self._ended, timeout_s)
            if self._lines:
                return self._lines.pop(0)
            if self._ended:
                raise EOFError
            return None

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait(self, timeout_s: float) -> int:
        return self.process.wait(timeout_s)

    def close(self) -> None:
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()


class Bench:
    """Nodes, a job whose recipe is the given script, and what happened in the run."""

    def __init__(self, folder: Path, *homes: str) -> None:
        self.folder, self.events = folder, list[Event]()
        self.hosts = [
            LocalHost(node, folder / home)
            for node, home in zip(cluster(len(homes)).nodes, homes, strict=True)
        ]
        self.runs = folder / "runs"
        self.stops = 0
        self._make_stack()

    def _make_stack(self) -> None:
        folder = self.folder / "stack" / "bin"
        folder.mkdir(parents=True)
        fake = Path(__file__).parent / "fake_mpirun.py"
        for name, command in {"python": sys.executable, "mpirun": f"{sys.executable} {fake}"}.items():
            (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (folder / name).chmod(0o755)

    def prepare(self, script: str, **fake: str) -> tuple[LaunchPlan, TrainJob]:
        recipe, data = self.folder / "recipe", self.folder / "squad.json"
        recipe.mkdir(exist_ok=True)
        (recipe / "question_answering.py").write_text(script)
        data.write_text('{"data": []}')
        homes = json.dumps({host.node.name: str(host.home) for host in self.hosts})
        hostnames = json.dumps({host.node.name: host.hostname for host in self.hosts})
        # ~/notice-NODE of each node: the ranks run in ~/.clusterctl/runs/ID.
        fake = {"CLUSTERCTL_NOTICE": "../../../notice", "FAKE_AGREED": str(self.folder / "agreed"), **fake}
        job = TrainJob(
            recipe_program("run_qa"),
            RUN_ID,
            uploads={"recipe": recipe, "data/train_file/squad.json": data},
            environment={"FAKE_HOMES": homes, "FAKE_HOSTNAMES": hostnames, **fake},
            request={"recipe": "run_qa"},
            stop_grace_s=8,
        )
        return self.plan(job), job

    def plan(self, job: TrainJob) -> LaunchPlan:
        known = facts(*[TWO_CORES] * len(self.hosts))
        stack_dir = str(self.folder / "stack")
        return make_plan(Ground(job, cluster(len(self.hosts)), layouts(known), known, stack_dir, 1))

    def train(self, script: str, fake: Mapping[str, str] | None = None, **limits: float) -> RunOutcome:
        plan, job = self.prepare(script, **(fake or {}))
        return self.train_plan(plan, replace(job, **limits))  # type: ignore[arg-type]

    def train_plan(self, plan: LaunchPlan, job: TrainJob) -> RunOutcome:
        return train(
            self.hosts,
            plan,
            job,
            on_event=self.on_event,
            stop_requests=lambda: self.stops,
            runs_folder=self.runs,
        )

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def fails(self, script: str, fake: Mapping[str, str] | None = None, **limits: float) -> str:
        with pytest.raises(LaunchError) as caught:
            self.train(script, fake, **limits)
        return str(caught.value)

    def script_pids(self) -> list[int]:
        """Of WAIT's processes, once both are there."""
        paths = [host.home / ".clusterctl/runs" / RUN_ID / "pid" for host in self.hosts]
        wait_until(lambda: all(path.exists() and path.read_text() for path in paths), "both scripts")
        return [int(path.read_text()) for path in paths]

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, "node1", "node2")


@pytest.fixture
def shared(tmp_path: Path) -> Bench:
    """The first two of three nodes have one home."""
    return Bench(tmp_path, "home", "home", "node3")


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# --- runs that end well ------------------------------------------------------------------------


def test_a_run_brings_its_results_home(bench: Bench) -> None:
    outcome = bench.train(GOOD)
    assert (outcome.exit_code, outcome.folder, outcome.missing) == (0, bench.runs / RUN_ID, ())
    assert (outcome.folder / "output/model.bin").read_bytes() == bytes(range(256)) * 1000
    assert (outcome.folder / "logs/rank-001.log").read_text() == (
        '@clusterctl {"event": "ready", "rank": 1}\nhello from 1\n'
    )
    assert {path.name for path in outcome.folder.iterdir()} == {
        *("logs", "output", "plan.json", "plan.txt", "request.json", "summary.json")
    }
    assert list(bench.runs.iterdir()) == [outcome.folder]


def test_checkpoints_stay_on_the_head(bench: Bench) -> None:
    outcome = bench.train(GOOD)
    assert not (outcome.folder / "output/checkpoint-5").exists()
    assert (bench.hosts[0].home / ".clusterctl/runs" / RUN_ID / "output/checkpoint-5").exists()
    assert not (bench.hosts[1].home / ".clusterctl/runs" / RUN_ID).exists()


def test_the_summary_is_made_of_the_recipes_events(bench: Bench) -> None:
    outcome = bench.train(GOOD)
    written = json.loads((outcome.folder / "summary.json").read_text())
    assert (written["f1"], written["problem"], written["missing"]) == (60.5, None, [])
    assert [(speed.node, speed.samples_per_s) for speed in outcome.summary.speeds] == [
        ("node1", 10.0),
        ("node2", 11.0),
    ]


def test_events_come_typed_and_lines_as_output(bench: Bench) -> None:
    bench.train(GOOD)
    assert {(event.rank, event.node) for event in bench.named("start")} == {(0, "node1"), (1, "node2")}
    assert "[1] hello from 1" in [event.text for event in bench.named("output")]
    assert bench.named("sweep") == []


# --- runs that end badly -----------------------------------------------------------------------


def test_a_failing_rank_ends_the_run_within_seconds_and_is_named(bench: Bench) -> None:
    began_s = time.monotonic()
    said = bench.fails(RANK_1 + "raise SystemExit('boom')\n" + WAIT)
    assert said.startswith("rank 1 on node2 ended with exit code 1: boom; logs are in ")
    assert time.monotonic() - began_s < 12
    assert (bench.runs / RUN_ID / "logs/rank-001.log").read_text() == "boom\n"
    assert "boom" in json.loads((bench.runs / RUN_ID / "summary.json").read_text())["problem"]
    await_death([int((bench.hosts[0].home / ".clusterctl/runs" / RUN_ID / "pid").read_text())], 2)


def test_the_recipes_own_words_explain_a_failure(bench: Bench) -> None:
    script = (
        """print('@clusterctl {"event": "error", "text": "no such model"}', flush=True)\n    sys.exit(2)"""
    )
    said = bench.fails(RANK_1 + script + "\n" + WAIT)
    assert said.startswith("rank 1 on node2 ended with exit code 2: no such model;")


def test_a_rank_killed_by_the_kernel_is_named(bench: Bench) -> None:
    said = bench.fails(RANK_1 + "os.kill(os.getpid(), signal.SIGKILL)\n" + WAIT)
    assert said.startswith("rank 1 on node2 was killed by signal 9: out of memory?")


def test_a_rank_that_never_starts_is_named(bench: Bench) -> None:
    said = bench.fails(WAIT, {"FAKE_SKIP": "1"}, start_timeout_s=2)
    assert said.startswith("rank 1 on node2 did not start within 2 s")


def test_a_rank_that_is_never_ready_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.watch, "READY_MARGIN_S", 1)
    said = bench.fails(
        RANK_1 + "print('stuck', flush=True); time.sleep(600)\n" + WAIT, rendezvous_timeout_s=2
    )
    assert said.startswith("rank 1 on node2 did not meet the others within 2 s; last output: stuck")


def test_a_silent_rank_is_lost(bench: Bench) -> None:
    said = bench.fails(RANK_1 + "os.kill(os.getppid(), signal.SIGSTOP)\n" + WAIT, lost_after_s=7)
    assert said.startswith("rank 1 on node2 is lost (nothing heard for 7 s)")


def test_hydras_words_about_a_node_it_cannot_reach_become_a_cause(bench: Bench) -> None:
    said = bench.fails(GOOD, {"FAKE_SAYS": "[mpiexec@h] Error: Unable to run bstrap_proxy on node2 (pid 1)"})
    assert said.startswith(
        "node2: node1 cannot start processes there over ssh; try `ssh node2 true` on node1"
    )


def test_a_launcher_that_fails_without_a_rank_shows_its_last_output(bench: Bench) -> None:
    said = bench.fails(GOOD, {"FAKE_SAYS": "no idea"})
    assert said.startswith(
        "node1: the launcher ended with exit code 255; rank 0 on node1, rank 1 on node2 never"
    )
    assert "last output: no idea" in said


def test_a_head_that_is_gone_ends_the_run(bench: Bench) -> None:
    def kill_head() -> None:
        bench.script_pids()
        found = subprocess.run(
            ["pgrep", "-f", f"{bench.folder}.*head.py|^[^ ]+ head.py"], capture_output=True
        )
        for pid in map(int, found.stdout.split()):
            with contextlib.suppress(OSError):  # pgrep found what has ended since, or another's
                if RUN_ID in Path(f"/proc/{pid}/environ").read_text():
                    os.kill(pid, signal.SIGKILL)

    in_background(kill_head)
    assert bench.fails(WAIT).startswith("node1: the connection ended in the middle of the run")
    await_death(bench.script_pids(), 3)


def test_a_node_that_died_is_named_before_what_its_peers_say(bench: Bench) -> None:
    def die(event: Event) -> None:
        if event.name == "exit":
            bench.hosts[1].is_dead = True

    bench.on_event = die  # type: ignore[method-assign]
    said = bench.fails("raise SystemExit('Connection closed by peer')")
    assert said.startswith("node2: does not answer; is it up?; rank ")


@pytest.mark.parametrize("made", [None, "another-token node7\n"])
def test_two_runs_never_share_a_folder(bench: Bench, made: str | None) -> None:
    theirs = bench.hosts[1].home / ".clusterctl/runs" / RUN_ID
    theirs.mkdir(parents=True)
    if made:
        (theirs / "made").write_text(made)
    with pytest.raises(HostError, match=rf"^node2: ~/.clusterctl/runs/{RUN_ID} is there already, of another"):
        bench.train(GOOD)
    assert [path.name for path in theirs.iterdir()] == (["made"] if made else [])
    assert not list((bench.hosts[0].home / ".clusterctl/runs").iterdir())


def test_files_that_do_not_arrive_are_told_in_words_and_nothing_is_left_of_them(bench: Bench) -> None:
    bench.hosts[1].program("tar", "echo tar: data: Cannot write: No space left on device >&2; exit 2")
    with pytest.raises(HostError) as caught:
        bench.train(GOOD)
    assert str(caught.value) == (
        "node2: the run's files could not be brought there: tar: data: Cannot write: No space left on device"
    )
    assert [list((host.home / ".clusterctl/runs").iterdir()) for host in bench.hosts] == [[], []]


# --- one home for several nodes ----------------------------------------------------------------


def test_nodes_with_one_home_train_together_and_each_knows_which_it_is(shared: Bench) -> None:
    outcome = shared.train(GOOD.replace("range(2)", "range(3)"))
    assert (outcome.exit_code, outcome.missing) == (0, ())
    assert {(event.rank, event.node) for event in shared.named("start")} == {
        (0, "node1"), (1, "node2"), (2, "node3"),
    }  # fmt: skip
    for rank in range(3):
        assert f"hello from {rank}" in (outcome.folder / f"logs/rank-00{rank}.log").read_text()
    assert (outcome.folder / "output/model.bin").exists()
    run = shared.hosts[0].home / ".clusterctl/runs" / RUN_ID
    assert {path.name for path in (run / "nodes").iterdir()} == {"host-of-node1", "host-of-node2"}
    assert not (shared.hosts[2].home / ".clusterctl/runs" / RUN_ID).exists()


def test_a_shared_folder_is_fetched_over_another_node_when_the_first_is_gone(shared: Bench) -> None:
    def die(event: Event) -> None:
        shared.events.append(event)
        shared.hosts[0].is_dead = shared.hosts[0].is_dead or event.name == "launcher_exit"

    shared.on_event = die  # type: ignore[method-assign]
    outcome = shared.train(GOOD.replace("range(2)", "range(3)"))
    assert (outcome.exit_code, outcome.missing) == (0, ())
    assert (outcome.folder / "output/model.bin").exists()


def test_nodes_with_one_home_and_one_host_name_are_refused_by_name(shared: Bench) -> None:
    for host in shared.hosts:
        host.program("uname", "echo localhost")
    with pytest.raises(HostError, match=r"its host name localhost is node\d's too, and both have one home; "):
        shared.train(GOOD)
    assert [list((host.home / ".clusterctl/runs").iterdir()) for host in shared.hosts] == [[], [], []]


def test_what_is_the_heads_alone_comes_to_a_shared_home_whoever_was_first(shared: Bench) -> None:
    folder = shared.folder / "checkpoint-7"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    shared.hosts[0].program("mkdir", 'sleep 0.5; exec /bin/mkdir "$@"')
    _, job = shared.prepare("import os\nprint(os.listdir('data'))\n" + GOOD.replace("range(2)", "range(3)"))
    job = replace(job, head_uploads={"data/resume_from_checkpoint/checkpoint-7": folder})
    shared.train_plan(shared.plan(job), job)
    run = shared.hosts[0].home / ".clusterctl/runs" / RUN_ID
    assert (run / "made").read_text().split()[1] == "node2"
    said = {event.text for event in shared.named("output")}
    assert "[0] ['train_file', 'resume_from_checkpoint']" in {
        text.replace("['resume_from_checkpoint', 'train_file']", "['train_file', 'resume_from_checkpoint']")
        for text in said
    }
    assert "[2] ['train_file']" in said


def test_large_files_are_kept_once_in_a_shared_home(shared: Bench) -> None:
    large = shared.folder / "large.bin"
    large.write_bytes(os.urandom(1 << 19))
    plan, job = shared.prepare(GOOD.replace("range(2)", "range(3)"))
    job = replace(job, uploads={**job.uploads, "data/large.bin": large})
    for _ in range(2):
        plan = replace(shared.plan(job), run_id=plan.run_id)
        shared.train_plan(plan, job)
        run = shared.hosts[0].home / ".clusterctl/runs" / RUN_ID
        assert (run / "data/large.bin").read_bytes() == large.read_bytes()
        shutil.rmtree(run)  # a checkpoint was in it
        shutil.rmtree(shared.runs)
    kept = shared.hosts[0].home / ".clusterctl/files"
    assert [path.read_bytes() for path in kept.iterdir()] == [large.read_bytes()]


@pytest.mark.parametrize("leaving", [(1,), (1, 2)])
def test_a_checkpoint_in_a_shared_home_is_brought_when_no_node_of_it_stays(
    shared: Bench, leaving: tuple[int, ...]
) -> None:
    notice_when_ready(shared, *leaving)
    outcome = shared.train(SAVES)
    assert outcome.exit_code == 75
    assert checkpoint_7(outcome.folder).exists() == (leaving == (1, 2))


def test_results_that_have_no_place_are_told_before_anything_is_started(bench: Bench) -> None:
    bench.runs.touch()
    with pytest.raises(
        SettingsError, match=r"runs: no place for the results \(Not a directory\); name another"
    ):
        bench.train(GOOD)
    assert not (bench.hosts[0].home / ".clusterctl").exists()


def test_results_that_cannot_be_kept_are_left_on_the_node_and_said_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run.results, "_describe", is_full)
    said = bench.fails(GOOD)
    assert (
        "No space left on device; not all results are there; what the run made is still on node1, in " in said
    )
    assert (bench.hosts[0].home / ".clusterctl/runs" / RUN_ID / "output/model.bin").exists()


# --- stopping and sweeping ---------------------------------------------------------------------


def stop_when_ready(bench: Bench, *, times: int) -> None:
    bench.script_pids()
    wait_until(lambda: len(bench.named("ready")) == 2, "ready")
    bench.stops = times


def test_a_stop_ends_the_ranks_on_every_node(bench: Bench) -> None:
    in_background(lambda: stop_when_ready(bench, times=1))
    outcome = bench.train(WAIT)
    assert (outcome.exit_code, outcome.summary.problem) == (130, "stopped")
    assert {event.data["code"] for event in bench.named("exit")} == {128 + signal.SIGTERM}
    await_death(bench.script_pids(), 2)


def test_a_stop_while_ranks_are_started_has_nothing_to_wait_for(bench: Bench) -> None:
    """hydra does not heed a SIGTERM then."""
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT

    def stop_at_first() -> None:
        wait_until(lambda: bool(bench.named("ready")), "ready")
        bench.stops = 1

    in_background(stop_at_first)
    began_s = time.monotonic()
    assert bench.train(stubborn, {"FAKE_SKIP": "1"}).exit_code == 130
    assert time.monotonic() - began_s < 5
    assert [event.text for event in bench.named("stop")] == ["kill"]


def test_a_second_stop_kills_at_once(bench: Bench) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
    in_background(lambda: stop_when_ready(bench, times=2))
    began_s = time.monotonic()
    assert bench.train(stubborn).exit_code == 130
    assert time.monotonic() - began_s < 8
    assert [event.text for event in bench.named("stop")] == ["kill"]


def test_a_stop_while_the_files_travel_ends_them_and_nothing_of_them_stays(bench: Bench) -> None:
    bench.hosts[1].program("tar", "sleep 30")

    def stop_when_made() -> None:
        runs = [host.home / ".clusterctl/runs" / RUN_ID for host in bench.hosts]
        wait_until(lambda: (runs[0] / "made").exists() and runs[1].exists(), "folders")
        bench.stops = 1

    in_background(stop_when_made)
    began_s = time.monotonic()
    with pytest.raises(Stopped, match="before any rank was started; nothing of it is left") as caught:
        bench.train(WAIT)
    assert caught.value.exit_code == 130
    assert time.monotonic() - began_s < 10
    assert [list((host.home / ".clusterctl/runs").iterdir()) for host in bench.hosts] == [[], []]
    assert bench.named("start") == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_stop_while_results_are_fetched_leaves_them_on_the_node_and_says_so(
    bench: Bench, times: int
) -> None:
    """The first ends the fetching of what was made, the second that of the logs."""
    slow = 'case "$*" in *--transform*) sleep 30;; esac; ' + ("" if times == 1 else "sleep 30; ")
    bench.hosts[0].program("tar", f'case "$1" in -c*) {slow}; esac; exec /bin/tar "$@"'.replace("; ;", ";"))

    def stop_in_the_end() -> None:
        wait_until(lambda: bool(bench.named("launcher_exit")), "end")
        for _ in range(times):
            time.sleep(1)
            bench.stops += 1

    in_background(stop_in_the_end)
    began_s = time.monotonic()
    outcome = bench.train(GOOD)
    assert time.monotonic() - began_s < 15
    assert (outcome.exit_code, outcome.summary.problem, outcome.missing) == (130, "stopped", ())
    run = bench.hosts[0].home / ".clusterctl/runs" / RUN_ID
    assert (run / "output/model.bin").exists()
    assert not (outcome.folder / "output/model.bin").exists()
    assert (outcome.folder / "logs/rank-000.log").exists() == (times == 1)
    assert (outcome.folder / "logs/rank-001.log").exists()
    assert bench.named("warning")[0].text == (
        f"node1: not all was fetched; it is still there, in ~/.clusterctl/runs/{RUN_ID}"
    )


def test_after_a_bad_end_only_what_the_run_made_stays_on_the_nodes(bench: Bench) -> None:
    made = "open('of-its-own', 'w').write(os.environ['RANK'])\n    raise SystemExit('boom')\n"
    bench.fails(RANK_1 + made + "import time; time.sleep(600)")
    runs = [host.home / ".clusterctl/runs" for host in bench.hosts]
    assert list(runs[0].iterdir()) == []
    assert sorted(path.name for path in (runs[1] / RUN_ID).iterdir()) == ["made", "of-its-own"]


def test_an_interrupted_operator_leaves_nothing_on_the_nodes(bench: Bench) -> None:
    pids: list[int] = []

    def interrupt(event: Event) -> None:
        if event.name == "ready":
            pids.extend(bench.script_pids())
            raise KeyboardInterrupt

    bench.on_event = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.train(WAIT)
    await_death(pids, 3)


def test_the_sweep_finds_what_left_its_process_group(bench: Bench) -> None:
    daemon = """line = 'echo $$ > ../../../daemon; exec sleep 600'
    subprocess.Popen(['sh', '-c', line], start_new_session=True)
    while not os.path.exists('../../../daemon'): time.sleep(0.01)
"""
    bench.train(RANK_1 + daemon + GOOD)
    # Both simulated nodes see the same processes: which of them finds it first is chance.
    assert sum(event.data["killed"] for event in bench.named("sweep")) >= 1
    pid = int((bench.hosts[1].home / "daemon").read_text())
    await_death([pid], 2)


def test_a_node_that_does_not_answer_after_a_good_run_is_reported_and_harmless(bench: Bench) -> None:
    def die(event: Event) -> None:
        bench.events.append(event)
        bench.hosts[1].is_dead = bench.hosts[1].is_dead or event.name == "launcher_exit"

    bench.on_event = die  # type: ignore[method-assign]
    outcome = bench.train(GOOD)
    assert outcome.exit_code == 0
    assert outcome.missing == ("node2: does not answer; is it up?",)
    assert "clusterctl ssh node2 pkill" in bench.named("sweep")[0].text


# --- nodes that are about to end ---------------------------------------------------------------


def notice_when_ready(bench: Bench, *numbers: int, ends_in_s: float = 120) -> None:
    """Once both scripts run, nodes of these numbers are told of their end."""

    def tell() -> None:
        bench.script_pids()
        told = json.dumps({"reason": "spot interruption", "ends_at": time.time() + ends_in_s})
        for number in numbers:
            path = bench.hosts[number - 1].home / f"notice-node{number}"
            path.with_suffix(".new").write_text(told)
            path.with_suffix(".new").replace(path)

    in_background(tell)


def checkpoint_7(folder: Path) -> Path:
    return folder / "output/checkpoint-7/trainer_state.json"


def test_a_noticed_worker_ends_the_run_at_a_checkpoint_that_stays_on_the_head(bench: Bench) -> None:
    notice_when_ready(bench, 2)
    outcome = bench.train(SAVES)
    assert outcome.exit_code == 75
    assert {event.data["code"] for event in bench.named("exit")} == {0}
    written = json.loads((outcome.folder / "summary.json").read_text())
    assert written["problem"].startswith("node2 will end at ")
    assert written["problem"].endswith(" UTC (spot interruption): checkpointed at step 7")
    assert written["interruption"]["is_fresh"]
    assert checkpoint_7(bench.hosts[0].home / ".clusterctl/runs" / RUN_ID).exists()
    assert not checkpoint_7(outcome.folder).exists()
    assert json.loads((outcome.folder / "request.json").read_text()) == {"recipe": "run_qa"}


def test_the_checkpoint_of_a_noticed_head_is_brought_home(bench: Bench) -> None:
    notice_when_ready(bench, 1, 2)
    outcome = bench.train(SAVES)
    assert outcome.exit_code == 75
    assert checkpoint_7(outcome.folder).read_text() == "{}\n"
    assert outcome.summary.interruption is not None
    assert outcome.summary.interruption.at_home
    assert {notice.node for notice in outcome.summary.interruption.notices} == {"node1", "node2"}


def test_a_checkpoint_that_cannot_be_brought_home_is_said_so(bench: Bench) -> None:
    def die(event: Event) -> None:
        bench.events.append(event)
        bench.hosts[0].is_dead = bench.hosts[0].is_dead or event.name == "launcher_exit"

    bench.on_event = die  # type: ignore[method-assign]
    notice_when_ready(bench, 1)
    outcome = bench.train(SAVES)
    assert outcome.exit_code == 75
    assert str(outcome.summary.problem).endswith(
        "checkpointed at step 7; it was not brought here: node1: does not answer; is it up?"
    )


def test_a_script_that_does_not_listen_is_stopped_before_the_node_ends(bench: Bench) -> None:
    notice_when_ready(bench, 2, ends_in_s=24)
    began_s = time.monotonic()
    outcome = bench.train(WAIT)
    assert time.monotonic() - began_s < 15
    assert outcome.exit_code == 75
    assert str(outcome.summary.problem).endswith("(spot interruption): no checkpoint came in time")
    assert [event.text for event in bench.named("stop")] == ["stop"]
    await_death(bench.script_pids(), 2)


def test_the_last_periodic_checkpoint_is_named_and_brought_home_from_a_noticed_head(bench: Bench) -> None:
    earlier = SAVES.replace("while not agreed.exists():", "while not is_wanted() and False:")
    earlier = earlier.replace('    emit(event="interrupted", path=str(folder), step=7)\n', "") + WAIT
    notice_when_ready(bench, 1, ends_in_s=24)
    outcome = bench.train(earlier)
    assert outcome.exit_code == 75
    assert str(outcome.summary.problem).endswith("no checkpoint came in time; the last one is of step 7")
    assert checkpoint_7(outcome.folder).exists()


def test_a_run_that_ends_well_in_spite_of_a_notice_is_a_good_run(bench: Bench) -> None:
    slow = "open('pid', 'w').write('1')\nimport time; time.sleep(3)\n" + GOOD
    notice_when_ready(bench, 2)
    assert bench.train(slow).exit_code == 0
    assert len(bench.named("notice")) == 1


def test_what_fails_beside_a_notice_is_still_a_failure(bench: Bench) -> None:
    notice_when_ready(bench, 2)
    failing = "open('pid', 'w').write('1')\nimport time; time.sleep(3); raise SystemExit('boom')"
    assert "ended with exit code 1: boom" in bench.fails(failing)


def test_a_checkpoint_to_go_on_from_travels_to_the_head_alone(bench: Bench) -> None:
    folder = bench.folder / "checkpoint-7"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    plan, job = bench.prepare("import os\nprint(os.listdir('data'))\n" + GOOD)
    job = replace(job, head_uploads={"data/resume_from_checkpoint/checkpoint-7": folder})
    plan = bench.plan(job)
    assert "checkpoint-7, on the head only" in plan.render()
    bench.train_plan(plan, job)
    said = {event.text for event in bench.named("output")}
    assert "[1] ['train_file']" in said
    assert "[0] ['train_file']" not in said

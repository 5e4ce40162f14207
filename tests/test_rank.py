"""rank.py and head.py as real processes on this machine, started as launchers start them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from run import rank as rank_program
from run.events import Event, parse_line
from run.rank import LAUNCHERS, RankError, pin, read_place

HERE = Path(__file__).parents[1] / "run"
LIMIT_S = 20.0
MPI_ENV = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}

SHOW = """
import json, os
print(json.dumps({"env": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0)), "cwd": os.getcwd()}))
"""
# A script whose own child sits in the script's group; both say that they are there.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAMILY


def plan_json(launcher: Sequence[str] = (), ranks: int = 2, stop_grace_s: float = 15) -> str:
    cpus = sorted(os.sched_getaffinity(0))
    return json.dumps(
        {
            "launcher": {"argv": launcher, "environment": dict(os.environ), "stop_grace_s": stop_grace_s},
            "nodes": {"here": {"environment": {"GLOO_SOCKET_IFNAME": "eth7"}}},
            "ranks": [
                {"rank": rank, "node": "here", "cpus": str(cpus[rank % len(cpus)]), "threads": 3}
                for rank in range(ranks)
            ],
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder as execute.py leaves it on a node."""
    for name in ("rank.py", "head.py"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / socket.gethostname()).write_text("here\n")
    (tmp_path / "plan.json").write_text(plan_json())
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that must not outlive a test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_rank(folder: Path, started: list[subprocess.Popen[bytes]]) -> Start:
    def start(script: str, env: Mapping[str, str] = MPI_ENV, **options: Any) -> subprocess.Popen[bytes]:
        (folder / "script.py").write_text(script)
        command = [sys.executable, str(folder / "rank.py"), "script.py", "an argument"]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        process = subprocess.Popen(command, env={"PATH": os.environ["PATH"], **env}, **options)
        started.append(process)
        return process

    return start


def output_of(process: subprocess.Popen[bytes]) -> list[str]:
    return process.communicate(timeout=LIMIT_S)[0].decode().splitlines()


def events_of(lines: Sequence[str]) -> dict[str, Event]:
    parsed = [parse_line(line) for line in lines]
    return {event.name: event for event in parsed if event.name != "output"}


def shown(lines: Sequence[str]) -> dict[str, Any]:
    line = next(line for line in lines if line.startswith("[1] {"))
    about: dict[str, Any] = json.loads(line[4:])
    return about


def wait_until(is_so: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Zombies are dead: who inherits them may take its time to bury them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def family(folder: Path) -> list[int]:
    """Process ids of FAMILY's script and its child, once both are there."""
    wait_until(lambda: (folder / "pids").exists() and " " in (folder / "pids").read_text(), "pids")
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def await_death(pids: Sequence[int], limit_s: float = LIMIT_S) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), f"the end of {pids}", limit_s)


# --- place, CPUs, environment ------------------------------------------------------------------


@pytest.mark.parametrize("names", LAUNCHERS, ids=["mpich", "openmpi", "torchrun"])
def test_every_launchers_variables_are_understood(names: tuple[str, ...]) -> None:
    place = read_place(dict(zip(names, ["5", "8", "1", "4"], strict=True)), "n2")
    assert (place.rank, place.world_size, place.local_rank, place.local_size) == (5, 8, 1, 4)


def test_without_a_launcher_there_is_no_silent_world_of_one() -> None:
    with pytest.raises(RankError, match="no launcher told which rank this is"):
        read_place({}, "n1")


def test_pin_keeps_to_the_allowed_cpus() -> None:
    assert pin("0-3,8", {1, 2, 8, 9}) == {1, 2, 8}


def test_pin_fails_when_no_wanted_cpu_is_allowed() -> None:
    with pytest.raises(RankError, match="CPUs 4-5 are wanted"):
        pin("4-5", {0, 1})


def test_the_script_sees_its_place_in_torchruns_words(start_rank: Start, folder: Path) -> None:
    about = shown(output_of(start_rank(SHOW, {**MPI_ENV, "MASTER_ADDR": "10.0.0.1"})))
    wanted = {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "3",
        "GLOO_SOCKET_IFNAME": "eth7",
        "MASTER_ADDR": "10.0.0.1",
    }
    assert {name: about["env"].get(name) for name in wanted} == wanted
    assert about["cwd"] == str(folder)


def test_tcmalloc_is_preloaded_where_it_is_installed(start_rank: Start) -> None:
    if not list(Path("/usr/lib").glob("*/libtcmalloc*.so.4")):
        pytest.skip("no tcmalloc here")
    about = shown(output_of(start_rank(SHOW)))
    assert "libtcmalloc" in about["env"]["LD_PRELOAD"]
    assert about["env"]["TCMALLOC_RELEASE_RATE"] == "0", "memory that goes back comes with page faults"


def test_without_tcmalloc_glibc_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_program, "TCMALLOC", ())
    assert rank_program.preload({}) == rank_program.KEEP_MEMORY
    assert rank_program.preload({"LD_PRELOAD": "x"}) == {}


def test_any_script_can_import_what_lies_in_lib(start_rank: Start) -> None:
    about = shown(output_of(start_rank(SHOW, {**MPI_ENV, "PYTHONPATH": "/own"})))
    first, own = about["env"]["PYTHONPATH"].split(":")
    assert (first.endswith("/lib"), own) == (True, "/own")


def test_an_ld_preload_of_the_users_stays(start_rank: Start) -> None:
    about = shown(output_of(start_rank(SHOW, {**MPI_ENV, "LD_PRELOAD": "libm.so.6"})))
    assert about["env"]["LD_PRELOAD"] == "libm.so.6"


def test_the_script_is_pinned_even_when_the_launcher_pinned_the_wrapper_elsewhere(start_rank: Start) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    first = {cpus[0]}
    process = start_rank(SHOW, preexec_fn=lambda: os.sched_setaffinity(0, first))
    assert shown(output_of(process))["cpus"] == [cpus[1]]


def test_without_a_plan_any_launcher_will_do(start_rank: Start, folder: Path) -> None:
    (folder / "plan.json").unlink()
    about = shown(output_of(start_rank(SHOW, {"RANK": "1", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "5"})))
    assert (about["env"]["RANK"], about["env"]["OMP_NUM_THREADS"]) == ("1", "5")


# --- output and events -------------------------------------------------------------------------


def test_start_and_exit_are_reported(start_rank: Start) -> None:
    process = start_rank("print('hello')")
    events = events_of(output_of(process))
    assert (events["start"].rank, events["start"].node) == (1, "here")
    assert events["exit"].data["code"] == 0
    assert process.returncode == 0


def test_a_failing_script_reports_its_code_and_last_lines(start_rank: Start) -> None:
    process = start_rank("for i in range(30): print(i)\nraise SystemExit('boom')")
    exit_event = events_of(output_of(process))["exit"]
    assert process.returncode == exit_event.data["code"] == 1
    assert exit_event.data["last_lines"] == [*map(str, range(21, 30)), "boom"]


def test_a_script_killed_by_a_signal_reports_128_and_the_number(start_rank: Start) -> None:
    process = start_rank("import os\nos.kill(os.getpid(), 9)")
    assert events_of(output_of(process))["exit"].data["code"] == 137


def test_output_is_prefixed_and_logged_whole(start_rank: Start, folder: Path) -> None:
    lines = output_of(start_rank("import sys\nprint('a\\n\\nb')\nprint('x' * 10000, end='')"))
    assert [line[:8] for line in lines if line.startswith("[1]")] == ["[1] a", "[1] ", "[1] b", "[1] xxxx"]
    assert (folder / "logs" / "rank-001.log").read_text() == "a\n\nb\n" + "x" * 10000


def test_a_progress_bar_shows_its_last_state_only(start_rank: Start) -> None:
    lines = output_of(start_rank("print('1%\\r50%\\r100%')"))
    assert "[1] 100%" in lines


def test_the_recipes_events_pass_and_are_given_their_rank(start_rank: Start) -> None:
    script = """print('@clusterctl {"event": "ready"}')\nprint('@clusterctl not json')"""
    lines = output_of(start_rank(script))
    assert events_of(lines)["ready"].rank == 1
    assert "[1] @clusterctl not json" in lines


def test_a_rank_on_another_node_than_planned_is_an_error(start_rank: Start, folder: Path) -> None:
    (folder / "nodes" / socket.gethostname()).write_text("other")
    process = start_rank(SHOW)
    events = events_of(output_of(process))
    assert "put rank 1 on other, the plan does not" in events["error"].text
    assert (process.returncode, events["exit"].data["code"]) == (2, 2)


def test_a_rank_is_told_its_node_where_the_launcher_can(folder: Path) -> None:
    (folder / "script.py").write_text("")
    (folder / "nodes" / socket.gethostname()).write_text("other")
    command = [sys.executable, str(folder / "rank.py"), "--node", "here", "script.py"]
    done = subprocess.run(
        command, env={"PATH": os.environ["PATH"], **MPI_ENV}, capture_output=True, text=True, check=True
    )
    assert events_of(done.stdout.splitlines())["exit"].node == "here"


def test_cpus_that_are_not_there_are_an_error(start_rank: Start, folder: Path) -> None:
    about = json.loads((folder / "plan.json").read_text())
    about["ranks"][1]["cpus"] = "900-901"
    (folder / "plan.json").write_text(json.dumps(about))
    events = events_of(output_of(start_rank(SHOW)))
    assert events["error"].text.startswith("CPUs 900-901 are wanted")


def test_a_script_that_closes_its_output_is_awaited(start_rank: Start) -> None:
    script = "import os, time\nos.close(1); os.close(2); time.sleep(0.5); os._exit(3)"
    assert events_of(output_of(start_rank(script)))["exit"].data["code"] == 3


# --- the end of the node -----------------------------------------------------------------------

FIRST = {**MPI_ENV, "MPI_LOCALRANKID": "0", "CLUSTERCTL_NOTICE": "notice"}
AWAIT_REQUEST = """
import os, pathlib, time
request = pathlib.Path(os.environ["CLUSTERCTL_CHECKPOINT_REQUEST"])
print("asked before" if request.exists() else "not asked yet", flush=True)
deadline = time.monotonic() + 4
while not request.exists() and time.monotonic() < deadline: time.sleep(0.01)
print(request.read_text() if request.exists() else "never asked", flush=True)
time.sleep(1.5)  # the notice is looked for once more
"""


def write_notice(folder: Path, ends_in_s: float = 120) -> float:
    ends_at = round(time.time() + ends_in_s, 1)
    (folder / "notice.new").write_text(json.dumps({"reason": "spot interruption", "ends_at": ends_at}))
    (folder / "notice.new").replace(folder / "notice")
    return ends_at


def test_a_notice_is_reported_once_and_the_script_is_asked_for_a_checkpoint(
    start_rank: Start, folder: Path
) -> None:
    process = start_rank(AWAIT_REQUEST, FIRST)
    wait_until(lambda: (folder / "logs/rank-001.log").exists(), "the start")
    ends_at = write_notice(folder)
    lines = output_of(process)
    (notice,) = [event for event in map(parse_line, lines) if event.name == "notice"]
    assert (notice.rank, notice.node) == (1, "here")
    assert 100 < notice.data["left_s"] <= 120
    assert {**notice.data, "left_s": 0} == {"reason": "spot interruption", "ends_at": ends_at, "left_s": 0}
    said = [line[4:] for line in lines if line.startswith("[1] ")]
    assert said[0] == "not asked yet"
    assert json.loads(said[1]) == {"reason": "spot interruption", "ends_at": ends_at}


def test_only_the_first_rank_of_a_node_passes_a_notice_on(start_rank: Start, folder: Path) -> None:
    write_notice(folder)
    lines = output_of(start_rank(AWAIT_REQUEST, {**FIRST, "MPI_LOCALRANKID": "1"}))
    assert "notice" not in events_of(lines)
    assert "[1] never asked" in lines


@pytest.mark.parametrize("text", ["", "[]", '{"reason": "x"}', '{"reason": "x", "ends_at": 5}', "null"])
def test_a_notice_that_is_none_or_long_past_is_no_notice(start_rank: Start, folder: Path, text: str) -> None:
    (folder / "notice").write_text(text)
    lines = output_of(start_rank("import time; time.sleep(1.5)", FIRST))
    assert set(events_of(lines)) == {"start", "exit"}


# --- nothing stays behind ----------------------------------------------------------------------


def test_sigterm_reaches_the_script_and_its_children(start_rank: Start, folder: Path) -> None:
    process = start_rank(FAMILY)
    pids = family(folder)
    process.terminate()
    assert events_of(output_of(process))["exit"].data["code"] == 128 + signal.SIGTERM
    await_death(pids, 2)


def test_a_script_deaf_to_sigterm_is_killed_after_the_grace(start_rank: Start, folder: Path) -> None:
    process = start_rank(STUBBORN)
    pids = family(folder)
    process.terminate()
    assert events_of(output_of(process))["exit"].data["code"] == 128 + signal.SIGKILL
    await_death(pids, 2)


def test_children_of_a_script_that_has_ended_are_killed(start_rank: Start, folder: Path) -> None:
    process = start_rank(FAMILY)
    pids = family(folder)
    os.kill(pids[0], signal.SIGKILL)
    assert events_of(output_of(process))["exit"].data["code"] == 137
    await_death(pids, 2)


def test_a_killed_wrapper_leaves_neither_script_nor_its_children(start_rank: Start, folder: Path) -> None:
    process = start_rank(FAMILY)
    pids = family(folder)
    process.kill()
    await_death(pids, 3)


def test_a_wrapper_whose_group_is_killed_leaves_nothing(start_rank: Start, folder: Path) -> None:
    """As hydra does it; the guard must not be in that group."""
    process = start_rank(FAMILY, start_new_session=True)
    pids = family(folder)
    os.killpg(process.pid, signal.SIGKILL)
    await_death(pids, 3)


def test_the_script_dies_with_a_wrapper_whose_guard_is_dead_too(start_rank: Start, folder: Path) -> None:
    process = start_rank(FAMILY)
    script, _ = family(folder)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 2, "script and guard")
    guard = next(pid for pid in map(int, children.read_text().split()) if pid != script)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    await_death([script], 2)


def test_a_rank_whose_launcher_is_gone_ends(start_rank: Start, folder: Path) -> None:
    process = start_rank(FAMILY)
    pids = family(folder)
    assert process.stdout is not None
    process.stdout.close()
    # The next heartbeat finds nobody listening.
    await_death([process.pid, *pids], 9)


# --- head.py -----------------------------------------------------------------------------------


@pytest.fixture
def start_head(folder: Path, started: list[subprocess.Popen[bytes]]) -> Start:
    def start(*launcher: str, stop_grace_s: float = 15) -> subprocess.Popen[bytes]:
        (folder / "plan.json").write_text(plan_json(launcher, stop_grace_s=stop_grace_s))
        process = subprocess.Popen(
            [sys.executable, str(folder / "head.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        return process

    return start


def tell(head: subprocess.Popen[bytes], word: str) -> None:
    assert head.stdin is not None
    head.stdin.write(word.encode() + b"\n")
    head.stdin.flush()


def rest_of(head: subprocess.Popen[bytes]) -> list[str]:
    """Everything head.py still prints, its stdin left open."""
    assert head.stdout is not None
    text = head.stdout.read()
    head.wait(timeout=LIMIT_S)
    return text.decode().splitlines()


def start_family(start_head: Start, folder: Path, script: str = FAMILY, **options: Any) -> Any:
    (folder / "family.py").write_text(script)
    head = start_head("/bin/sh", "-c", f"{sys.executable} family.py; exit 9", **options)
    return head, family(folder)


def test_head_passes_output_and_the_exit_code(start_head: Start, folder: Path) -> None:
    head = start_head("/bin/sh", "-c", "echo one; echo two >&2; printf three; exit 7")
    assert rest_of(head) == ["one", "two", "three", '@clusterctl {"event": "launcher_exit", "code": 7}']
    assert head.returncode == 7
    assert (folder / "exit_code").read_text() == "7\n"
    assert (folder / "logs" / "launcher.log").read_text() == "one\ntwo\nthree"


def test_head_expands_the_home_folder(start_head: Start) -> None:
    assert rest_of(start_head("/bin/echo", "~/hosts"))[0] == str(Path.home() / "hosts")


def test_head_reports_a_launcher_that_is_not_there(start_head: Start) -> None:
    lines = rest_of(start_head("/no/mpirun"))
    assert lines[0].startswith("/no/mpirun cannot be started: ")
    assert parse_line(lines[1]) == Event("launcher_exit", data={"code": 127})


def test_head_ends_all_on_stop(start_head: Start, folder: Path) -> None:
    head, pids = start_family(start_head, folder)
    tell(head, "alive\nstop")
    assert rest_of(head)
    await_death(pids, 2)


def test_head_kills_what_does_not_stop(start_head: Start, folder: Path) -> None:
    head, pids = start_family(start_head, folder, STUBBORN, stop_grace_s=1)
    began_s = time.monotonic()
    tell(head, "stop")
    assert rest_of(head)
    assert time.monotonic() - began_s < 10
    await_death(pids, 2)


def test_head_kills_all_on_kill(start_head: Start, folder: Path) -> None:
    head, pids = start_family(start_head, folder, STUBBORN)
    began_s = time.monotonic()
    tell(head, "kill")
    assert parse_line(rest_of(head)[-1]).data["code"] == 137
    assert time.monotonic() - began_s < 4
    await_death(pids, 2)


def test_head_kills_all_when_the_operator_is_gone(start_head: Start, folder: Path) -> None:
    head, pids = start_family(start_head, folder, STUBBORN)
    head.stdin.close()
    await_death([head.pid, *pids], 3)


def test_head_kills_all_when_the_operator_is_silent(start_head: Start, folder: Path) -> None:
    source = (folder / "head.py").read_text()
    (folder / "head.py").write_text(source.replace("LIFELINE_S = 60.0", "LIFELINE_S = 2.0"))
    head, pids = start_family(start_head, folder)
    assert rest_of(head)
    await_death(pids, 2)


def test_a_killed_head_leaves_nothing(start_head: Start, folder: Path) -> None:
    head, pids = start_family(start_head, folder, STUBBORN)
    head.kill()
    await_death(pids, 3)


# --- through hydra -----------------------------------------------------------------------------


def newest_stack() -> Path | None:
    """A stack with Intel MPI: CLUSTERCTL_STACK_PYTHON's, or the newest in the cache."""
    named = os.environ.get("CLUSTERCTL_STACK_PYTHON")
    cache = Path.home() / ".cache/clusterctl/stacks"
    found = sorted(cache.glob("*/"), key=lambda path: path.stat().st_mtime, reverse=True)
    candidates = ([Path(named).parents[1]] if named else []) + found
    return next((path for path in candidates if (path / "bin/mpirun").exists()), None)


@pytest.fixture
def hydra() -> tuple[str, dict[str, str]]:
    stack = newest_stack()
    if stack is None:
        pytest.skip("no stack with mpirun: set CLUSTERCTL_STACK_PYTHON, or run clusterctl up")
    return f"{stack}/bin/mpirun", {"PATH": f"{stack}/bin:/usr/bin:/bin", "I_MPI_PIN": "off"}


def start_hydra(
    folder: Path, hydra: tuple[str, dict[str, str]], script: str, ranks: int = 2
) -> subprocess.Popen[bytes]:
    (folder / "script.py").write_text(script)
    about = json.loads(plan_json(ranks=ranks))
    about["launcher"] |= {
        "argv": [hydra[0], "-n", str(ranks), sys.executable, str(folder / "rank.py"), "script.py"],
        "environment": hydra[1],
    }
    (folder / "plan.json").write_text(json.dumps(about))
    return subprocess.Popen(
        [sys.executable, str(folder / "head.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


@pytest.mark.stack
def test_hydra_starts_ranks_and_ends_well(folder: Path, hydra: Any) -> None:
    lines = rest_of(start_hydra(folder, hydra, "import os\nprint(os.environ['RANK'])"))
    assert {"[0] 0", "[1] 1"} <= set(lines)
    assert parse_line(lines[-1]).data["code"] == 0


@pytest.mark.stack
def test_hydra_goes_on_when_a_rank_fails_and_ends_on_kill(folder: Path, hydra: Any) -> None:
    """Why run/watch.py ends runs: hydra waits for all ranks of a node before it looks at their codes."""
    script = "import os\nif os.environ['RANK'] == '1': raise SystemExit('boom')\n" + FAMILY
    head = start_hydra(folder, hydra, script)
    pids = family(folder)
    wait_until(lambda: '"exit"' in (folder / "logs/launcher.log").read_text(), "rank 1's exit event")
    assert head.poll() is None
    tell(head, "kill")
    exits = [parse_line(line) for line in rest_of(head) if '"exit"' in line]
    assert [(event.rank, event.data["code"], event.data["last_lines"]) for event in exits] == [
        (1, 1, ["boom"])
    ]
    await_death(pids, 3)


@pytest.mark.stack
def test_hydra_does_not_mix_lines_of_ranks(folder: Path, hydra: Any) -> None:
    script = "import os\nfor i in range(4000): print(os.environ['RANK'] * 300)"
    lines = rest_of(start_hydra(folder, hydra, script, ranks=4))
    wrong = [line for line in lines if not re.fullmatch(r"\[(\d)\] \1{300}|@clusterctl .*}", line)]
    assert (wrong, len(lines)) == ([], 4 * 4000 + 2 * 4 + 1)


@pytest.mark.stack
def test_hydra_passes_stop_to_the_ranks(folder: Path, hydra: Any) -> None:
    head = start_hydra(folder, hydra, FAMILY)
    pids = family(folder)
    tell(head, "stop")
    exits = [parse_line(line) for line in rest_of(head) if '"exit"' in line]
    assert {event.data["code"] for event in exits} == {128 + signal.SIGTERM}
    await_death(pids, 2)

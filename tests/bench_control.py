"""How fast is clusterctl's control side? Beside raw OpenSSH and Ansible, on the same hosts, in turn.

Two tasks on local nodes: the `clusterctl up` that changes nothing, and `clusterctl check-amx`. A raw ssh
round that only asks for `lscpu; uname -r` is the floor: nobody who logs in anew can be faster. Ansible
does what the site playbooks do (tests/bench/site.yml) with connections that are open already; clusterctl
logs in anew every time. Each lap runs all of them, so that a noisy machine is unfair to nobody.

    make bench
    .venv/bin/python tests/bench_control.py --laps 3 --json figures.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.stacks import stack_named
from provision.state import ClusterState

BIN = Path(sys.executable).parent
SITE = Path(__file__).parent / "bench" / "site.yml"
FORKS = 64  # clusterctl's own fanout
RUN_LIMIT_S = 180.0
LOOK = "lscpu; uname -r"
# paramiko's key exchange. OpenSSH's own choice since 9.0 adds a post-quantum one and costs more CPU.
SAME_KEX = ("-o", "KexAlgorithms=curve25519-sha256")

FLOOR, FLOOR_SAME_KEX, WARM = "ssh, new sessions", "ssh, new, curve25519", "ssh, open sessions"
OURS, ANSIBLE = "clusterctl", "ansible, open sessions"


class BenchError(Exception):
    """A run that did not do what it is timed for."""


@dataclass(frozen=True)
class Contestant:
    """A command to time. `check` says what is wrong with what it printed, None when it did the job.

    `laps` limits how often a slow one runs; the first laps are its.
    """

    name: str
    argv: Sequence[str]
    check: Callable[[str], str | None]
    environment: Mapping[str, str]
    laps: int = 1000


@dataclass(frozen=True)
class Timing:
    """Wall seconds of one contestant, a number a lap."""

    task: str
    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def main() -> int:
    """Time both tasks, print a table of each; exit code 1 when a run did not do its job."""
    options = _options()
    if not _can_ansible():
        print("ansible: not timed, ansible-core is not installed here (`make bench` installs it)")
    timings: list[Timing] = []
    try:
        for task, nodes in (("up", options.up_nodes), ("check-amx", options.check_nodes)):
            timings += time_task(task, nodes, options.laps)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(_figures(timings, options), indent=2) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--laps", type=int, default=5, help="runs of each; Ansible has 3 at most")
    parser.add_argument("--up-nodes", type=int, default=16)
    parser.add_argument("--check-nodes", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args()


def time_task(task: str, nodes: int, laps: int) -> list[Timing]:
    """Times of all contestants at one task on a cluster made for it; prints the table."""
    with standing(f"bench-{task}"[:31], nodes) as state, open_sessions() as sockets:
        contestants = _contestants(task, nodes, state, sockets)
        for contestant in contestants:  # opens the sessions that stay open, and warms every cache
            run(contestant)
        timings = take_laps(task, contestants, laps)
    print_table(task, nodes, timings)
    return timings


@contextlib.contextmanager
def standing(name: str, nodes: int) -> Iterator[ClusterState]:
    """A cluster of local nodes, taken down afterwards."""
    environment = dict(os.environ)
    up = (str(BIN / "clusterctl"), "up", "--name", name, "--nodes", str(nodes), "--yes")
    try:
        run(Contestant(f"making {nodes} nodes", up, lambda _: None, environment))
        yield ClusterState(name)
    finally:
        subprocess.run(
            (BIN / "clusterctl", "down", "--name", name, "--yes"), capture_output=True, check=False
        )


@contextlib.contextmanager
def open_sessions() -> Iterator[Path]:
    """A folder for the sockets of ssh's control masters, which end with it. Short: sockets need that."""
    folder = Path(tempfile.mkdtemp(prefix="bench", dir="/tmp"))
    try:
        yield folder
    finally:
        for control in (path for path in folder.rglob("*") if path.is_socket()):
            closing = ("ssh", "-o", f"ControlPath={control}", "-O", "exit", "any")
            subprocess.run(closing, capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _contestants(task: str, nodes: int, state: ClusterState, sockets: Path) -> list[Contestant]:
    """Everybody who takes part in a task."""
    plain = dict(os.environ)
    names = [f"node{number}" for number in range(1, nodes + 1)]
    ours = (str(BIN / "clusterctl"), task, "--name", state.name)
    judge = _unchanged(nodes) if task == "up" else all_listed(names)
    contestants = [
        Contestant(OURS, ours, judge, plain),
        Contestant(FLOOR, ssh_round(state, names), all_looked(nodes), plain),
        Contestant(FLOOR_SAME_KEX, ssh_round(state, names, SAME_KEX), all_looked(nodes), plain),
        Contestant(WARM, ssh_round(state, names, _kept_open(sockets)), all_looked(nodes), plain),
    ]
    if _can_ansible():
        contestants.append(_ansible(task, nodes, state, sockets))
    return contestants


def ssh_round(state: ClusterState, names: Sequence[str], extra: Sequence[str] = ()) -> tuple[str, ...]:
    """One ssh a host, all at once, by xargs."""
    ssh = ("ssh", "-F", str(state.ssh_config), "-o", "BatchMode=yes", *extra)
    look = shlex.join(("xargs", "-n", "1", "-P", str(FORKS), "-I", "{}", *ssh, "{}", LOOK))
    return ("sh", "-c", f"printf '%s\\n' {' '.join(names)} | {look}")


def _kept_open(sockets: Path) -> tuple[str, ...]:
    return ("-o", "ControlMaster=auto", "-o", "ControlPersist=600", "-o", f"ControlPath={sockets}/%C")


def _can_ansible() -> bool:
    return (BIN / "ansible-playbook").exists()


def _ansible(task: str, nodes: int, state: ClusterState, sockets: Path) -> Contestant:
    """Ansible as its users tune it: pipelining, all hosts at once, no facts, sessions kept open."""
    environment = {
        **os.environ,
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_FORKS": str(FORKS),
        "ANSIBLE_GATHERING": "explicit",
        "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
        "ANSIBLE_SSH_ARGS": shlex.join(("-o", "ControlMaster=auto", "-o", "ControlPersist=600")),
        "ANSIBLE_SSH_COMMON_ARGS": f"-o UserKnownHostsFile={state.known_hosts} -o IdentitiesOnly=yes",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets / "a"),
        "ANSIBLE_NOCOLOR": "1",
    }
    inventory = ("-i", str(state.record))
    if task == "up":
        stack = stack_named(state_stack(state)).name
        argv = (str(BIN / "ansible-playbook"), *inventory, "-e", f"stack={stack}", str(SITE))
        return Contestant(ANSIBLE, argv, _unchanged(nodes), environment, laps=3)
    argv = (str(BIN / "ansible"), *inventory, "all", "-m", "command", "-a", "lscpu")
    return Contestant(ANSIBLE, argv, all_looked(nodes), environment, laps=3)


def state_stack(state: ClusterState) -> str:
    """The kind of stack that the cluster stands with."""
    cluster = state.load()
    if cluster is None:
        raise BenchError(f"{state.name} has no record")
    return cluster.stack


# What a run must have printed. A fast run that did less would be no comparison.


def _unchanged(nodes: int) -> Callable[[str], str | None]:
    """The recap, which clusterctl and Ansible print alike: every node, nothing changed, nothing failed."""

    def check(output: str) -> str | None:
        recap = re.findall(r"changed=(\d+) +unreachable=(\d+) +failed=(\d+)", output)
        if len(recap) != nodes:
            return f"{len(recap)} of {nodes} nodes in the recap"
        return next((f"changed, unreachable, failed = {row}" for row in recap if any(map(int, row))), None)

    return check


def all_listed(names: Sequence[str]) -> Callable[[str], str | None]:
    """check-amx's table has a line for every node, with a kernel in it."""

    def check(output: str) -> str | None:
        seen = {line.split()[0] for line in output.splitlines() if re.search(r" \d+\.\d+ (ok|old) ", line)}
        return None if seen == set(names) else f"{len(seen)} of {len(names)} nodes in the table"

    return check


def all_looked(nodes: int) -> Callable[[str], str | None]:
    def check(output: str) -> str | None:
        seen = len(re.findall(r"^Architecture:", output, re.MULTILINE))
        return None if seen == nodes else f"lscpu of {seen} of {nodes} nodes"

    return check


# Timing.


def take_laps(task: str, contestants: Sequence[Contestant], laps: int) -> list[Timing]:
    """Everybody in turn, lap after lap, each lap starting with another."""
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for lap in range(laps):
        first = lap % len(contestants)
        for contestant in (*contestants[first:], *contestants[:first]):
            if lap < contestant.laps:
                seconds[contestant.name].append(run(contestant))
    return [Timing(task, name, tuple(each)) for name, each in seconds.items()]


def run(contestant: Contestant) -> float:
    """Wall seconds of one run. Raises BenchError when it did not do the job."""
    started = time.perf_counter()
    try:
        done = subprocess.run(
            contestant.argv,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=dict(contestant.environment),
            timeout=RUN_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{contestant.name}: no end after {RUN_LIMIT_S:.0f} s") from None
    seconds = time.perf_counter() - started
    # The exit code says nothing: check-amx's is 1 where a node has no AMX, which is no failure here.
    problem = contestant.check(done.stdout)
    if problem:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise BenchError(f"{contestant.name}: {problem}: {' / '.join(last)}")
    return seconds


# Telling.


def print_table(task: str, nodes: int, timings: Sequence[Timing]) -> None:
    """Medians, extremes, and how many times our median each is."""
    ours, floor = (_median(timings, name) for name in (OURS, FLOOR))
    print(f"\n{task} on {nodes} nodes, wall seconds")
    print(f"  {'':<24}{'median':>8}{'min':>8}{'max':>8}{'laps':>6}{'/ clusterctl':>14}{'/ ssh, new':>12}")
    for timing in sorted(timings, key=lambda each: each.median):
        figures = f"{timing.median:>8.2f}{min(timing.seconds):>8.2f}{max(timing.seconds):>8.2f}"
        ratios = f"{timing.median / ours:>13.2f}x{timing.median / floor:>11.2f}x"
        print(f"  {timing.name:<24}{figures}{len(timing.seconds):>6}{ratios}")
    sys.stdout.flush()


def _median(timings: Sequence[Timing], name: str) -> float:
    return next(timing.median for timing in timings if timing.name == name)


def _figures(timings: Sequence[Timing], options: argparse.Namespace) -> dict[str, object]:
    """Everything measured, and on what."""
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load_1_min": os.getloadavg()[0],
            "ssh": subprocess.run(("ssh", "-V"), capture_output=True, text=True, check=False).stderr.strip(),
        },
        "nodes": {"up": options.up_nodes, "check-amx": options.check_nodes},
        "seconds": [
            {"task": timing.task, "name": timing.name, "median": timing.median, "laps": timing.seconds}
            for timing in timings
        ],
    }


if __name__ == "__main__":
    sys.exit(main())

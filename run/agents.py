"""One command on every node, started from the head over ssh. Self-contained: needs only Python.

    python agents.py            on the head, by head.py: all of them, their output line by line, and their end
    python agents.py NODE       on a node, by the above: that node's command, for as long as stdin is open

plan.json beside it says what: launcher.agents is NODE -> argv, the head first, to be run in this folder;
launcher.ssh is how the others are reached; launcher.least is with how many of them the run still goes on.
What a command may have left when its agent ends is ended with it, so nothing stays behind on a node whose
head has gone.

Where one is lost and enough are left, their ranks are ended, so that the agents meet anew: torch's own notice
nothing while their ranks wait for a peer that does not answer.

Reports an agent that is lost as `@clusterctl {"event": "agent_exit", "node": ..., "code": ..., "last_lines":
[...]}`. Ends with 0 when all commands did, else with the first other exit code; 128 + number after a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

FOLDER = Path(__file__).resolve().parent
GRACE_S = 3.0  # after the first failure, so that the others can tell of it in their own words
STOP_GRACE_S = 10.0  # torchrun waits for its ranks, which have 5 s
END = b""
ANEW = b"anew\n"
LAST_LINES = 5
EVENT = b"@clusterctl "
PR_SET_PDEATHSIG = 1

# --- on the head -------------------------------------------------------------------------------


class Agent:
    """The ssh session, or on the head itself the process, of one node's agent."""

    def __init__(self, node: str, command: Sequence[str], lines: queue.Queue[tuple[str, bytes]]) -> None:
        self.node = node
        # In a session of its own: a signal to the launcher's group would end ssh, and leave the ranks behind
        # it no time to end. Once this process is gone its stdin ends, and with that the agent.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=FOLDER,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: queue.Queue[tuple[str, bytes]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.put((self.node, line if line.endswith(b"\n") else line + b"\n"))
        lines.put((self.node, END))

    def code(self) -> int:
        """Exit code, once its output has ended."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """It ends its command when its stdin does."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def meet_anew(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(ANEW)
            self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()


class Agents:
    """All agents of a run, from their start to the end of the last."""

    def __init__(self, launcher: Mapping[str, Any], here: str) -> None:
        self._lines: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._least = int(launcher["least"])
        self._running = {
            node: Agent(node, command_for(node, launcher, here), self._lines) for node in launcher["agents"]
        }
        self._said = {node: deque[bytes](maxlen=LAST_LINES) for node in self._running}
        self._total = len(self._running)
        self._lost = 0
        self._first_code = 0
        self._stop_at = self._kill_at = float("inf")
        self._was_signalled = 0

    def follow(self) -> int:
        """Until the last has ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        while self._running:
            with contextlib.suppress(queue.Empty):
                self._take(*self._lines.get(timeout=0.2))
            self._steer(time.monotonic())
        if self._was_signalled:
            return 128 + self._was_signalled
        return self._first_code if self._failed else 0

    @property
    def _failed(self) -> bool:
        return self._total - self._lost < self._least

    def _take(self, node: str, line: bytes) -> None:
        if line != END:
            write(line)
            if not line.startswith(EVENT):
                self._said[node].append(line)
            return
        code = self._running.pop(node).code()
        if code:
            self._lost += 1
            self._first_code = self._first_code or code
            said = [line.decode(errors="replace").strip() for line in self._said[node]]
            write(EVENT + b"%s\n" % json.dumps(
                {"event": "agent_exit", "node": node, "code": code, "last_lines": said}
            ).encode())  # fmt: skip
            if self._failed:
                self._stop_at = min(self._stop_at, time.monotonic() + GRACE_S)
            else:
                for agent in self._running.values():
                    agent.meet_anew()

    def _steer(self, now_s: float) -> None:
        if now_s >= self._stop_at:
            self._stop_at, self._kill_at = float("inf"), min(self._kill_at, now_s + STOP_GRACE_S)
            for agent in self._running.values():
                agent.stop()
        if now_s >= self._kill_at:
            for agent in self._running.values():
                agent.kill()

    def _signalled(self, number: int, _frame: object) -> None:
        self._was_signalled = number
        self._stop_at = time.monotonic()


def command_for(node: str, launcher: Mapping[str, Any], here: str) -> list[str]:
    """How a node's agent is started from the head, which is itself one of the nodes."""
    start = [launcher["python"], "agents.py", node]
    if node == here:
        return start
    run = shlex.quote(FOLDER.name)
    script = f"cd ~/.clusterctl/runs/{run} && CLUSTERCTL_RUN_ID={run} exec {shlex.join(start)}"
    return [*launcher["ssh"], node, script]


def write(text: bytes) -> None:
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(1, text) :]


# --- on a node ---------------------------------------------------------------------------------


def serve(launcher: Mapping[str, Any], node: str) -> int:
    """This node's command until it ends, or until stdin does; then what cleans up after it."""
    argv = [filled_in(part) for part in launcher["agents"][node]]
    environment = {**os.environ, **launcher["environment"]}
    libc = ctypes.CDLL(None)
    try:
        child = subprocess.Popen(
            argv,
            env=environment,
            cwd=FOLDER,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
    except OSError as error:
        write(f"{node}: {argv[0]} cannot be started: {error.strerror}\n".encode())
        return 127
    while child.poll() is None:
        if select.select([0], [], [], 0.2)[0]:
            told = os.read(0, 4096)
            if told == END:
                end(child)
            elif ANEW in told:
                end_ranks(environment["CLUSTERCTL_RUN_ID"])
    # What torchrun started sits in sessions of its own, and ends with its rank.py.
    signal_group(child.pid, signal.SIGKILL)
    clean_up(launcher.get("cleanup", {}).get(node), environment)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def end_ranks(run_id: str) -> None:
    """This node's ranks of the run; their agent starts them again, if it may."""
    mark = f"CLUSTERCTL_RUN_ID={run_id}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")[1:3]
            is_rank = any(Path(os.fsdecode(part)).name == "rank.py" for part in command)
            if is_rank and mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGTERM)


def filled_in(part: str) -> str:
    """What only the node itself knows: by which numbers its user goes."""
    return f"{os.getuid()}:{os.getgid()}" if part == "{uid}:{gid}" else part


def clean_up(argv: Sequence[str] | None, environment: Mapping[str, str]) -> None:
    if argv:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, env=environment, capture_output=True, timeout=STOP_GRACE_S, check=False)


def end(child: subprocess.Popen[bytes]) -> None:
    signal_group(child.pid, signal.SIGTERM)
    try:
        child.wait(STOP_GRACE_S - 2)
    except subprocess.TimeoutExpired:
        signal_group(child.pid, signal.SIGKILL)
        child.wait()


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def main(arguments: Sequence[str]) -> NoReturn:
    launcher = json.loads((FOLDER / "plan.json").read_text())["launcher"]
    if arguments:
        sys.exit(serve(launcher, arguments[0]))
    code = Agents(launcher, here=next(iter(launcher["agents"]))).follow()
    sys.stdout.flush()
    os._exit(code)  # reading threads may hang on what somebody else holds open


if __name__ == "__main__":
    main(sys.argv[1:])

"""Run the launcher on the head, for as long as the operator is there. Self-contained: needs only Python.

Started through one ssh channel, in the run folder. Reads on stdin, a word a line:

    alive   sent every few seconds; the operator is taken for lost after LIFELINE_S without
    stop    SIGTERM to the launcher, SIGKILL when it is still there after its grace
    kill    SIGKILL at once; the end of stdin means the same

Copies the launcher's output to stdout and logs/launcher.log. Last it writes the file exit_code and the line
`@clusterctl {"event": "launcher_exit", "code": n}`. Ends with the launcher's exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIFELINE_S = 60.0
GIVE_UP_S = 5.0  # after SIGKILL: somebody else holds the launcher's output, or nobody reads ours
FOLDER = Path(__file__).resolve().parent
KEPT_VARIABLES = ("HOME", "USER", "LOGNAME", "TMPDIR", "CLUSTERCTL_RUN_ID")
"""Of head.py's own environment: hydra carries all of the launcher's variables to every node."""


def start(launcher: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """The launcher in a session of its own, with the plan's environment and little more."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return subprocess.Popen(
        [str(Path(arg).expanduser()) if arg.startswith("~/") else arg for arg in launcher["argv"]],
        env={"LANG": "C.UTF-8", **kept, **launcher["environment"]},
        cwd=FOLDER,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def guard(group: int) -> int:
    """Fork a process that kills the group once this one is gone; returns a descriptor to dismiss it.

    The kernel's death signal would reach mpirun, which is a shell script, but not its mpiexec.hydra.
    """
    ours, theirs = os.pipe()
    if os.fork() != 0:
        os.close(ours)
        return theirs
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.dup2(ours, 0)
    os.closerange(1, 4096)
    if os.read(0, 1) == b"":
        kill_group(group, signal.SIGKILL)
    os._exit(0)


def kill_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def copy_output(child: subprocess.Popen[bytes]) -> None:
    """The launcher's output as it comes, to the log and to stdout, ended by a newline."""
    assert child.stdout is not None
    chunk = b"\n"
    with (FOLDER / "logs" / "launcher.log").open("wb") as log:
        while True:
            last, chunk = chunk, os.read(child.stdout.fileno(), 65536)
            if not chunk:
                break
            log.write(chunk)
            log.flush()
            write_all(chunk)
    if not last.endswith(b"\n"):
        write_all(b"\n")


def write_all(text: bytes) -> None:
    # Once the operator is gone stdout is broken; the log still wants the rest.
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(1, text) :]


class Control:
    """The operator's words, turned into signals to the launcher's group."""

    def __init__(self, group: int, stop_grace_s: float) -> None:
        self._group, self._stop_grace_s = group, stop_grace_s
        self._kill_at = float("inf")
        self._lost_at = time.monotonic() + LIFELINE_S
        self._partial = b""
        self._listening = True

    @property
    def gave_up(self) -> bool:
        return time.monotonic() >= min(self._kill_at, self._lost_at) + GIVE_UP_S

    def attend(self, wait_s: float) -> None:
        """Wait for words at most `wait_s`, obey them, and do what has become due."""
        if self._listening and select.select([0], [], [], wait_s)[0]:
            self._hear(os.read(0, 4096))
        elif not self._listening:
            time.sleep(wait_s)
        if time.monotonic() >= min(self._kill_at, self._lost_at):
            kill_group(self._group, signal.SIGKILL)

    def _hear(self, text: bytes) -> None:
        self._listening = bool(text)
        *words, self._partial = (self._partial + text).split(b"\n")
        self._lost_at = time.monotonic() + LIFELINE_S
        if b"kill" in words or not text:
            self._kill_at = time.monotonic()
        elif b"stop" in words:
            self._kill_at = min(self._kill_at, time.monotonic() + self._stop_grace_s)
            kill_group(self._group, signal.SIGTERM)


def main() -> int:
    launcher = json.loads((FOLDER / "plan.json").read_text())["launcher"]
    (FOLDER / "logs").mkdir(exist_ok=True)
    try:
        child = start(launcher)
    except OSError as error:
        print(f"{launcher['argv'][0]} cannot be started: {error}", flush=True)
        return report(127)
    dismissal = guard(child.pid)
    copier = threading.Thread(target=copy_output, args=(child,), daemon=True)
    copier.start()
    control = Control(child.pid, float(launcher["stop_grace_s"]))
    # Not mpirun's end but the end of its output: a SIGTERM ends the shell script mpirun at once, while
    # mpiexec.hydra below it goes on until the ranks are done.
    while copier.is_alive() and not control.gave_up:
        control.attend(0.2)
    kill_group(child.pid, signal.SIGKILL)
    os.write(dismissal, b"x")
    code = child.wait()
    return report(code if code >= 0 else 128 - code)


def report(code: int) -> int:
    (FOLDER / "exit_code").write_text(f"{code}\n")
    write_all(b'@clusterctl {"event": "launcher_exit", "code": %d}\n' % code)
    return code


if __name__ == "__main__":
    # Threads may wait in a write to an operator who has gone: do not join them.
    result = main()
    os._exit(result)

"""clusterctl as a user runs it: the real command, in a home of its own, on real local nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.providers.local.control import stack_store
from provision.stacks import build_here, is_built, stack_named

STACK = stack_named("native")


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line on stderr; fails when there is another, or a traceback."""
        lines = self.err.splitlines()
        assert len(lines) == 1, f"more than one line:\n{self.err}\n{self.out}"
        return lines[0]


@dataclass(frozen=True)
class Command:
    """clusterctl for one cluster, with its own home folder and working folder."""

    name: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        return os.environ | {
            "HOME": str(self.home),
            "XDG_CACHE_HOME": cache,  # the stack is built once, not once a test
            "XDG_STATE_HOME": str(self.home / "state"),
            "COLUMNS": "80",
        }

    @property
    def state(self) -> Path:
        return self.home / "state" / "clusterctl" / self.name

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Started, not waited for; in a session of its own, so that signals reach it alone."""
        return subprocess.Popen(
            self._argv(args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.home,
            start_new_session=True,
        )

    def __call__(self, *args: str, timeout_s: float = 240) -> Ended:
        process = self.start(*args)
        out, err = process.communicate(timeout=timeout_s)
        assert "Traceback" not in err, err
        return Ended(process.returncode, out, err)

    def ok(self, *args: str) -> str:
        ended = self(*args)
        assert ended.code == 0, ended.out + ended.err
        return ended.out

    def json(self, *args: str) -> Any:
        """The last line of the output as JSON."""
        return json.loads(self(*args, "--json").out.splitlines()[-1])

    def on(self, node: str, command: str, expect: int = 0) -> str:
        """Output of a shell line on a node, over OpenSSH's own ssh."""
        argv = ["ssh", "-F", str(self.state / "ssh_config"), "-o", "BatchMode=yes", node, command]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=self.environment)
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout

    def _argv(self, args: tuple[str, ...]) -> list[str]:
        named = [] if args[0] == "--help" else ["--name", self.name]
        words = 2 if args[0] in ("playbook", "stack") else 1  # of the command itself
        return [sys.executable, "-m", "run.cli", *args[:words], *named, *args[words:]]


def built_stack() -> Path:
    """The native stack's folder on this machine, built when it is not there (a minute, some GB)."""
    store = stack_store()
    if not is_built(STACK, store):
        build_here(STACK, store, print)
    return store / STACK.name

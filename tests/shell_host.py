"""A Host that is this machine's own sh: steps meet real files, without an ssh server."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from provision.errors import CommandError
from provision.host import CommandResult, Stream, quoted
from provision.model import Node


class ShellHost:
    """Runs every script here, `sudo` or not, and counts the round trips it would have cost."""

    def __init__(self, name: str = "here") -> None:
        self._node = Node(name, "127.0.0.1", user="root")
        self.round_trips = 0

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
        self.round_trips += 1
        command = quoted(script, *args)
        done = subprocess.run(
            ["env", "LC_ALL=C", "sh", "-c", command],
            input=stdin, capture_output=True, timeout=timeout_s, start_new_session=True,
        )  # fmt: skip
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        result = CommandResult(done.returncode, out, err)
        if result.exit_code not in expect:
            raise CommandError(self._node.name, command, result.exit_code, result.output)
        return result

    def stream(self, script: str, *args: str) -> Stream:
        raise NotImplementedError("no step streams")

    def close(self) -> None:
        return None


class SilentWatcher:
    """Nobody watches."""

    def started(self, node: str, play: str, step: str) -> None: ...

    def ended(self, result: object) -> None: ...

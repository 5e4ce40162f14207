"""Host: run, read, write and stream on one node over ssh. The only file that imports Fabric.

One connection a node, kept for as long as the Host lives. Host keys are pinned: an unknown or changed
key ends the connection, never a prompt and never AutoAddPolicy (which Fabric sets by default).
"""

from __future__ import annotations

import base64
import shlex
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from provision.errors import CommandError, ConnectError, HostError
from provision.model import Node

if TYPE_CHECKING:
    import fabric
    import paramiko

CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class CommandResult:
    """What a command printed and how it ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class Host(Protocol):
    """What steps, preflight and launchers ask of a node. SshHost is the real one; tests have a fake."""

    @property
    def node(self) -> Node: ...

    def run(
        self,
        script: str,
        *args: str,
        sudo: bool = False,
        stdin: bytes = b"",
        expect: Sequence[int] = (0,),
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> CommandResult:
        """Run a POSIX sh script; each `%s` in it is replaced by one quoted argument.

        Raises CommandError when the exit code is not in `expect`, ConnectError when there is no session.
        """

    def stream(self, script: str, *args: str) -> Stream:
        """Start a script whose lines are wanted as they come; see Stream."""

    def close(self) -> None: ...


class Stream(Protocol):
    """A running remote script: iterate over its merged output lines; write to its stdin."""

    def readline(self, timeout_s: float) -> str | None:
        """Next line without its newline, "" for a blank one; None when none came in time.

        Raises EOFError after the last line.
        """

    def write(self, data: bytes) -> None: ...

    def wait(self, timeout_s: float) -> int:
        """Exit code of the script (-1 when the connection died)."""

    def close(self) -> None:
        """Close the channel: the script's stdin ends."""

"""Host: run scripts on one node over ssh, and stream their output.

One connection a node, kept for as long as the Host lives.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from provision.connection import Login, open_connection
from provision.errors import CommandError, ConnectError, HostError
from provision.model import Node

if TYPE_CHECKING:
    import fabric
    import paramiko

CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 600.0
SEND_BYTES = 1 << 17


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


class SshHost:
    """A Host over one Fabric connection, opened on first use and kept until close().

    Commands go through sessions of Fabric's transport directly: Invoke's runner reads a command's stdin one
    character at a time and starts three threads for every command.
    """

    def __init__(
        self, node: Node, connect_timeout_s: float = CONNECT_TIMEOUT_S, login: Login | None = None
    ) -> None:
        self._node = node
        self._connect_timeout_s = connect_timeout_s
        self._login = login
        self._connection: fabric.Connection | None = None
        self._opening = threading.Lock()

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
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> CommandResult:
        channel = self._session()
        command = quoted(script, *args)
        try:
            channel.exec_command(_as_sh(command, sudo=sudo and self._node.user != "root"))
            result = _finish(channel, stdin, timeout_s)
        except TimeoutError:
            raise HostError(self._node.name, f"no end after {timeout_s:.0f} s: `{command[:70]}`") from None
        except (OSError, EOFError, _ssh_exception()) as error:
            raise ConnectError(
                self._node.name, f"connection lost: {error or 'closed by the node'}"
            ) from error
        finally:
            channel.close()
        if result.exit_code == -1:
            raise ConnectError(self._node.name, "connection lost while a command ran")
        if result.exit_code not in expect:
            raise CommandError(self._node.name, command, result.exit_code, result.output)
        return result

    def stream(self, script: str, *args: str) -> Stream:
        channel = self._session()
        channel.set_combine_stderr(True)
        try:
            channel.exec_command(_as_sh(quoted(script, *args), sudo=False))
        except (OSError, EOFError, _ssh_exception()) as error:
            raise ConnectError(
                self._node.name, f"connection lost: {error or 'closed by the node'}"
            ) from error
        return _ChannelStream(channel)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> SshHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _session(self) -> paramiko.Channel:
        import paramiko

        with self._opening:
            if self._connection is None or not self._connection.is_connected:
                self._connection = open_connection(self._node, self._connect_timeout_s, self._login)
            transport: paramiko.Transport = self._connection.transport
        try:
            return transport.open_session(timeout=self._connect_timeout_s)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ConnectError(self._node.name, f"no new ssh session: {error}") from error


def quoted(script: str, *args: str) -> str:
    """The script with each `%s` replaced by one shell-quoted argument.

    >>> quoted("cat %s", "a b")
    "cat 'a b'"
    """
    return script % tuple(shlex.quote(arg) for arg in args) if args else script


# Everything before it on stdout is what the login shell's own startup files printed.
_BEGUN = "@@begun"


def _as_sh(command: str, *, sudo: bool) -> str:
    """The command for sh in the C locale, in words that every login shell passes on unchanged.

    csh ends a quoted word at a newline and knows `!` inside it, fish knows `\\`: those go as octal numbers.
    """
    prefix = "sudo -n " if sudo else ""
    script = f"echo {_BEGUN}\n{command}"
    encoded = "".join(_OCTAL.get(letter, letter) for letter in script)
    return f"{prefix}env LC_ALL=C sh -c 'eval \"$(printf %b \"$1\")\"' sh '{encoded}'"


_OCTAL = {letter: f"\\0{ord(letter):03o}" for letter in "\\\n!'"}


def _after_begun(out: bytes) -> bytes:
    """What the script printed; all of it when it did not even begin."""
    noise, mark, printed = out.partition(f"{_BEGUN}\n".encode())
    return printed if mark else noise


def _ssh_exception() -> type[Exception]:
    import paramiko

    return paramiko.SSHException


def _finish(channel: paramiko.Channel, stdin: bytes, timeout_s: float) -> CommandResult:
    """Send stdin, collect both outputs, wait for the exit code. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    if stdin:  # from a thread of its own: the command may print before it has read everything
        threading.Thread(target=_send, args=(channel, stdin), daemon=True).start()
    else:
        _send(channel, b"")
    out, err = _drain(channel, deadline)
    if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError
    printed = _after_begun(out).decode(errors="replace")
    return CommandResult(channel.exit_status, printed, err.decode(errors="replace"))


def _send(channel: paramiko.Channel, stdin: bytes) -> None:
    # A command that does not read its stdin closes it early; its exit code tells what matters.
    with contextlib.suppress(OSError):
        # In pieces: paramiko's sendall copies all that is left after each packet (250 MB took 300 s).
        for at in range(0, len(stdin), SEND_BYTES):
            channel.sendall(stdin[at : at + SEND_BYTES])
        channel.shutdown_write()


def _drain(channel: paramiko.Channel, deadline: float) -> tuple[bytes, bytes]:
    """Both outputs until their end. Raises TimeoutError after the deadline.

    stderr is emptied at least twice a second: the two share one window of 2 MiB, and a command whose
    errors fill it would wait for ever. A thread for it would cost every command one.
    """
    out, err = bytearray(), bytearray()
    chunk = b"-"
    while chunk:
        left = deadline - time.monotonic()
        channel.settimeout(max(0.01, min(left, 0.5)))
        try:
            chunk = channel.recv(65536)
            out += chunk
        except TimeoutError:
            if left <= 0:
                raise
        while channel.recv_stderr_ready():
            err += channel.recv_stderr(65536)
    return bytes(out), bytes(err)


class _ChannelStream:
    """Stream over one ssh channel with stderr merged into stdout."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._buffer = bytearray()
        self._ended = False
        self._begun = False

    def readline(self, timeout_s: float) -> str | None:
        while not self._has_line():
            if self._ended:
                return self._rest()
            self._channel.settimeout(max(0.001, timeout_s))
            try:
                chunk = self._channel.recv(65536)
            except TimeoutError:
                return None
            except OSError:
                chunk = b""
            self._ended = not chunk
            self._buffer += chunk
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line.decode(errors="replace")

    def _has_line(self) -> bool:
        """Drops what the login shell printed by itself, once the script's own first line is there."""
        if not self._begun:
            noise, mark, rest = bytes(self._buffer).partition(f"{_BEGUN}\n".encode())
            self._begun = bool(mark)
            self._buffer = bytearray(rest if mark else noise)
        return self._begun and b"\n" in self._buffer

    def _rest(self) -> str:
        if not self._buffer:
            raise EOFError
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line.decode(errors="replace")

    def write(self, data: bytes) -> None:
        self._channel.sendall(data)

    def wait(self, timeout_s: float) -> int:
        if not self._channel.status_event.wait(timeout_s):
            return -1
        return int(self._channel.exit_status)

    def close(self) -> None:
        self._channel.close()

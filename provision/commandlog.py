"""Every command run on a node, written down beside the record for the day something went wrong.

    LOG/NODE.log        0600; at 2.5 MB it becomes NODE.log.1, so a node never has more than 5 MB

An entry tells when, how long, how it ended, what it was for, the command, and its last lines. What goes to
a command's stdin (file contents, keys) is never written. Of a secret step only the name is.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from provision.errors import ClusterctlError, CommandError, last_lines
from provision.host import COMMAND_TIMEOUT_S, CommandResult, Host, Stream, quoted
from provision.model import Node

MAX_BYTES = 2_500_000
MAX_COMMAND = 4000
MAX_LINE = 500
LAST_LINES = 5
_ENTRY = re.compile(r"^\d{4}-\d\d-\d\d ", re.MULTILINE)


@runtime_checkable
class Labelled(Protocol):
    """A Host that can be told what the next commands are for."""

    def labelled(self, label: Label) -> contextlib.AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Label:
    """What commands are for, and how much is written of them.

    `brief`: the command is not (it only reads, and is long), its output only when it fails.
    `secret`: neither ever is.
    """

    about: str = ""
    brief: bool = False
    secret: bool = False


def labelled(
    host: Host, about: str, *, brief: bool = False, secret: bool = False
) -> contextlib.AbstractContextManager[None]:
    """The host's commands meanwhile are for this."""
    if isinstance(host, Labelled):
        return host.labelled(Label(about, brief, secret))
    return contextlib.nullcontext()


@dataclass
class CommandLog:
    """The log of one node. Failing to write it (a full disk) never fails the command."""

    path: Path
    max_bytes: int = MAX_BYTES
    _file: int | None = field(default=None, repr=False)
    _size: int = 0

    def write(self, entry: str) -> None:
        with contextlib.suppress(OSError):
            data = entry.encode(errors="replace")
            if self._file is None or self._size + len(data) > self.max_bytes:
                self._open(len(data))
            assert self._file is not None
            self._size += os.write(self._file, data)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, coming: int) -> None:
        """Open at its end, after turning a full one into NODE.log.1."""
        self.close()
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size + coming > self.max_bytes:
            self.path.replace(f"{self.path}.1")
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size


class LoggedHost:
    """A Host whose every command is written to its node's log. Used by one thread at a time."""

    def __init__(self, host: Host, log: CommandLog) -> None:
        self._host = host
        self._log = log
        self._label = Label()

    @property
    def node(self) -> Node:
        return self._host.node

    @contextlib.contextmanager
    def labelled(self, label: Label) -> Iterator[None]:
        before, self._label = self._label, label
        try:
            yield
        finally:
            self._label = before

    def run(
        self,
        script: str,
        *args: str,
        sudo: bool = False,
        stdin: bytes = b"",
        expect: Sequence[int] = (0,),
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> CommandResult:
        started = time.time()
        ended, output, failed = "broken off", "", True
        try:
            result = self._host.run(script, *args, sudo=sudo, stdin=stdin, expect=expect, timeout_s=timeout_s)
            ended, output, failed = f"exit {result.exit_code}", result.output, False
        except CommandError as error:
            ended, output = f"exit {error.command_exit_code}", "\n".join(error.last_lines)
            raise
        except ClusterctlError as error:
            ended, output = "no end", str(error)
            raise
        finally:
            is_shown = failed or not self._label.brief
            self._write(started, ended, quoted(script, *args), output if is_shown else "", sudo=sudo)
        return result

    def stream(self, script: str, *args: str) -> Stream:
        self._write(time.time(), "started", quoted(script, *args), "", sudo=False)
        return self._host.stream(script, *args)

    def close(self) -> None:
        self._host.close()
        self._log.close()

    def _write(self, started: float, ended: str, command: str, output: str, *, sudo: bool) -> None:
        label = self._label
        lines = [f"{_moment(started)} {ended}, {time.time() - started:.3f} s, {label.about}".rstrip(", ")]
        if not label.secret and not label.brief:
            lines += [
                f"  {'#' if sudo else '$'} {line}"
                for line in _cut(command.strip("\n"), MAX_COMMAND).splitlines()
            ]
        if not label.secret:
            lines += [f"  | {_cut(line, MAX_LINE)}" for line in last_lines(output, LAST_LINES)]
        self._log.write("\n".join(lines) + "\n")


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{int(seconds % 1 * 1000):03}"


def _cut(text: str, most: int) -> str:
    """
    >>> _cut("abcdef", 3)
    'abc… (3 more)'
    """
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more)"


def last_entries(path: Path, count: int) -> list[str]:
    """The last entries of a node's log, the oldest first; empty when there is none."""
    older = Path(f"{path}.1")
    text = "".join(each.read_text(errors="replace") for each in (older, path) if each.exists())
    starts = [match.start() for match in _ENTRY.finditer(text)][-count:] if count else []
    return [text[at:end].rstrip("\n") for at, end in zip(starts, [*starts[1:], len(text)], strict=True)]

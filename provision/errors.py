"""Every failure that a user can meet, as one small tree.

ClusterctlError
├── SettingsError      the inventory, an option or an argument is wrong; nothing was done
├── ProviderError      nodes cannot be made, found or removed
├── HostError          a node cannot be reached, or a command on it failed
│   ├── ConnectError       no ssh session: refused, timed out, key refused
│   │   ├── HostKeyError   the host does not show the key that is pinned
│   │   └── LoginRefused   the host takes none of the keys, or not the password
│   └── CommandError       a command ended with an exit code that is not expected
├── FactError          recorded text (lscpu, /proc ...) could not be understood
├── StepError          a playbook left drift on at least one node
│   └── Unforeseen         what a playbook wants cannot be planned before an earlier one has run
└── LaunchError        a training run could not start, or ended badly

The message says what, where and what next, in one line:
"n02: no amx_bf16 in lscpu flags; choose m7i or r7i, or set require_amx: false".
`exit_code` is what the command ends with.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path


class ClusterctlError(Exception):
    """Base of all expected failures; the command line prints it as one line, without a traceback."""

    exit_code = 1


class SettingsError(ClusterctlError):
    """The inventory, an option or an argument is wrong; nothing was done."""

    exit_code = 2


class ProviderError(ClusterctlError):
    """Nodes cannot be made, found or removed."""


class HostError(ClusterctlError):
    """A node cannot be reached, or a command on it failed."""

    def __init__(self, host: str, problem: str) -> None:
        super().__init__(f"{host}: {problem}")
        self.host = host
        self.problem = problem


class ConnectError(HostError):
    """No ssh session to the node: refused, timed out, key refused."""


class HostKeyError(ConnectError):
    """The host that answers does not show the key that is pinned for the node."""


class LoginRefused(ConnectError):
    """The host takes none of the keys offered, or not the password."""


class CommandError(HostError):
    """A command on a node ended with an exit code that is not expected.

    Carries the command, its exit code and the last lines it printed.
    """

    def __init__(self, host: str, command: str, exit_code: int, output: str) -> None:
        self.command = command
        self.command_exit_code = exit_code
        self.last_lines = last_lines(output)
        why = self.last_lines[-1] if self.last_lines else "no output"
        super().__init__(host, f"`{_one_line(command)}` ended with exit code {exit_code}: {why}")


class FactError(ClusterctlError):
    """Recorded text (lscpu, /proc ...) could not be understood."""


class StepError(ClusterctlError):
    """A playbook left drift on at least one node."""


class Unforeseen(StepError):
    """What a playbook wants cannot be planned before an earlier one has run; --check skips it."""


class LaunchError(ClusterctlError):
    """A training run could not start, or ended badly."""


def place_in(file: Path, error: BaseException) -> str:
    """Where in a user's own file an error arose, and what it is: "nfs.py:12: KeyError: 'n02'".

    The innermost of the file's lines that led to it; the file alone when none did.
    """
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    where = f"{file}:{lines[-1]}" if lines else str(file)
    return f"{where}: {type(error).__name__}: {_one_line(str(error), 200)}".rstrip(": ")


def last_lines(output: str, count: int = 10) -> Sequence[str]:
    """The last lines that are not blank, at most `count`.

    >>> last_lines("a\\n\\nb\\n")
    ('a', 'b')
    """
    return tuple(line for line in output.splitlines() if line.strip())[-count:]


def _one_line(command: str, width: int = 70) -> str:
    flat = " ".join(command.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"

"""The person at the terminal: asked once for host keys and passwords, or the options that answer for him.

Questions go to stderr and are shown while the report pauses. A password is kept for this one command, in
memory alone.
"""

from __future__ import annotations

import getpass
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from provision.errors import SettingsError
from provision.openssh import fingerprint
from provision.providers import Secret, UnknownKey
from provision.report import Report


@dataclass(frozen=True)
class Answers:
    """The options of `up` that answer in place of a person."""

    accept_new_host_keys: bool = False
    password_fd: int | None = None
    password_command: str | None = None
    sudo_password_fd: int | None = None
    sudo_password_command: str | None = None

    def source(self, secret: Secret) -> tuple[str, int | str] | None:
        """The option that gives a password, and its value; for sudo the login's where it has none itself.

        Raises SettingsError when two say it.
        """
        own = {
            Secret.LOGIN: {
                "--password-fd": self.password_fd,
                "--password-command": self.password_command,
            },
            Secret.SUDO: {
                "--sudo-password-fd": self.sudo_password_fd,
                "--sudo-password-command": self.sudo_password_command,
            },
        }[secret]
        given = [(name, value) for name, value in own.items() if value is not None]
        if len(given) > 1:
            raise SettingsError(f"say {given[0][0]} or {given[1][0]}, not both")
        if given:
            return given[0]
        return self.source(Secret.LOGIN) if secret is Secret.SUDO else None


class Terminal:
    """An Operator."""

    def __init__(self, answers: Answers, report: Report) -> None:
        for secret in Secret:
            answers.source(secret)
        self._answers = answers
        self._report = report
        self._read: dict[str, str] = {}

    def accepts(self, keys: Sequence[UnknownKey]) -> bool:
        if self._answers.accept_new_host_keys:
            for each in keys:
                self.tell(f"{each.node}: host key taken unseen: {_shown(each)}")
            return True
        if not sys.stdin.isatty():
            raise SettingsError(
                "nobody has vouched for its host key, and nobody is there to compare it: put it into the "
                "inventory (clusterctl_host_keys) or your known_hosts, or say --accept-new-host-keys"
            )
        with self._report.paused():
            width = max(len(each.node) for each in keys)
            print("Nobody has vouched for these host keys yet; are they the machines' own?", file=sys.stderr)
            for each in keys:
                print(f"  {each.node:<{width}}  {each.where}  {_shown(each)}", file=sys.stderr)
            print(
                f"Trust {'them all' if len(keys) > 1 else 'it'}? [y/N] ", end="", file=sys.stderr, flush=True
            )
            return sys.stdin.readline().strip().lower() in ("y", "yes")

    def password(self, secret: Secret, places: Sequence[str], *, refused: bool = False) -> str:
        source = self._answers.source(secret)
        if source and not refused:
            return self._from(*source)
        if not sys.stdin.isatty():
            if refused:
                raise SettingsError("there is no other to try")
            option = "--sudo-password" if secret is Secret.SUDO else "--password"
            raise SettingsError(
                f"nobody is there to type a password: say {option}-fd N or {option}-command 'pass show lab'"
            )
        what = "sudo password" if secret is Secret.SUDO else "password"
        with self._report.paused():
            if len(places) > 1:
                print(f"One {what} for {', '.join(places)}", file=sys.stderr)
                return getpass.getpass(f"{what.capitalize()}: ")
            return getpass.getpass(f"{what.capitalize()} of {places[0]}: ")

    def tell(self, line: str) -> None:
        self._report.note(line)

    def _from(self, option: str, value: int | str) -> str:
        """The first line that a file descriptor or a command gives. Raises SettingsError without one."""
        if option not in self._read:
            text = _of_fd(option, value) if isinstance(value, int) else _of_command(option, value)
            self._read[option] = text.split("\n", 1)[0].rstrip("\r")
        if not self._read[option]:
            raise SettingsError(f"{option} gives no password")
        return self._read[option]


def _of_fd(option: str, number: int) -> str:
    """Up to the end of the line, so that another option may read the next from the same descriptor."""
    line = bytearray()
    try:
        while (byte := os.read(number, 1)) not in (b"", b"\n"):
            line += byte
    except OSError as error:
        raise SettingsError(f"{option} {number}: {error.strerror}") from None
    return line.decode(errors="surrogateescape")


def _of_command(option: str, command: str) -> str:
    try:
        done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, check=False)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{option}: {error}") from None
    if done.returncode != 0:
        raise SettingsError(f"{option}: `{command}` ended with exit code {done.returncode}")
    return done.stdout.decode(errors="surrogateescape")


def _shown(key: UnknownKey) -> str:
    return f"{key.key.split()[0]} {fingerprint(key.key)}"

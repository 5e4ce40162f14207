"""Root on a machine: by being root, by a sudo that asks for nothing, or by one password, once.

The password goes to sudo's stdin, never on a command line. What it pays for is a drop-in that lets this one
user in without it, until `down`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.errors import HostError, LoginRefused
from provision.host import CommandResult, Host, quoted
from provision.providers.static.originals import ROOT_STORE, Touched, keep, keep_script

_DONE = "@@kept"
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_-]*")
_DROP_IN = """
new=$(mktemp /etc/sudoers.d/.clusterctl.XXXXXX)  # sudo passes over names with a dot
printf '%%s\\n' %s > "$new"; chmod 440 "$new"
visudo -c -q -f "$new" > /dev/null || { rm -f "$new"; echo "visudo refuses the rule" >&2; exit 1; }
mv -f "$new" %s
"""


class SudoPasswordRefused(LoginRefused):
    """sudo wants a password, and it is not this one."""


def drop_in(cluster: str) -> str:
    return f"/etc/sudoers.d/90-clusterctl-{cluster}"


def rule(user: str, uid: int) -> str:
    """The line that lets the user be root without a password; users of a directory may have odd names.

    >>> rule("ann", 1000), rule("LAB\\\\\\\\ann", 70012)
    ('ann ALL=(ALL:ALL) NOPASSWD: ALL', '#70012 ALL=(ALL:ALL) NOPASSWD: ALL')
    """
    return f"{user if _PLAIN_NAME.fullmatch(user) else f'#{uid}'} ALL=(ALL:ALL) NOPASSWD: ALL"


def keep_as_root(host: Host, stamp: str, touched: Sequence[Touched]) -> None:
    """Where root is free to have. Raises HostError."""
    keep(host, keep_script(ROOT_STORE, stamp, touched), sudo=True)


def keep_by_password(
    host: Host, stamp: str, touched: Sequence[Touched], sudoers: tuple[str, str], password: str
) -> None:
    """The originals kept and the drop-in put there, in one use of the password.

    `sudoers` is the drop-in's path and its line. Raises SudoPasswordRefused, and HostError with sudo's words.
    """
    path, line = sudoers
    script = keep_script(ROOT_STORE, stamp, touched) + quoted(_DROP_IN, line, path) + f"echo {_DONE}\n"
    # -k: a password that sudo remembers would leave ours unread on stdin.
    said = host.run(
        "sudo -k -S -p '' env LC_ALL=C sh -c %s", script, stdin=f"{password}\n".encode(), expect=range(256)
    )
    if _DONE not in said.stdout:
        raise _why(host, said)


def _why(host: Host, said: CommandResult) -> HostError:
    name, words = host.node.name, said.stderr.strip()
    if "incorrect password" in words or "no password was provided" in words or "Sorry, try again" in words:
        return SudoPasswordRefused(name, "sudo refuses the password")
    if "not in the sudoers file" in words or "not allowed to" in words or "may not run sudo" in words:
        return HostError(name, f"{host.node.user} may not use sudo there; log in as root or as one who may")
    if said.exit_code == 127:
        return HostError(name, "there is no sudo; install it, or log in as root")
    return HostError(name, f"sudo: {words.splitlines()[-1] if words else 'no output'}")

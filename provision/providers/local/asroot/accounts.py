"""The accounts of a fresh server, from those of this machine: its people left out, `ubuntu` put in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

USER = "ubuntu"
# login.defs: accounts of people; below are the system's, above are nobody and containers'.
PEOPLE = range(1000, 60000)
# Groups that a cloud image puts its user in, where the system has them.
EXTRA_GROUPS = ("adm", "sudo")


class Accounts(NamedTuple):
    """The four files of /etc, and the number of `ubuntu` (user and group alike)."""

    passwd: str
    group: str
    shadow: str
    gshadow: str
    uid: int


def fresh_accounts(passwd: str, group: str) -> Accounts:
    """System accounts kept, all passwords "*": no password fits, while keys still do ("!" would lock)."""
    users = [row for row in _rows(passwd, 7) if int(row[2]) not in PEOPLE and row[0] != USER]
    groups = [row for row in _rows(group, 4) if int(row[2]) not in PEOPLE and row[0] != USER]
    kept = {row[0] for row in users}
    uid = _free_id({int(row[2]) for row in users + groups})
    users.append([USER, "x", str(uid), str(uid), "Ubuntu", f"/home/{USER}", "/bin/bash"])
    groups = [_with_members(row, kept) for row in groups] + [[USER, "x", str(uid), ""]]
    return Accounts(
        passwd=_text([row[0], "x", *row[2:]] for row in users),
        group=_text(groups),
        shadow=_text([row[0], "*", "19000", "0", "99999", "7", "", "", ""] for row in users),
        gshadow=_text([row[0], "*", "", row[3]] for row in groups),
        uid=uid,
    )


def system_homes(passwd: str) -> list[str]:
    """Homes of system accounts under /var, where databases and services keep their data."""
    homes = {row[5].rstrip("/") for row in _rows(passwd, 7)}
    return sorted(home for home in homes if home.startswith("/var/") and home.count("/") >= 3)


def _with_members(row: list[str], kept: set[str]) -> list[str]:
    members = [name for name in row[3].split(",") if name in kept]
    if row[0] in EXTRA_GROUPS:
        members.append(USER)
    return [row[0], "x", row[2], ",".join(members)]


def _free_id(taken: set[int]) -> int:
    return next(number for number in PEOPLE if number not in taken)


def _rows(text: str, columns: int) -> list[list[str]]:
    """Lines with all columns; NIS's "+" lines and comments are no accounts."""
    rows = [line.split(":") for line in text.splitlines() if line and line[0] not in "+-#"]
    return [row for row in rows if len(row) == columns and row[2].isdigit()]


def _text(rows: Iterable[Sequence[str]]) -> str:
    return "".join(":".join(row) + "\n" for row in rows)

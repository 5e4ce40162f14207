"""Steps about the node's accounts: a user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from provision.errors import HostError
from provision.host import Host, quoted

_LOOK = """
entry=$(getent passwd %s) || exit 0
echo "entry $entry"
echo "groups $(id -Gn %s)"
[ -d "$(echo "$entry" | cut -d: -f6)" ] && echo has home
# Accounts of a directory service have their secrets there.
{ ! grep -q ^%s: /etc/passwd || grep -q ^%s: /etc/shadow; } && echo has shadow
getent group "$(echo "$entry" | cut -d: -f4)" > /dev/null && echo has group
"""

# "*" as password: none fits, while keys still do ("!" would lock the account where sshd is without PAM).
# No home yet: useradd, killed, would leave half of it.
_CREATE = (
    "if getent group %s > /dev/null; then set -- -g %s; fi; useradd --no-create-home --password '*' \"$@\""
)

_HOME = """
home=%s; new=$(dirname "$home")/.$(basename "$home").clusterctl-new
mkdir -p "$(dirname "$home")" && rm -rf "$new" && mkdir -m 700 "$new" || exit 1
[ ! -d /etc/skel ] || cp -R /etc/skel/. "$new" || exit 1
chown -R %s: "$new" && mv -T "$new" "$home"
"""


@dataclass(frozen=True)
class _Account:
    """What _LOOK printed of an account; `uid` is empty where there is none."""

    uid: str = ""
    gid: str = ""
    home: str = ""
    shell: str = ""
    groups: tuple[str, ...] = ()
    has: frozenset[str] = frozenset()


def _parse(actual: str) -> _Account:
    rows = [line.partition(" ") for line in actual.splitlines()]
    found = {key: rest for key, _, rest in rows if key != "has"}
    if "entry" not in found:
        return _Account()
    _, _, uid, gid, _, home, shell = found["entry"].split(":", 6)
    has = frozenset(rest for key, _, rest in rows if key == "has")
    return _Account(uid, gid, home, shell, tuple(found.get("groups", "").split()), has)


@dataclass(frozen=True)
class User:
    """An account without a password.

    Empty fields are the distribution's defaults and are left as they are in an account that exists, as
    are its other groups. `groups` must exist. A `system` user has a low number, and a home only where one is
    named. A home that changes is made if it is missing; nothing is moved into it. `uid` should be the same
    on all nodes that share files.
    """

    user: str
    groups: tuple[str, ...] = ()
    shell: str = ""
    home: str = ""
    system: bool = False
    uid: int | None = None

    @property
    def name(self) -> str:
        return f"user {self.user}"

    @property
    def probe(self) -> str:
        return quoted(_LOOK, *[self.user] * 4)

    def drift(self, actual: str) -> str | None:
        account = _parse(actual)
        return "; ".join(self._differences(account)) or None if account.uid else "no such user"

    def _differences(self, account: _Account) -> Iterator[str]:
        if self.uid is not None and account.uid != str(self.uid):
            yield f"has number {account.uid}, wanted {self.uid}"
        if not {"shadow", "group"} <= account.has:
            yield "is half made"
        if self.shell not in ("", account.shell):
            yield f"shell {account.shell}, wanted {self.shell}"
        if self.home not in ("", account.home):
            yield f"home {account.home}, wanted {self.home}"
        elif self._wants_home and "home" not in account.has:
            yield f"no folder {account.home}"
        lacking = [group for group in self.groups if group not in account.groups]
        if lacking:
            yield f"not in {' '.join(lacking)}"

    @property
    def _wants_home(self) -> bool:
        return bool(self.home) or not self.system

    def apply(self, host: Host) -> None:
        before = self._read(host)
        if self.uid is not None and before.uid not in ("", str(self.uid)):
            raise HostError(
                host.node.name,
                f"user {self.user} has number {before.uid}, wanted {self.uid}; its files would keep the old "
                "one: change it by hand (usermod -u, chown), or take its number",
            )
        if not before.uid:
            create = quoted(_CREATE, self.user, self.user)
            host.run(f"set --; {create} {self._options(before)} {quoted('%s', self.user)}", sudo=True)
        else:
            self._mend(host, before)
        account = self._read(host)
        if self._wants_home and "home" not in account.has:
            host.run(_HOME, account.home, self.user, sudo=True)

    def _mend(self, host: Host, account: _Account) -> None:
        """Finish what a killed useradd began, then change what differs."""
        if "group" not in account.has:
            host.run("groupadd -g %s %s", account.gid, self.user, sudo=True)
        if "shadow" not in account.has:
            host.run("pwconv && usermod --password '*' %s", self.user, sudo=True)
        options = self._options(account)
        if options:
            host.run(f"usermod {options} {quoted('%s', self.user)}", sudo=True)

    def _options(self, account: _Account) -> str:
        """What useradd, or usermod for an account that exists, is to change."""
        words: list[str] = []
        lacking = [group for group in self.groups if group not in account.groups]
        if lacking:
            words += ["--append"] if account.uid else []
            words += ["--groups", ",".join(lacking)]
        if self.shell not in ("", account.shell):
            words += ["--shell", self.shell]
        if self.home not in ("", account.home):
            words += ["--home", self.home]
        if not account.uid:
            words += ["--system"] if self.system else []
            words += ["--uid", str(self.uid)] if self.uid is not None else []
        return " ".join(quoted("%s", word) for word in words)

    def _read(self, host: Host) -> _Account:
        return _parse(host.run(self.probe, sudo=True, expect=(0, 1, 2)).stdout)

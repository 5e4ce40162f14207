"""Steps that let nodes and people in by ssh."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.errors import HostError, SettingsError
from provision.facts import MESH_KEY
from provision.host import Host, quoted
from provision.line import remove_line, set_line
from provision.steps.texts import as_user, edit_text, unified


@dataclass(frozen=True)
class MeshKey:
    """An ed25519 key pair made on the head for its login user; the private half never leaves it."""

    home: str
    cluster: str

    @property
    def name(self) -> str:
        return f"key ~/{MESH_KEY}"

    @property
    def probe(self) -> str:
        return quoted("stat -c '%%a' %s; [ -s %s ] && echo public", self._path, f"{self._path}.pub")

    def drift(self, actual: str) -> str | None:
        return None if actual.split() == ["600", "public"] else "no key pair that only its user can read"

    def apply(self, host: Host) -> None:
        # Not with sudo: the key is the user's. An interrupted run may have left one half: start over.
        host.run(
            "umask 077; mkdir -p ~/.ssh && rm -f %s %s && ssh-keygen -q -t ed25519 -N '' -C %s -f %s",
            self._path,
            f"{self._path}.pub",
            f"clusterctl-mesh-{self.cluster}",
            self._path,
        )

    @property
    def _path(self) -> str:
        return f"{self.home}/{MESH_KEY}"


# Read and written as the user, who may have put links there; and root may not enter a home on NFS.
_AUTHORIZED = """
home=$(getent passwd %s | cut -d: -f6); [ -n "$home" ] || exit 0
echo "$home"
runuser -u %s -- cat "$home/.ssh/authorized_keys" 2> /dev/null
"""
_KEY = re.compile(r"(?:^|\s)((?:ssh|ecdsa|sk)-\S+\s+AAAA[0-9A-Za-z+/=]+)(?:\s|$)")


@dataclass(frozen=True)
class AuthorizedKey:
    """A public key that lets its holder in as a user; the user's other lines stay.

    `key` is a line of authorized_keys, with options before the key and a comment after it if wanted. The
    same key with other options or another comment is replaced by it. With `present=False` the key goes,
    whatever stands around it.
    """

    user: str
    key: str
    present: bool = True

    def __post_init__(self) -> None:
        if "\n" in self.key or not _KEY.search(self.key):
            raise SettingsError(f"AuthorizedKey for {self.user}: {self.key[:40]!r} is not one public key")

    @property
    def name(self) -> str:
        comment = self.key.split()[-1]
        return f"key {comment if len(comment) < 40 else comment[-12:]} for {self.user}"

    @property
    def probe(self) -> str:
        return quoted(_AUTHORIZED, self.user, self.user)

    def drift(self, actual: str) -> str | None:
        home, _, content = actual.partition("\n")
        if not home.startswith("/"):
            return f"there is no user {self.user}" if self.present else None
        if self._wanted(content) == content:
            return None
        return "key missing or with other options" if self.present else "key is there"

    def diff(self, actual: str) -> str:
        home, _, content = actual.partition("\n")
        return unified(content, self._wanted(content), f"{home}/.ssh/authorized_keys")

    def apply(self, host: Host) -> None:
        home = host.run(self.probe, sudo=True, expect=(0, 1)).stdout.partition("\n")[0]
        if not home.startswith("/"):
            raise HostError(host.node.name, f"there is no user {self.user} to let in; make it with User")
        folder = f"{home}/.ssh"
        host.run(as_user(self.user, quoted("[ -d %s ] || mkdir -m 700 %s", folder, folder)), sudo=True)
        edit_text(host, f"{folder}/authorized_keys", self._wanted, self.user, "600", user=self.user)

    def _wanted(self, content: str) -> str:
        """The line in place of every other line with the same key, comments apart."""
        found = _KEY.search(self.key)
        assert found is not None
        kind, encoded = found[1].split()
        same = re.compile(rf"^(?!\s*#)(?:.*\s)?{re.escape(kind)}\s+{re.escape(encoded)}(?:\s|$)")
        line = self.key.strip()
        return set_line(content, line, same) if self.present else remove_line(content, line, same)

"""Steps that let nodes reach each other by ssh."""

from __future__ import annotations

from dataclasses import dataclass

from provision.facts import MESH_KEY
from provision.host import Host, quoted


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

"""Steps that only verify: their drift is for a person to remove."""

from __future__ import annotations

from dataclasses import dataclass

from provision.errors import HostError
from provision.host import Host


@dataclass(frozen=True)
class Verdict:
    """A fact that was judged while planning. `problem` is None when all is well; `fix` says what to do."""

    name: str
    problem: str | None
    fix: str = ""
    probe: str = ""

    def drift(self, actual: str) -> str | None:
        return self.problem

    def apply(self, host: Host) -> None:
        raise HostError(host.node.name, f"{self.problem}; {self.fix}")

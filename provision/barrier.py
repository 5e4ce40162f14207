"""How far each node has come through the playbooks, for those that wait for it.

A stage is a number of playbooks done: at stage 0 a node has been looked at. A node at stage n waits only
for others to come to stage n, so the ones that are furthest back never wait: there is no deadlock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping

from provision.facts import NodeFacts


class Progress:
    """Told by each node's thread where it is, asked by the threads of those that need it.

    `elsewhere` are facts of nodes that do not take part: they have been at every stage for ever.
    """

    def __init__(self, names: Iterable[str], elsewhere: Mapping[str, NodeFacts]) -> None:
        self._moved = threading.Condition()
        self._seen: dict[str, list[NodeFacts]] = {name: [] for name in names}
        self._gone: set[str] = set()
        self._changed_s: dict[str, float] = {}
        self._elsewhere = elsewhere
        self._stopped = False

    @property
    def stopped(self) -> bool:
        return self._stopped

    def reach(self, name: str, facts: NodeFacts, *, changed: bool = False) -> None:
        """The node has come to its next stage, where these were its facts."""
        with self._moved:
            self._seen[name].append(facts)
            if changed:
                self._changed_s[name] = time.monotonic()
            self._moved.notify_all()

    def leave(self, name: str) -> None:
        """The node goes no further: it is through with all, or has failed. Nobody waits for it any more."""
        with self._moved:
            self._gone.add(name)
            self._moved.notify_all()

    def stop(self) -> None:
        """Everybody ends at the next stage, and nobody waits."""
        with self._moved:
            self._stopped = True
            self._moved.notify_all()

    def wait(self, names: Iterable[str], stage: int) -> dict[str, NodeFacts]:
        """Facts at that stage of those that came to it; the others have failed before it.

        What a node learnt later is left out, so that a plan does not depend on who was faster.
        """
        wanted = tuple(names)
        mine = [name for name in wanted if name in self._seen]
        with self._moved:
            self._moved.wait_for(lambda: self._stopped or all(self._decided(name, stage) for name in mine))
            came = {name: self._seen[name][stage] for name in mine if len(self._seen[name]) > stage}
        return {name: self._elsewhere[name] for name in wanted if name in self._elsewhere} | came

    def changed_since(self, names: Iterable[str], moment_s: float) -> bool:
        """True when one of them has changed something after that moment of the monotonic clock."""
        return any(self._changed_s.get(name, 0.0) > moment_s for name in names)

    def _decided(self, name: str, stage: int) -> bool:
        return len(self._seen[name]) > stage or name in self._gone

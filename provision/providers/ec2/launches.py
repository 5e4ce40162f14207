"""Launches under way, kept on this machine from before the call until every node has its own host key.

    launches.json in the cluster's state folder (0600)

A RunInstances call that was cut off is made again with the same ClientToken and the same parameters: EC2 then
answers with the instances of the first one instead of making more
(https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html).
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from provision.state import replace_file


@dataclass(frozen=True)
class Launch:
    """One RunInstances call: its parameters, and the instances once it has answered.

    `first_key` is the public host key that its user data gives the instances, for the first login.
    """

    token: str
    nodes: tuple[str, ...]
    first_key: str
    parameters: Mapping[str, Any]
    instances: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """What this machine knows of a cluster's instances that EC2 does not.

    `host_keys` holds each instance's own public host key, learnt before the instance begins to use it.
    """

    launches: tuple[Launch, ...] = ()
    host_keys: Mapping[str, str] = field(default_factory=dict)

    def first_key(self, instance: str) -> str | None:
        """The host key of user data that the instance may still show."""
        for launch in self.launches:
            if instance in launch.instances:
                return launch.first_key
        return None


class Launches:
    """The file. Every change is written at once; safe to use from several threads."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "launches.json"
        self._lock = threading.Lock()
        self.known = self._read()

    def begin(self, nodes: tuple[str, ...], first_key: str, parameters: Mapping[str, Any]) -> Launch:
        """Remember a call that is about to be made, with a new ClientToken among its parameters."""
        token = f"clusterctl-{uuid.uuid4()}"  # at most 64 ASCII characters
        launch = Launch(token, nodes, first_key, {**parameters, "ClientToken": token})
        self._change(lambda known: replace(known, launches=(*known.launches, launch)))
        return launch

    def answered(self, launch: Launch, instances: tuple[str, ...]) -> None:
        # The parameters hold the throw-away private key: from here on nobody needs it.
        done = replace(launch, instances=instances, parameters={})
        self._change(
            lambda known: replace(
                known, launches=tuple(done if each.token == done.token else each for each in known.launches)
            )
        )

    def forget(self, launch: Launch) -> None:
        self._change(
            lambda known: replace(
                known, launches=tuple(each for each in known.launches if each.token != launch.token)
            )
        )

    def learn(self, instance: str, host_key: str) -> None:
        """The instance's own host key, before the instance uses it."""
        self._change(lambda known: replace(known, host_keys={**known.host_keys, instance: host_key}))

    def keep_only(self, instances: frozenset[str]) -> None:
        """Forget what is about instances that are gone; launches that have not answered stay."""
        self._change(lambda known: _only(known, instances))

    def _change(self, change: Any) -> None:
        with self._lock:
            after = change(self.known)
            if after != self.known:
                self.known = after
                replace_file(self._path, json.dumps(asdict(after)))

    def _read(self) -> Known:
        try:
            data = json.loads(self._path.read_text())
            launches = tuple(
                Launch(**{**each, "nodes": tuple(each["nodes"]), "instances": tuple(each["instances"])})
                for each in data["launches"]
            )
            return Known(launches, data["host_keys"])
        except FileNotFoundError:
            return Known()


def _only(known: Known, instances: frozenset[str]) -> Known:
    launches = tuple(
        each for each in known.launches if not each.instances or instances.intersection(each.instances)
    )
    return Known(launches, {key: value for key, value in known.host_keys.items() if key in instances})

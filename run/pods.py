"""What kubectl says of a job and its pods, as JSON -> facts. Pure.

Reasons are those of the kubelet and the scheduler (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NO_IMAGE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
NO_START = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Pod:
    """`phase` is Pending, Running, Succeeded, Failed or Unknown. `waiting` is why its container does not run,
    `message` says more; `exit_code` is that of its last end. `started` counts how often it began.
    """

    name: str
    phase: str
    node: str = ""
    waiting: str = ""
    message: str = ""
    exit_code: int | None = None
    reason: str = ""
    started: int = 0
    is_leaving: bool = False

    @property
    def has_ended(self) -> bool:
        return self.phase in FINISHED

    @property
    def cannot_start(self) -> bool:
        """Nothing will change by itself. ErrImagePull is the first try: the kubelet makes another."""
        return self.waiting in (*NO_IMAGE, *NO_START) and self.waiting != "ErrImagePull"

    def trouble(self) -> str:
        """Why it does not run, and what to do; empty where nothing is wrong."""
        if self.waiting in NO_IMAGE:
            return (
                f"pod {self.name}: its image cannot be pulled ({self.waiting}): {_short(self.message)}; push "
                "it where the nodes find it, and --set image=... and pull_secret=..."
            )
        if self.waiting in NO_START:
            return f"pod {self.name}: its container cannot start ({self.waiting}): {_short(self.message)}"
        if self.waiting == "Unschedulable":
            return (
                f"pod {self.name}: no node of the cluster takes it: {_short(self.message)}; ask for less "
                "(--set cpu=N, memory_gib=N), other nodes (node_selector) or fewer (--nodes)"
            )
        if self.reason == "OOMKilled":
            return (
                f"pod {self.name} on {self.node} took more memory than it may; give more: --set memory_gib=N"
            )
        if self.reason in ("Evicted", "Preempted", "NodeLost", "Shutdown"):
            return f"pod {self.name} on {self.node} was taken away ({self.reason}): {_short(self.message)}"
        if self.phase == "Failed":
            return f"pod {self.name} on {self.node} ended with exit code {self.exit_code}"
        return ""


@dataclass(frozen=True)
class JobState:
    """`condition` is the last true one's type: Created, Running, Restarting, Succeeded, Complete, Failed."""

    condition: str = ""
    message: str = ""

    @property
    def has_succeeded(self) -> bool:
        return self.condition in ("Succeeded", "Complete")

    @property
    def has_failed(self) -> bool:
        return self.condition == "Failed"


def parse_job(text: str) -> JobState:
    """The state in a job's JSON; an empty one while its operator has not looked at it."""
    conditions = json.loads(text).get("status", {}).get("conditions") or []
    true = [each for each in conditions if each.get("status") == "True"]
    for wanted in (("Succeeded", "Complete", "Failed"), ()):
        for each in reversed(true):
            if not wanted or each.get("type") in wanted:
                return JobState(str(each.get("type", "")), str(each.get("message", "")))
    return JobState()


def parse_pods(text: str) -> tuple[Pod, ...]:
    """The pods of a list in JSON, in the order of their numbers: worker-2 before worker-10."""
    pods = [_pod(item) for item in json.loads(text).get("items", [])]
    return tuple(sorted(pods, key=lambda pod: [int(part) for part in re.findall(r"\d+", pod.name)]))


def parse_warnings(text: str) -> tuple[str, ...]:
    """The messages of a list of events, the oldest first."""
    items: Sequence[Mapping[str, Any]] = json.loads(text).get("items", [])
    return tuple(f"{item.get('reason', '')}: {_short(item.get('message', ''))}" for item in items)


def _pod(item: Mapping[str, Any]) -> Pod:
    meta, status = item.get("metadata", {}), item.get("status", {})
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or []), {})
    state = container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated") or {}
    waiting, message = _waiting(status, state)
    return Pod(
        name=str(meta.get("name", "")),
        phase=str(status.get("phase", "Unknown")),
        node=str(item.get("spec", {}).get("nodeName", "")),
        waiting=waiting,
        message=message,
        exit_code=ended.get("exitCode"),
        reason=str(status.get("reason") or ended.get("reason") or ""),
        started=int(container.get("restartCount", 0)) + int("running" in state or "terminated" in state),
        is_leaving="deletionTimestamp" in meta,
    )


def _waiting(status: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, str]:
    """(reason, message) why a container does not run: the kubelet's word, or the scheduler's."""
    if "waiting" in state:
        return str(state["waiting"].get("reason", "")), str(state["waiting"].get("message", ""))
    for each in status.get("conditions") or []:
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return str(each.get("reason", "")), str(each.get("message", ""))
    return "", str(status.get("message", ""))


def _short(text: str, width: int = 200) -> str:
    flat = " ".join(str(text).split()).rstrip(".")
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"

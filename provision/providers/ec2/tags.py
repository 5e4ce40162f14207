"""Tags are the truth about what stands: everything that clusterctl makes carries them from its first moment.

    clusterctl:cluster   the cluster's name
    clusterctl:owner     who made it, as IAM knows them ("user/anna")
    clusterctl:made-at   when, "2026-11-21T14:03:10Z"
    clusterctl:ends-at   on instances: when they power off by themselves
    clusterctl:nodes     on instances: the names of the nodes of one launch, "node1,node3..5"; an instance
                         has the name at its AmiLaunchIndex, so one RunInstances call names any number
    clusterctl:stack     on images: the stack inside

A tag's value has at most 256 characters
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

CLUSTER = "clusterctl:cluster"
OWNER = "clusterctl:owner"
MADE_AT = "clusterctl:made-at"
ENDS_AT = "clusterctl:ends-at"
NODES = "clusterctl:nodes"
STACK = "clusterctl:stack"
VALUE_LIMIT = 256

_NUMBERED = re.compile(r"(.*?)(\d+)")
_RUN = re.compile(r"(.*?)(\d+)\.\.(\d+)")


def resource_name(cluster: str) -> str:
    """Name of the cluster's key pair, security group and placement group."""
    return f"clusterctl-{cluster}"


def specifications(tags: Mapping[str, str], *kinds: str) -> list[dict[str, Any]]:
    """TagSpecifications for the call that makes resources of these kinds."""
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]


def read(resource: Mapping[str, Any]) -> dict[str, str]:
    """Tags of a described resource."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags") or ()}


def of_cluster(name: str) -> list[dict[str, Any]]:
    """The Filters of a Describe call that find the cluster's resources."""
    return [{"Name": f"tag:{CLUSTER}", "Values": [name]}]


def encode_names(names: Iterable[str]) -> str:
    """
    >>> encode_names(["node1", "node3", "node4", "node5", "spare"])
    'node1,node3..5,spare'
    """
    runs: list[tuple[str, int, int] | str] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None or str(int(match[2])) != match[2]:
            runs.append(name)
            continue
        stem, number = match[1], int(match[2])
        last = runs[-1] if runs else ""
        if isinstance(last, tuple) and (last[0], last[2] + 1) == (stem, number):
            runs[-1] = (stem, last[1], number)
        else:
            runs.append((stem, number, number))
    return ",".join(run if isinstance(run, str) else _run_text(*run) for run in runs)


def _run_text(stem: str, first: int, last: int) -> str:
    return f"{stem}{first}" if first == last else f"{stem}{first}..{last}"


def decode_names(text: str) -> tuple[str, ...]:
    """
    >>> decode_names("node1,node3..5")
    ('node1', 'node3', 'node4', 'node5')
    """
    names: list[str] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if match:
            names += [f"{match[1]}{number}" for number in range(int(match[2]), int(match[3]) + 1)]
        elif part:
            names.append(part)
    return tuple(names)


def in_launches(names: Sequence[str]) -> list[tuple[str, ...]]:
    """The names in groups whose tag fits; one group for all that any real cluster is called.

    >>> in_launches(["node1", "node2"])
    [('node1', 'node2')]
    """
    groups: list[tuple[str, ...]] = [()]
    for name in names:
        if len(encode_names((*groups[-1], name))) > VALUE_LIMIT:
            groups.append(())
        groups[-1] += (name,)
    return [group for group in groups if group]


def moment(when_s: float) -> str:
    """
    >>> moment(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(when_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str | None) -> float | None:
    """Epoch seconds of a moment; None when there is none, or somebody wrote something else there."""
    try:
        return datetime.strptime(text or "", "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None

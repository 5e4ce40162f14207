"""Removing EC2 nodes and all that was made for them, in an order in which nothing can be left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from provision.errors import ProviderError
from provision.providers import Progress
from provision.providers.ec2 import tags
from provision.providers.ec2.account import Account, AwsError
from provision.providers.ec2.launch import wait_until_gone
from provision.providers.ec2.standing import Instance, Standing, look

# A network interface outlives its terminated instance for a moment, and keeps the group.
REFUSED_TIMEOUT_S = 300.0
REFUSED_PAUSE_S = 2.0
_STILL_USED = ("DependencyViolation", "InvalidGroup.InUse", "InvalidPlacementGroup.InUse")
_GONE = ("InvalidGroup.NotFound", "InvalidPlacementGroup.Unknown", "InvalidKeyPair.NotFound")


def end_instances(account: Account, instances: Sequence[Instance], progress: Progress) -> None:
    """Terminate them and wait until that is observed. Nothing to end is fine. Raises ProviderError."""
    if not instances:
        return
    live = [each for each in instances if each.live]
    if live:
        for each in live:
            progress(each.node, "terminating")
        account.ec2("terminate_instances", InstanceIds=[each.id for each in live])
    wait_until_gone(account, [each.id for each in instances])
    for each in instances:
        progress(each.node, "removed")


def take_down(account: Account, name: str, progress: Progress) -> None:
    """Everything that carries the cluster's tag, but images.

    The security group's deletion is the barrier: EC2 refuses it while an instance is in the group, also one
    that no Describe call shows yet; and a RunInstances that arrives after it fails.
    Raises ProviderError naming what is still there, and billed.
    """
    try:
        _take_down(account, name, progress)
    except ProviderError as error:
        raise ProviderError(f"{error}\n{_left(account, name)}") from error


def _take_down(account: Account, name: str, progress: Progress) -> None:
    deadline = time.monotonic() + REFUSED_TIMEOUT_S
    while True:
        standing = look(account, name)
        end_instances(account, standing.instances, progress)
        try:
            _delete_rest(account, standing)
            break
        except AwsError as error:
            if error.code not in _STILL_USED or time.monotonic() > deadline:
                raise
            time.sleep(REFUSED_PAUSE_S)
    _delete_volumes(account, name)


def _delete_rest(account: Account, standing: Standing) -> None:
    for group in standing.groups:
        _tolerating(lambda group=group: account.ec2("delete_security_group", GroupId=group.id))  # type: ignore[misc]
    for placement in standing.placements:
        _tolerating(lambda each=placement: account.ec2("delete_placement_group", GroupName=each.name))  # type: ignore[misc]
    for key in standing.keys:
        _tolerating(lambda key=key: account.ec2("delete_key_pair", KeyName=key.name))  # type: ignore[misc]


def _tolerating(delete: Callable[[], object]) -> None:
    """Gone already is as good."""
    try:
        delete()
    except AwsError as error:
        if error.code not in _GONE:
            raise


def _delete_volumes(account: Account, name: str) -> None:
    """Volumes go with their instances; one whose instance died at its start may be left."""
    filters = [*tags.of_cluster(name), {"Name": "status", "Values": ["available"]}]
    for volume in account.pages("describe_volumes", "Volumes", Filters=filters):
        account.ec2("delete_volume", VolumeId=volume["VolumeId"])


def _left(account: Account, name: str) -> str:
    """What still stands, for a person who may have to remove it by hand."""
    again = f"`clusterctl down --name {name} --region {account.region}` goes on from here"
    try:
        standing = look(account, name)
    except ProviderError:
        return f"what is still there, and billed, cannot be asked; {again}"
    billed = [f"{each.id} ({each.state})" for each in standing.instances]
    free = [each.id for each in (*standing.groups, *standing.placements, *standing.keys)]
    parts = [f"still billed: {', '.join(billed)}"] if billed else ["nothing is billed any more"]
    parts += [f"still there: {', '.join(free)}"] if free else []
    return f"{'; '.join(parts)}; {again}"

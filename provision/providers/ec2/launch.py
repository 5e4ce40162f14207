"""Starting instances: one RunInstances call for all that are missing, of one type, in one zone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.errors import ProviderError
from provision.providers import Progress
from provision.providers.ec2 import tags
from provision.providers.ec2.account import NO_CAPACITY, Account, AwsError
from provision.providers.ec2.images import Image
from provision.providers.ec2.launches import Launch, Launches
from provision.providers.ec2.network import Subnet
from provision.providers.ec2.settings import Ec2Settings
from provision.providers.ec2.standing import Instance, by_id
from provision.providers.ec2.types import type_named
from provision.providers.ec2.user_data import new_host_key, user_data

RUNNING_TIMEOUT_S = 600.0
# What was made a moment ago may not be known everywhere yet.
SETTLE_TIMEOUT_S = 60.0
_NOT_KNOWN_YET = ("InvalidGroup.NotFound", "InvalidKeyPair.NotFound", "InvalidPlacementGroup.Unknown")


@dataclass(frozen=True)
class Place:
    """A type and a subnet to try."""

    type: str
    subnet: Subnet


@dataclass(frozen=True)
class Order:
    """What all instances of a launch have in common."""

    cluster: str
    image: Image
    key_name: str
    group: str
    placement: str | None
    ends_at_s: float | None
    labels: Mapping[str, str]
    settings: Ec2Settings


def places(
    settings: Ec2Settings,
    subnets: Sequence[Subnet],
    zones: Mapping[str, frozenset[str]],
    standing: Sequence[Instance],
) -> tuple[Place, ...]:
    """What to try, in this order: the types as preferred, each in every zone that has it.

    Where nodes stand, only their own type and subnet: a cluster is in one zone, of one type.
    """
    if standing:
        there = standing[0]
        vpc = next((subnet.vpc for subnet in subnets if subnet.id == there.subnet), "")
        return (Place(there.type, Subnet(there.subnet, vpc, there.zone)),)
    return tuple(
        Place(name, subnet)
        for name in settings.instance_types
        for subnet in subnets
        if subnet.zone in zones.get(name, ())
    )


def run(
    account: Account,
    launches: Launches,
    order: Order,
    nodes: tuple[str, ...],
    tries: Sequence[Place],
    progress: Progress,
) -> tuple[str, ...]:
    """Ids of new instances for the nodes. Raises AwsError when there is no capacity in any place."""
    refused: list[str] = []
    for place in tries:
        for name in nodes:
            progress(name, f"launching {place.type} in {place.subnet.zone}")
        host_key = new_host_key()
        parameters = run_parameters(order, nodes, place, user_data(host_key, order.ends_at_s))
        launch = launches.begin(nodes, host_key.public, parameters)
        try:
            return call(account, launches, launch)
        except AwsError as error:
            if error.code not in NO_CAPACITY:
                raise
            refused.append(f"{place.type} in {place.subnet.zone}")
            progress(nodes[0], f"no capacity for {len(nodes)} x {refused[-1]} ({error.code})")
    raise ProviderError(
        f"no capacity for {len(nodes)} x {' nor '.join(refused)}; try again later, allow more types "
        "(instance_type: a list), another region, or fewer nodes"
    )


def call(account: Account, launches: Launches, launch: Launch) -> tuple[str, ...]:
    """The RunInstances call of a launch, made or made again; its instances' ids.

    A launch that AWS refuses is forgotten. Raises AwsError.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    for pause_s in _pauses():
        try:
            reply = account.ec2("run_instances", **launch.parameters)
            break
        except AwsError as error:
            if error.code in _NOT_KNOWN_YET and time.monotonic() < deadline:
                time.sleep(pause_s)
                continue
            launches.forget(launch)
            raise
    instances = tuple(each["InstanceId"] for each in reply["Instances"])
    launches.answered(launch, instances)
    return instances


def call_again(account: Account, launches: Launches, launch: Launch) -> tuple[str, ...]:
    """The instances of a call that was cut off; none where AWS does not take it any more, as when its
    security group has gone since."""
    try:
        return call(account, launches, launch)
    except AwsError:
        return ()


def run_parameters(order: Order, nodes: tuple[str, ...], place: Place, data: str) -> dict[str, Any]:
    """Parameters of RunInstances but the ClientToken.

    MinCount is MaxCount: a part of the nodes would be billed and could not train.
    """
    kind = type_named(place.type)
    labels = {**order.labels, tags.NODES: tags.encode_names(nodes)}
    if order.ends_at_s is not None:
        labels[tags.ENDS_AT] = tags.moment(order.ends_at_s)
    parameters: dict[str, Any] = {
        "ImageId": order.image.id,
        "InstanceType": place.type,
        "MinCount": len(nodes),
        "MaxCount": len(nodes),
        "KeyName": order.key_name,
        "SecurityGroupIds": [order.group],
        "SubnetId": place.subnet.id,
        "UserData": data,
        # The timer on the node powers it off; that must end the billing too.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": order.image.root_device,
                "Ebs": {
                    "VolumeType": "gp3",
                    "VolumeSize": max(order.settings.volume_gib, order.image.size_gib),
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
    }
    kinds = ["instance", "volume", "network-interface"]
    if order.placement:
        parameters["Placement"] = {"GroupName": order.placement}
    if kind.threads_per_core_settable:
        # One thread a core: matrix units are shared by a core's two threads, and layouts need not guess.
        parameters["CpuOptions"] = {"CoreCount": kind.cores, "ThreadsPerCore": 1}
    if order.settings.spot:
        # Spot with stop or hibernate is not allowed in a cluster placement group.
        parameters["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
        kinds.append("spot-instances-request")
    parameters["TagSpecifications"] = tags.specifications(labels, *kinds)
    return parameters


def wait_until_running(
    account: Account, ids: Sequence[str], timeout_s: float = RUNNING_TIMEOUT_S
) -> dict[str, Instance]:
    """The instances once each runs or has ended, or the time is over; the caller looks which.

    One call a poll, whatever the number of instances.
    """
    deadline = time.monotonic() + timeout_s
    for pause_s in _pauses():
        found = by_id(account, ids)
        settled = all(each in found and found[each].state not in ("pending", "stopped") for each in ids)
        if settled or time.monotonic() > deadline:
            return found
        time.sleep(pause_s)
    raise AssertionError("pauses never end")


def wait_until_gone(account: Account, ids: Sequence[str], timeout_s: float = RUNNING_TIMEOUT_S) -> None:
    """Returns when every instance is seen terminated, or is not seen any more.

    Raises ProviderError: they are still billed.
    """
    deadline = time.monotonic() + timeout_s
    for pause_s in _pauses():
        found = by_id(account, ids)
        left = [each for each in ids if each in found and found[each].state != "terminated"]
        if not left:
            return
        if time.monotonic() > deadline:
            raise ProviderError(
                f"{', '.join(left)}: not terminated after {timeout_s:.0f} s; run `clusterctl down` again"
            )
        time.sleep(pause_s)


def _pauses(first_s: float = 0.25, most_s: float = 5.0) -> Iterator[float]:
    """Seconds between looks: quick at first, for what is nearly done, then slower, for the API's limits."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(most_s, pause_s * 1.5)

"""What stands of a cluster, by its tags: one Describe call a type of resource, however many nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from provision.providers.ec2 import tags
from provision.providers.ec2.account import Account, AwsError, all_at_once

# A terminated instance stays visible for about an hour; it bills nothing and blocks nothing.
NOT_TERMINATED = ("pending", "running", "stopping", "stopped", "shutting-down")
LIVE = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Instance:
    """One EC2 instance of a cluster. Times are epoch seconds."""

    id: str
    node: str
    state: str
    type: str
    zone: str
    subnet: str
    private_address: str | None = None
    public_address: str | None = None
    launched_s: float = 0.0
    spot: bool = False
    ends_at_s: float | None = None
    owner: str = ""
    cluster: str = ""
    why: str = ""

    @property
    def address(self) -> str | None:
        """Where the operator reaches it: its public address, or, without one, through a VPN or a peering."""
        return self.public_address or self.private_address

    @property
    def live(self) -> bool:
        return self.state in LIVE


@dataclass(frozen=True)
class Resource:
    """A key pair, security group or placement group: its id, its name and what it was described as."""

    id: str
    name: str
    tags: Mapping[str, str]
    described: Mapping[str, Any]


@dataclass(frozen=True)
class Standing:
    """All that carries a cluster's tag, but images."""

    instances: tuple[Instance, ...] = ()
    keys: tuple[Resource, ...] = ()
    groups: tuple[Resource, ...] = ()
    placements: tuple[Resource, ...] = ()

    @property
    def live(self) -> tuple[Instance, ...]:
        return tuple(instance for instance in self.instances if instance.live)

    @property
    def by_node(self) -> dict[str, Instance]:
        """The live instance of each node; of two with one name, the older."""
        found: dict[str, Instance] = {}
        for instance in sorted(self.live, key=lambda each: (each.launched_s, each.id)):
            found.setdefault(instance.node, instance)
        return found

    @property
    def surplus(self) -> tuple[Instance, ...]:
        """Live instances whose node another one is: two `up` at once, from two machines, can do that."""
        chosen = {instance.id for instance in self.by_node.values()}
        return tuple(instance for instance in self.live if instance.id not in chosen)

    @property
    def ends_at_s(self) -> float | None:
        """When the first of its instances ends by itself."""
        times = [each.ends_at_s for each in self.live if each.ends_at_s is not None]
        return min(times) if times else None

    @property
    def nothing(self) -> bool:
        return not (self.instances or self.keys or self.groups or self.placements)


def look(account: Account, name: str) -> Standing:
    """What stands of one cluster. Four calls."""
    return _look(account, tags.of_cluster(name))


def look_at_all(account: Account) -> dict[str, Standing]:
    """What stands of every cluster of the region, by name. Four calls."""
    everything = _look(account, [{"Name": "tag-key", "Values": [tags.CLUSTER]}])
    names = {each.cluster for each in everything.instances}
    for kind in (everything.keys, everything.groups, everything.placements):
        names |= {resource.tags[tags.CLUSTER] for resource in kind}
    return {name: _part(everything, name) for name in sorted(names)}


def _part(everything: Standing, name: str) -> Standing:
    def mine(resources: Iterable[Resource]) -> tuple[Resource, ...]:
        return tuple(each for each in resources if each.tags[tags.CLUSTER] == name)

    return Standing(
        tuple(each for each in everything.instances if each.cluster == name),
        mine(everything.keys),
        mine(everything.groups),
        mine(everything.placements),
    )


def _look(account: Account, filters: list[dict[str, Any]]) -> Standing:
    states = {"Name": "instance-state-name", "Values": list(NOT_TERMINATED)}
    found = all_at_once(
        {
            "instances": lambda: account.pages(
                "describe_instances", "Reservations", Filters=[*filters, states]
            ),
            "keys": lambda: account.ec2("describe_key_pairs", Filters=filters, IncludePublicKey=True),
            "groups": lambda: account.pages("describe_security_groups", "SecurityGroups", Filters=filters),
            "placements": lambda: account.ec2("describe_placement_groups", Filters=filters),
        }
    )
    return Standing(
        instances_of(found["instances"]),
        _resources(found["keys"]["KeyPairs"], "KeyPairId", "KeyName"),
        _resources(found["groups"], "GroupId", "GroupName"),
        _resources(found["placements"]["PlacementGroups"], "GroupId", "GroupName"),
    )


def by_id(account: Account, ids: Iterable[str]) -> dict[str, Instance]:
    """Instances by id, terminated ones too; those that EC2 does not know yet are left out.

    Right after RunInstances an id may be unknown for seconds
    (https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html).
    """
    wanted = list(ids)
    # A filter, where InstanceIds would fail as a whole for one id that is not known yet.
    filters = [{"Name": "instance-id", "Values": wanted}]
    try:
        reservations = account.pages("describe_instances", "Reservations", Filters=filters)
    except AwsError as error:
        if error.code != "InvalidInstanceID.NotFound":
            raise
        reservations = []
    return {instance.id: instance for instance in instances_of(reservations)}


def instances_of(reservations: Iterable[Mapping[str, Any]]) -> tuple[Instance, ...]:
    """Instances of described reservations that carry a cluster's tag."""
    described = [each for reservation in reservations for each in reservation["Instances"]]
    return tuple(_instance(each) for each in described if tags.CLUSTER in tags.read(each))


def _instance(described: Mapping[str, Any]) -> Instance:
    own = tags.read(described)
    names, index = tags.decode_names(own.get(tags.NODES, "")), int(described.get("AmiLaunchIndex", 0))
    launched = described.get("LaunchTime")
    return Instance(
        id=described["InstanceId"],
        node=names[index] if index < len(names) else described["InstanceId"],
        state=described["State"]["Name"],
        type=described["InstanceType"],
        zone=described["Placement"]["AvailabilityZone"],
        subnet=described.get("SubnetId", ""),
        private_address=described.get("PrivateIpAddress") or None,
        public_address=described.get("PublicIpAddress") or None,
        launched_s=launched.timestamp() if launched else 0.0,
        spot=described.get("InstanceLifecycle") == "spot",
        ends_at_s=tags.seconds_of(own.get(tags.ENDS_AT)),
        owner=own.get(tags.OWNER, ""),
        cluster=own[tags.CLUSTER],
        why=(described.get("StateReason") or {}).get("Message", ""),
    )


def _resources(described: Iterable[Mapping[str, Any]], id_key: str, name_key: str) -> tuple[Resource, ...]:
    return tuple(Resource(each[id_key], each[name_key], tags.read(each), each) for each in described)

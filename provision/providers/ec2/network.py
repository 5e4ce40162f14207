"""Where nodes are put and who reaches them: subnets, the key pair, the security group, the placement group.

Each is found by its tag, made when it is missing, and made right when it differs.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from provision.errors import ProviderError, SettingsError
from provision.providers.ec2 import tags
from provision.providers.ec2.account import Account, AwsError
from provision.providers.ec2.settings import Ec2Settings
from provision.providers.ec2.standing import Resource, Standing

SSH_PORT = 22
ADDRESS_TIMEOUT_S = 10.0

# The tags of what is made; asked for only then, since it costs a call to AWS.
Labels = Callable[[], Mapping[str, str]]


@dataclass(frozen=True)
class Subnet:
    """A subnet that nodes can be put into."""

    id: str
    vpc: str
    zone: str


def find_subnets(account: Account, settings: Ec2Settings) -> tuple[Subnet, ...]:
    """The subnets that the settings allow, those of the default VPC where they name none.

    Raises ProviderError when there are none. One call.
    """
    if settings.subnet:
        found = account.ec2("describe_subnets", SubnetIds=[settings.subnet])["Subnets"]
    else:
        name, value = ("vpc-id", settings.vpc) if settings.vpc else ("default-for-az", "true")
        found = account.pages("describe_subnets", "Subnets", Filters=[{"Name": name, "Values": [value]}])
    if not found:
        where = f"VPC {settings.vpc} has no subnet" if settings.vpc else "there is no default VPC"
        raise ProviderError(
            f"{where} in {account.region}: name a subnet (`subnet:` in the inventory), "
            "or make one with `aws ec2 create-default-vpc`"
        )
    return tuple(Subnet(each["SubnetId"], each["VpcId"], each["AvailabilityZone"]) for each in found)


def zones_by_type(account: Account, types: Sequence[str]) -> dict[str, frozenset[str]]:
    """The availability zones of the region that have each type at all. One call.

    Raises ProviderError when no zone has any of them.
    """
    offers = account.pages(
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": list(types)}],
    )
    zones = {
        name: frozenset(each["Location"] for each in offers if each["InstanceType"] == name) for name in types
    }
    if not any(zones.values()):
        raise ProviderError(
            f"region {account.region} has no {' or '.join(types)}; choose another region or type"
        )
    return zones


def allowed_cidrs(settings: Ec2Settings) -> tuple[str, ...]:
    """Who may reach port 22: `ssh_from`, else this machine's own public address alone."""
    return settings.ssh_from or (f"{public_address(settings.address_service)}/32",)


def public_address(service: str) -> str:
    """This machine's address as the internet sees it. Raises ProviderError."""
    if not service.startswith(("http://", "https://")):
        raise SettingsError(f"address_service: {service!r} is no http address")
    try:
        with urllib.request.urlopen(service, timeout=ADDRESS_TIMEOUT_S) as reply:  # noqa: S310
            return str(IPv4Address(reply.read(64).decode().strip()))
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ProviderError(
            f"{service} does not tell this machine's public address ({error}): "
            "name it in the inventory, ssh_from: [203.0.113.7/32]"
        ) from None


def ensure_key(account: Account, standing: Standing, name: str, public_key: str, labels: Labels) -> str:
    """The key pair's name; one that was made with another key is made anew (nodes keep theirs)."""
    wanted = tags.resource_name(name)
    for key in standing.keys:
        if key_of(key) == material(public_key):
            return key.name
        account.ec2("delete_key_pair", KeyName=key.name)
    account.ec2(
        "import_key_pair",
        KeyName=wanted,
        PublicKeyMaterial=public_key.encode(),
        TagSpecifications=tags.specifications(labels(), "key-pair"),
    )
    return wanted


def key_of(key: Resource) -> str:
    """Type and key, without the comment, as the key pair was imported."""
    return material(str(key.described.get("PublicKey", "")))


def material(public_key: str) -> str:
    return " ".join(public_key.split()[:2])


def ensure_group(
    account: Account,
    standing: Standing,
    name: str,
    vpc: str,
    cidrs: Sequence[str],
    labels: Labels,
) -> str:
    """Id of the security group: port 22 from these addresses alone, everything inside the group."""
    if standing.groups:
        group = standing.groups[0].id
        present = standing.groups[0].described.get("IpPermissions", [])
    else:
        group = account.ec2(
            "create_security_group",
            GroupName=tags.resource_name(name),
            Description=f"clusterctl: nodes of {name}",
            VpcId=vpc,
            TagSpecifications=tags.specifications(labels(), "security-group"),
        )["GroupId"]
        present = []
    wanted = wanted_permissions(group, cidrs)
    missing = [each for each in wanted if each not in map(_plain, present)]
    extra = [each for each in map(_plain, present) if each not in wanted]
    if missing:
        _authorize(account, group, missing)
    if extra:
        account.ec2("revoke_security_group_ingress", GroupId=group, IpPermissions=extra)
    return group


def wanted_permissions(group: str, cidrs: Sequence[str]) -> list[dict[str, Any]]:
    """Ingress of the group. Egress is open, as EC2 makes it."""
    return [
        {
            "IpProtocol": "tcp",
            "FromPort": SSH_PORT,
            "ToPort": SSH_PORT,
            "IpRanges": [{"CidrIp": cidr} for cidr in sorted(cidrs)],
        },
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
    ]


def _plain(described: Mapping[str, Any]) -> dict[str, Any]:
    """A described permission as it would be wanted: no descriptions, owners and empty lists."""
    plain: dict[str, Any] = {"IpProtocol": described["IpProtocol"]}
    if described["IpProtocol"] != "-1":
        plain |= {"FromPort": described.get("FromPort"), "ToPort": described.get("ToPort")}
    if described.get("IpRanges"):
        plain["IpRanges"] = [{"CidrIp": cidr} for cidr in sorted(r["CidrIp"] for r in described["IpRanges"])]
    if described.get("UserIdGroupPairs"):
        plain["UserIdGroupPairs"] = [{"GroupId": pair["GroupId"]} for pair in described["UserIdGroupPairs"]]
    for key, id_key in (("Ipv6Ranges", "CidrIpv6"), ("PrefixListIds", "PrefixListId")):
        if described.get(key):
            plain[key] = [{id_key: each[id_key]} for each in described[key]]
    return plain


def _authorize(account: Account, group: str, permissions: Sequence[Mapping[str, Any]]) -> None:
    try:
        account.ec2("authorize_security_group_ingress", GroupId=group, IpPermissions=list(permissions))
    except AwsError as error:
        if error.code != "InvalidPermission.Duplicate":  # another `up` was quicker
            raise


def ensure_placement(account: Account, standing: Standing, name: str, labels: Labels) -> str:
    """Name of the cluster placement group."""
    if standing.placements:
        return standing.placements[0].name
    account.ec2(
        "create_placement_group",
        GroupName=tags.resource_name(name),
        Strategy="cluster",
        TagSpecifications=tags.specifications(labels(), "placement-group"),
    )
    return tags.resource_name(name)

"""What an inventory can say of EC2 nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from provision.errors import SettingsError
from provision.providers.ec2.types import type_named

ADDRESS_SERVICE = "https://checkip.amazonaws.com"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(m|h|d)")
_SECONDS = {"m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Ec2Settings:
    """One block of the inventory. Everything has a default; the credentials are boto3's own business.

    region: an AWS region; without one boto3's own chain decides (AWS_DEFAULT_REGION, the profile).
    profile: a profile of ~/.aws/config.
    instance_type: a type with AMX, or a list in the order of preference: the next one is tried where there
        is no capacity. All nodes of a cluster have the same.
    image: "ami-...", the name of an image (* and ? match, the newest wins), or a public SSM parameter
        ("/aws/service/..."). Without one: the newest image baked by `up --bake` with the same stack,
        else the newest Ubuntu 24.04.
    user: the image's login name.
    spot: spot instances, ended by AWS with two minutes' notice, at a fraction of the price.
    vpc, subnet: where nodes are put; the default VPC, any of its availability zones, without.
    volume_gib: size of the encrypted gp3 root volume.
    placement_group: nodes close together, for the network (one availability zone, as always here).
    ttl: "90m", "24h", "3d" or "none": after so long the nodes end by themselves, unless `clusterctl extend`
        was asked in time. A forgotten cluster bills no longer than this.
    ssh_from: CIDRs that may reach port 22; without any, this machine's own address alone.
    address_service: who tells this machine's public address, as one line of text.
    tags: more tags for everything that is made.
    boot_timeout_s: from running to an sshd that answers. Metal instances take many minutes.
    """

    region: str | None = None
    profile: str | None = None
    instance_type: str | tuple[str, ...] = "m7i.4xlarge"
    image: str | None = None
    user: str = "ubuntu"
    spot: bool = False
    vpc: str | None = None
    subnet: str | None = None
    volume_gib: int = 100
    placement_group: bool = True
    ttl: str = "24h"
    ssh_from: tuple[str, ...] = ()
    address_service: str = ADDRESS_SERVICE
    tags: Mapping[str, str] = field(default_factory=dict)
    boot_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("instance_type", "ssh_from"):  # lists, as YAML gives them
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(map(str, getattr(self, name))))
        for name in self.instance_types:
            type_named(name)
        ttl_seconds(self.ttl)
        for text in self.ssh_from:
            _check_cidr(text)
        if self.volume_gib < 8:
            raise SettingsError(f"volume_gib must be at least 8, not {self.volume_gib}")
        for key, value in self.tags.items():
            if key.startswith(("aws:", "clusterctl:")) or not isinstance(value, str):
                raise SettingsError(
                    f"tag {key!r}: not one of aws: or clusterctl:, and its value a text in quotes"
                )

    @property
    def instance_types(self) -> tuple[str, ...]:
        return (self.instance_type,) if isinstance(self.instance_type, str) else self.instance_type

    @property
    def together(self) -> bool:
        """Whether there is a placement group; flex types cannot be in one."""
        return self.placement_group and not any(type_named(name).flex for name in self.instance_types)

    @property
    def boot_limit_s(self) -> float:
        """Nitro virtual machines answer within a minute; metal ones test their memory first."""
        if self.boot_timeout_s is not None:
            return self.boot_timeout_s
        return 1800.0 if any(type_named(name).metal for name in self.instance_types) else 300.0


def ttl_seconds(text: str) -> float | None:
    """Seconds of "90m", "24h" or "3d"; None for "none". Raises SettingsError.

    >>> ttl_seconds("1.5h")
    5400.0
    """
    if text == "none":
        return None
    match = _DURATION.fullmatch(text)
    if not match or float(match[1]) <= 0:
        raise SettingsError(f"ttl {text!r} is no time such as 90m, 24h or 3d, nor none")
    return float(match[1]) * _SECONDS[match[2]]


def _check_cidr(text: str) -> None:
    try:
        IPv4Network(text)
    except ValueError as error:
        raise SettingsError(f"ssh_from: {error}; for one address write it as 203.0.113.7/32") from None

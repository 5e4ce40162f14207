"""What there is to be had: two regions side by side, their networks, one image, addresses.

The addresses of both regions differ, as they share one router.
"""

from __future__ import annotations

import itertools
import sys
import zlib
from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter, ssm_backends

from tests.ec2sim.api.cloud import Cloud, backends, refuse, replaces_action
from tests.ec2sim.firewall import PRIVATE, PUBLIC
from tests.ec2sim.settings import ACCOUNT, REGIONS

CANONICAL = "099720109477"
UBUNTU_PARAMETER = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
UBUNTU_NAME = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260101 (simulated)"
# Half of the default network for each region; a zone's subnet is a /20 as on EC2.
SUBNETS = dict(zip(REGIONS, IPv4Network(PRIVATE).subnets(new_prefix=17), strict=True))


def install(cloud: Cloud) -> None:
    _install_public_addresses()
    for region in REGIONS:
        backend = ec2_backends[ACCOUNT][region]
        _move_subnets(backend)
        _add_ubuntu(backend)

    @replaces_action("describe_regions")
    def describe_regions(original: Any, response: Any) -> ActionResult:
        for name in response._get_param("RegionNames", []):
            if name not in REGIONS:
                raise refuse("InvalidParameterValue", f"Invalid region name: {name}")
        result: Any = original(response)
        result.result["Regions"] = [one for one in result.result["Regions"] if one.name in REGIONS]
        return ActionResult(result.result)


def gateways() -> list[str]:
    """The router's address in each subnet: its first, as on EC2."""
    return [
        str(subnet.cidr[1])
        for region in REGIONS
        for zone in ec2_backends[ACCOUNT][region].subnets.values()
        for subnet in zone.values()
    ]


def _move_subnets(backend: Any) -> None:
    blocks = SUBNETS[backend.region_name].subnets(new_prefix=20)
    backend.subnets.clear()
    for zone in backend.describe_availability_zones():
        backend.create_subnet(backend.default_vpc.id, str(next(blocks)), availability_zone=zone.name)


def _add_ubuntu(backend: Any) -> None:
    image_id = f"ami-0{zlib.crc32(backend.region_name.encode()):08x}5ec25111"
    image = Ami(
        backend,
        image_id,
        name=UBUNTU_NAME,
        description="This machine's own system, simulated as Canonical, Ubuntu, 24.04, amd64 noble image",
        owner_id=CANONICAL,
        owner_alias="amazon",
        public=True,
        virtualization_type="hvm",
        architecture="x86_64",
        hypervisor="xen",
        root_device_type="ebs",
        root_device_name="/dev/sda1",
        region_name=f"{backend.region_name}a",
    )
    image.ebs_snapshot.volume.size = 8
    backend.amis[image_id] = image
    parameters = ssm_backends[ACCOUNT][backend.region_name]._parameters
    parameters[UBUNTU_PARAMETER].append(
        Parameter(
            ACCOUNT, UBUNTU_PARAMETER, image_id, "String", None, None, None, utcnow(), 1, "aws:ec2:image"
        )
    )


def _install_public_addresses() -> None:
    """One after the other of a documentation range, so that one that was given back is not soon another's."""
    pool = itertools.cycle([str(address) for address in list(IPv4Network(PUBLIC))[10:250]])

    def free() -> str:
        used = set(_public_addresses_in_use())
        return next(address for address in pool if address not in used)

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("moto.ec2") and hasattr(module, "random_public_ip"):
            module.random_public_ip = free  # type: ignore[attr-defined]


def _public_addresses_in_use() -> Iterator[str]:
    for backend in backends():
        yield from (interface.public_ip for interface in backend.enis.values() if interface.public_ip)
        yield from (address.public_ip for address in backend.addresses)

"""RunInstances: idempotent by its token, MaxCount instances, in a subnet, pending at first.

moto launches MinCount, at once, ignores the token, and gives an instance without a subnet an address of
10/8. https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from tests.ec2sim.api.cloud import Cloud, refuse, replaces_action, tags_for
from tests.ec2sim.api.placement_groups import check_group
from tests.ec2sim.api.spot import SpotRequest


class Launched(NamedTuple):
    asked: str
    reservation: Any


def install(cloud: Cloud) -> None:
    launched: dict[tuple[str, str], Launched] = {}

    @replaces_action("run_instances")
    def run_instances(original: Any, response: Any) -> ActionResult:
        token = (response.region, response._get_param("ClientToken") or "")
        asked = json.dumps(response.params, sort_keys=True, default=str)
        if token in launched:
            return ActionResult(_again(launched[token], asked))
        complete(response)
        check(response)
        result: ActionResult = original(response)
        for instance in result.result.instances:  # type: ignore[attr-defined]
            adopt(response, instance)
            cloud.fleet.launch(instance, response.region)
        if token[1]:
            launched[token] = Launched(asked, result.result)
        return result


def _again(before: Launched, asked: str) -> Any:
    if before.asked != asked:
        raise refuse(
            "IdempotentParameterMismatch",
            "Arguments on this idempotent request are inconsistent with arguments used in previous "
            "request(s).",
        )
    return before.reservation


def complete(response: Any) -> None:
    """Write into the request what AWS takes for granted."""
    parameters, backend = response.params, response.ec2_backend
    parameters["MinCount"] = parameters.get("MaxCount", 1)
    zone = parameters.get("Placement", {}).get("AvailabilityZone")
    subnets = {subnet.availability_zone: subnet.id for subnet in backend.get_default_subnets().values()}
    default = subnets.get(zone or min(subnets)) if subnets else None
    interfaces = parameters.get("NetworkInterfaces", [])
    if not interfaces:
        parameters.setdefault("SubnetId", default)
    for interface in interfaces:
        if "NetworkInterfaceId" not in interface:
            interface.setdefault("SubnetId", default)
    image = backend.amis.get(parameters.get("ImageId"))
    _complete_disks(parameters, image.root_device_name if image else "/dev/sda1")


def _complete_disks(parameters: dict[str, Any], root: str) -> None:
    """The image's root volume is always there, and goes with its instance unless told otherwise."""
    disks = parameters.setdefault("BlockDeviceMappings", [])
    if root not in [disk.get("DeviceName") for disk in disks]:
        disks.insert(0, {"DeviceName": root, "Ebs": {"VolumeType": "gp3"}})
    for disk in disks:
        if "Ebs" in disk and disk["DeviceName"] == root:
            disk["Ebs"].setdefault("VolumeSize", 8)
            disk["Ebs"].setdefault("DeleteOnTermination", True)


def check(response: Any) -> None:
    """What AWS refuses and moto lets pass."""
    backend, get = response.ec2_backend, response._get_param
    image = backend.amis.get(get("ImageId"))
    if image is None:
        raise refuse("InvalidAMIID.NotFound", f"The image id '[{get('ImageId')}]' does not exist")
    if image.state != "available":
        raise refuse("InvalidAMIID.Unavailable", f"The image ID '{image.id}' is in state {image.state}")
    if get("KeyName") and get("KeyName") not in backend.key_pairs:
        raise refuse("InvalidKeyPair.NotFound", f"The key pair '{get('KeyName')}' does not exist")
    groups = [*get("SecurityGroupIds", []), *_of_interfaces(response, "Groups")]
    for group in groups:
        if backend.get_security_group_from_id(group) is None:
            raise refuse("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
    check_group(backend, get("Placement.GroupName"))
    _check_type(response, get("InstanceType") or "m1.small")


def _check_type(response: Any, name: str) -> None:
    if name not in INSTANCE_TYPES:
        raise refuse("InvalidParameterValue", f"Invalid value '{name}' for InstanceType.")
    subnets = [response._get_param("SubnetId"), *_of_interfaces(response, "SubnetId")]
    for subnet_id in filter(None, subnets):
        zone = response.ec2_backend.get_subnet(subnet_id).availability_zone
        offers = INSTANCE_TYPE_OFFERINGS["availability-zone"][response.region]
        if not any(offer["InstanceType"] == name and offer["Location"] == zone for offer in offers):
            raise refuse(
                "Unsupported",
                f"Your requested instance type ({name}) is not supported in your requested "
                f"Availability Zone ({zone}).",
            )


def _of_interfaces(response: Any, name: str) -> list[Any]:
    found: list[Any] = []
    for interface in response._get_param("NetworkInterfaces", []):
        value = interface.get(name)
        found += value if isinstance(value, list) else [value] if value else []
    return found


def adopt(response: Any, instance: Any) -> None:
    """What moto drops of the request."""
    backend, get = response.ec2_backend, response._get_param
    instance._placement.group_name = get("Placement.GroupName") or ""
    instance._placement.tenancy = get("Placement.Tenancy") or "default"
    instance.cpu_options = _cpu_options(instance.instance_type, get("CpuOptions") or {})
    pair = backend.key_pairs.get(instance.key_name)
    instance.simulated_public_key = pair.public_key if pair else ""
    instance.hypervisor, instance.ena_support = "xen", True  # "xen" is what EC2 says of Nitro, too
    _adopt_interfaces(response, instance)
    if get("InstanceMarketOptions.MarketType") == "spot":
        request = SpotRequest(backend, instance, get("InstanceMarketOptions.SpotOptions") or {})
        request.add_tags(tags_for(response, "spot-instances-request"))
        backend.spot_instance_requests[request.id] = request
        instance.spot_instance_request_id = request.id
        instance.lifecycle = "spot"


def _adopt_interfaces(response: Any, instance: Any) -> None:
    asked = {int(one.get("DeviceIndex", 0)): one for one in response._get_param("NetworkInterfaces", [])}
    for index, interface in instance.nics.items():
        wish = asked.get(index, {})
        if "NetworkInterfaceId" not in wish:
            interface.delete_on_termination = wish.get("DeleteOnTermination", True)
            interface.add_tags(tags_for(response, "network-interface"))
        interface.interface_type = wish.get("InterfaceType", "interface")
    instance.security_groups = list(instance.nics[0].group_set)


def _cpu_options(instance_type: str, asked: dict[str, Any]) -> dict[str, int]:
    default = INSTANCE_TYPES[instance_type]["VCpuInfo"]
    return {
        "CoreCount": int(asked.get("CoreCount", default.get("DefaultCores", 1))),
        "ThreadsPerCore": int(asked.get("ThreadsPerCore", default.get("DefaultThreadsPerCore", 1))),
    }

"""Own images: baked from a host's disk, which takes a while. moto's are ready at once and cannot have
tags on their snapshot."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.amis import Ami

from tests.ec2sim.api.cloud import Cloud, refuse, replaces_action, tags_for
from tests.ec2sim.settings import ACCOUNT


def install(cloud: Cloud) -> None:
    @replaces_action("create_image")
    def create(_: Any, response: Any) -> ActionResult:
        response.error_on_dryrun()
        backend, get = response.ec2_backend, response._get_param
        instance = backend.get_instance(get("InstanceId"))
        _check(backend, instance, get("Name"))
        image = backend.create_image(instance.id, get("Name"), get("Description", ""), tag_specifications=[])
        image.root_device_type = "ebs"
        image.add_tags(tags_for(response, "image"))
        snapshot = image.ebs_snapshot
        snapshot.add_tags(tags_for(response, "snapshot"))
        snapshot.volume.size = _root_size(backend, instance)
        image.state = snapshot.status = "pending"

        def baked() -> None:
            image.state, snapshot.status = "available", "completed"

        cloud.fleet.bake(instance, image.id, not get("NoReboot", False), baked)
        return ActionResult({"ImageId": image.id})

    @replaces_action("deregister_image")
    def deregister(original: Any, response: Any) -> ActionResult:
        result: ActionResult = original(response)
        cloud.fleet.images.forget(response._get_param("ImageId"))
        return result

    @replaces_action("describe_snapshots")
    def snapshots(original: Any, response: Any) -> Any:
        """moto does not look at OwnerIds."""
        result = original(response)
        owners = [ACCOUNT if name == "self" else name for name in response._get_param("OwnerIds", [])]
        if owners:
            found = result.result["Snapshots"]
            result.result["Snapshots"] = [one for one in found if one.owner_id in owners]
        return result

    Ami.block_device_mappings = property(_disks)  # type: ignore[assignment]


def _check(backend: Any, instance: Any, name: str) -> None:
    if any(image.name == name and image.owner_id == backend.account_id for image in backend.amis.values()):
        raise refuse("InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI")
    if instance._state.name not in ("running", "stopped"):
        raise refuse("IncorrectState", f"Instance '{instance.id}' is not 'running' or 'stopped'.")


def _root_size(backend: Any, instance: Any) -> int:
    device = instance.block_device_mapping.get(instance.root_device_name)
    return int(backend.get_volume(device.volume_id).size) if device else 8


def _disks(image: Any) -> list[dict[str, Any]]:
    snapshot = image.ebs_snapshot
    disk = {"SnapshotId": snapshot.id, "VolumeSize": snapshot.volume.size, "VolumeType": "gp3",
            "DeleteOnTermination": True, "Encrypted": snapshot.encrypted}  # fmt: skip
    return [{"DeviceName": image.root_device_name, "Ebs": disk}]

"""Images: which one nodes start from, and those that `up --bake` made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.errors import ProviderError
from provision.providers.ec2 import tags
from provision.providers.ec2.account import Account

# https://documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images/
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
CANONICAL = "099720109477"


@dataclass(frozen=True)
class Image:
    """A machine image. `stack` is what `up --bake` put into it, `snapshots` what it costs storage for."""

    id: str
    name: str
    root_device: str
    state: str = "available"
    made_at: str = ""
    stack: str = ""
    cluster: str = ""
    size_gib: int = 0
    snapshots: tuple[str, ...] = ()


def choose(account: Account, wanted: str | None, stack: str) -> Image:
    """The image for new nodes (see Ec2Settings.image). Raises ProviderError. Two calls at most."""
    if wanted is None:
        ready = _with_stack(account, stack)
        return ready[-1] if ready else _by_id(account, _parameter(account, UBUNTU))
    if wanted.startswith("/"):
        return _by_id(account, _parameter(account, wanted))
    if wanted.startswith("ami-"):
        return _by_id(account, wanted)
    return _by_name(account, wanted)


def name_of_baked(account: Account, stack: str) -> str | None:
    """The image with that stack that new nodes would start from."""
    ready = _with_stack(account, stack)
    return ready[-1].name if ready else None


def _with_stack(account: Account, stack: str) -> list[Image]:
    return [image for image in baked(account) if image.stack == stack and image.state == "available"]


def baked(account: Account) -> tuple[Image, ...]:
    """Images that `up --bake` made in this region, the oldest first. One call."""
    filters = [{"Name": "tag-key", "Values": [tags.STACK]}]
    found = account.pages("describe_images", "Images", Owners=["self"], Filters=filters)
    return tuple(sorted(map(image_of, found), key=lambda image: image.made_at))


def image_of(described: Mapping[str, Any]) -> Image:
    disks = [each["Ebs"] for each in described.get("BlockDeviceMappings", ()) if "Ebs" in each]
    own = tags.read(described)
    return Image(
        id=described["ImageId"],
        name=described.get("Name", ""),
        root_device=described.get("RootDeviceName") or "/dev/sda1",
        state=described.get("State", "available"),
        made_at=own.get(tags.MADE_AT) or described.get("CreationDate", ""),
        stack=own.get(tags.STACK, ""),
        cluster=own.get(tags.CLUSTER, ""),
        size_gib=sum(disk.get("VolumeSize") or 0 for disk in disks),
        snapshots=tuple(disk["SnapshotId"] for disk in disks if disk.get("SnapshotId")),
    )


def make(account: Account, instance: str, name: str, labels: Mapping[str, str]) -> str:
    """Begin an image of an instance, which is rebooted for it; returns its id. See `state`.

    Not with NoReboot: a file system in use could be half written
    (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateImage.html).
    """
    made = account.ec2(
        "create_image",
        InstanceId=instance,
        Name=name,
        Description="clusterctl: a node with its training stack",
        TagSpecifications=tags.specifications(labels, "image", "snapshot"),
    )
    return str(made["ImageId"])


def delete(account: Account, image: Image) -> None:
    """Deregister it and delete its snapshots, which is what bills."""
    account.ec2("deregister_image", ImageId=image.id)
    for snapshot in image.snapshots:
        account.ec2("delete_snapshot", SnapshotId=snapshot)


def _parameter(account: Account, name: str) -> str:
    return str(account.call("ssm", "get_parameter", Name=name)["Parameter"]["Value"])


def _by_id(account: Account, image_id: str) -> Image:
    found = account.ec2("describe_images", ImageIds=[image_id])["Images"]
    if not found:
        raise ProviderError(f"there is no image {image_id} in {account.region}")
    return image_of(found[0])


def _by_name(account: Account, name: str) -> Image:
    found = account.pages(
        "describe_images",
        "Images",
        Owners=["self", "amazon", CANONICAL],
        Filters=[
            {"Name": "name", "Values": [name]},
            {"Name": "state", "Values": ["available"]},
            {"Name": "architecture", "Values": ["x86_64"]},
        ],
    )
    if not found:
        raise ProviderError(
            f"no image in {account.region} is called {name!r} (looked among yours, Amazon's and Canonical's)"
        )
    return image_of(max(found, key=lambda each: str(each.get("CreationDate", ""))))


def state_of(account: Account, image_id: str) -> str:
    """ "pending", "available", "failed" ...; "unknown" where it is not seen yet."""
    found = account.ec2(
        "describe_images", Owners=["self"], Filters=[{"Name": "image-id", "Values": [image_id]}]
    )
    return str(found["Images"][0]["State"]) if found["Images"] else "unknown"

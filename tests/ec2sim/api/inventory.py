"""Everything that would cost money or be in the way, straight from moto's books, by type.

Not by tags: what was made without a tag counts too, and moto lists tags of what is long deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.ec2sim.api.cloud import backends
from tests.ec2sim.api.placement_groups import groups_of
from tests.ec2sim.settings import ACCOUNT


def resources() -> dict[str, list[str]]:
    """Type -> ids, of all regions; a type of which nothing is left is left out."""
    found: dict[str, list[str]] = {}
    for backend in backends():
        for kind, names in _of(backend):
            found.setdefault(kind, []).extend(names)
    return {kind: sorted(names) for kind, names in found.items() if names}


def _of(backend: Any) -> Iterator[tuple[str, list[str]]]:
    groups = [group for groups in backend.groups.values() for group in groups.values()]
    requests = backend.spot_instance_requests.values()
    yield "instances", [one.id for one in backend.all_instances() if one._state.name != "terminated"]
    yield "security groups", [group.id for group in groups if group.name != "default"]
    yield "key pairs", list(backend.key_pairs)
    yield "placement groups", list(groups_of(backend))
    yield "images", [image.id for image in backend.amis.values() if image.owner_id == ACCOUNT]
    yield "snapshots", [one.id for one in backend.snapshots.values() if one.owner_id == ACCOUNT]
    yield "volumes", list(backend.volumes)
    yield "network interfaces", list(backend.enis)
    yield "spot requests", [one.id for one in requests if one.state in ("open", "active")]
    yield "elastic addresses", [address.public_ip for address in backend.addresses]

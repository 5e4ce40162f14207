"""Placement groups, which moto does not have at all."""

from __future__ import annotations

import secrets
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2 import utils
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.utils import generic_filter

from tests.ec2sim.api.cloud import Cloud, refuse, replaces_action, tags_for
from tests.ec2sim.settings import ACCOUNT


class PlacementGroup(TaggedEC2Resource):
    def __init__(self, backend: Any, name: str, strategy: str, spread_level: str | None) -> None:
        self.ec2_backend = backend
        self.id = self.group_id = f"pg-{secrets.token_hex(9)[:17]}"
        self.group_name = name
        self.strategy = strategy
        self.spread_level = spread_level
        self.state = "available"
        self.group_arn = f"arn:aws:ec2:{backend.region_name}:{ACCOUNT}:placement-group/{name}"


def groups_of(backend: Any) -> dict[str, PlacementGroup]:
    if not hasattr(backend, "simulated_placement_groups"):
        backend.simulated_placement_groups = {}
    groups: dict[str, PlacementGroup] = backend.simulated_placement_groups
    return groups


def check_group(backend: Any, name: str | None) -> None:
    if name and name not in groups_of(backend):
        raise refuse("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")


def install(cloud: Cloud) -> None:
    utils.EC2_RESOURCE_TO_PREFIX["placement-group"] = "pg"
    utils.EC2_PREFIX_TO_RESOURCE["pg"] = "placement-group"

    @replaces_action("create_placement_group")
    def create(_: Any, response: Any) -> ActionResult:
        name, groups = response._get_param("GroupName"), groups_of(response.ec2_backend)
        response.error_on_dryrun()
        if name in groups:
            raise refuse("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
        strategy = response._get_param("Strategy", "cluster")
        group = PlacementGroup(response.ec2_backend, name, strategy, response._get_param("SpreadLevel"))
        group.add_tags(tags_for(response, "placement-group"))
        groups[name] = group
        return ActionResult({"PlacementGroup": group})

    @replaces_action("describe_placement_groups")
    def describe(_: Any, response: Any) -> ActionResult:
        names, ids = response._get_param("GroupNames", []), response._get_param("GroupIds", [])
        for name in names:
            check_group(response.ec2_backend, name)
        groups = [
            group
            for group in groups_of(response.ec2_backend).values()
            if (not names or group.group_name in names) and (not ids or group.id in ids)
        ]
        return ActionResult({"PlacementGroups": generic_filter(response._filters_from_querystring(), groups)})

    @replaces_action("delete_placement_group")
    def delete(_: Any, response: Any) -> ActionResult:
        name, backend = response._get_param("GroupName"), response.ec2_backend
        response.error_on_dryrun()
        check_group(backend, name)
        for instance in backend.all_instances():
            if instance._placement.group_name == name and instance._state.name != "terminated":
                message = f"The placement group '{name}' is in use and may not be deleted."
                raise refuse("InvalidPlacementGroup.InUse", message)
        del groups_of(backend)[name]
        return EmptyResult()

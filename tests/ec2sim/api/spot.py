"""Spot instances: the request that RunInstances makes, and prices.

moto gives a RunInstances with market options no request at all, and all types one price of 2006.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.utils import random_spot_request_id

from tests.ec2sim.api.cloud import Cloud, refuse, replaces_action

# About what a virtual CPU of a 7th generation type costs an hour, in dollars; a zone differs a little.
VCPU_PRICE = 0.018


class SpotRequest(TaggedEC2Resource):
    """One-time and fulfilled, as EC2's becomes within seconds; `state` is active, closed or cancelled."""

    def __init__(self, backend: Any, instance: Any, options: dict[str, Any]) -> None:
        self.ec2_backend = backend
        self.id = self.spot_instance_request_id = random_spot_request_id()
        self.instance_id = instance.id
        self.state = "active"
        self.status = {"Code": "fulfilled", "Message": "Your spot request is fulfilled."}
        self.type = options.get("SpotInstanceType", "one-time")
        self.spot_price = options.get("MaxPrice") or f"{_price(instance.instance_type, 0):.6f}"
        self.instance_interruption_behavior = options.get("InstanceInterruptionBehavior", "terminate")
        self.launched_availability_zone = instance.placement.zone
        self.product_description = "Linux/UNIX"
        self.create_time = instance.launch_time

    def close(self, code: str) -> None:
        if self.state == "active":
            self.state = "closed"
            self.status = {"Code": code, "Message": code}


def close_request(instance: Any) -> None:
    """When its instance has ended; by whom is told by the instance's state reason."""
    request = instance.ec2_backend.spot_instance_requests.get(instance.spot_instance_request_id)
    if request:
        interrupted = instance.state_reason.code == "Server.SpotInstanceTermination"
        request.close("instance-terminated-no-capacity" if interrupted else "instance-terminated-by-user")


def install(cloud: Cloud) -> None:
    @replaces_action("cancel_spot_instance_requests")
    def cancel(_: Any, response: Any) -> ActionResult:
        response.error_on_dryrun()
        known = response.ec2_backend.spot_instance_requests
        ids = response._get_param("SpotInstanceRequestIds", [])
        for name in ids:
            if name not in known:
                raise refuse(
                    "InvalidSpotInstanceRequestID.NotFound", f"The spot request '{name}' does not exist"
                )
            known[name].state = "cancelled"
        answers = [{"SpotInstanceRequestId": name, "State": "cancelled"} for name in ids]
        return ActionResult({"CancelledSpotInstanceRequests": answers})

    @replaces_action("describe_spot_price_history")
    def prices(_: Any, response: Any) -> ActionResult:
        filters = response._filters_from_querystring()
        types = response._get_param("InstanceTypes", []) or filters.get("instance-type", [])
        zones = filters.get("availability-zone", [])
        zones = (
            [response._get_param("AvailabilityZone")] if response._get_param("AvailabilityZone") else zones
        )
        offers = INSTANCE_TYPE_OFFERINGS["availability-zone"][response.region]
        entries = [
            _entry(offer)
            for offer in offers
            if (not types or offer["InstanceType"] in types) and (not zones or offer["Location"] in zones)
        ]
        most = int(response._get_param("MaxResults") or 1000)
        return ActionResult({"SpotPriceHistory": entries[:most], "NextToken": ""})


def _entry(offer: Any) -> dict[str, Any]:
    return {
        "InstanceType": offer["InstanceType"],
        "AvailabilityZone": offer["Location"],
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": f"{_price(offer['InstanceType'], ord(offer['Location'][-1]) - ord('a')):.6f}",
        "Timestamp": datetime.now(timezone.utc),
    }


def _price(instance_type: str, zone: int) -> float:
    cpus = INSTANCE_TYPES.get(instance_type, {}).get("VCpuInfo", {}).get("DefaultVCpus", 2)
    return float(cpus) * VCPU_PRICE * (1 + zone / 50)

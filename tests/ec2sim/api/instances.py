"""An instance after its launch: its states take time, and what it used is gone when it is terminated.

moto's are terminated at once, keep volumes and interfaces "in-use", and print one canned console.
"""

from __future__ import annotations

import copy
import time
from datetime import datetime, timezone
from typing import Any

from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.ec2 import utils
from moto.ec2.models.instances import Instance, InstanceBackend

from tests.ec2sim.api.cloud import Cloud, refuse, replaces, replaces_action
from tests.ec2sim.api.spot import close_request

FILTERS = {
    "availability-zone": "availability_zone",
    "client-token": "client_token",
    "instance-lifecycle": "lifecycle",
    "placement-group-name": "placement.group_name",
    "spot-instance-request-id": "spot_instance_request_id",
}
# EC2 keeps the last 64 KiB.
CONSOLE_BYTES = 64 * 1024


def install(cloud: Cloud) -> None:
    utils.filter_dict_attribute_mapping.update(FILTERS)
    _install_life(cloud)
    _install_addresses()
    _install_consistency(cloud)
    _install_options()

    @replaces_action("get_console_output")
    def console(_: Any, response: Any) -> ActionResult:
        instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
        text = cloud.fleet.console(instance.id)[-CONSOLE_BYTES:]
        output = Base64EncodedString.from_raw_string(text) if text else None
        return ActionResult(
            {"InstanceId": instance.id, "Timestamp": datetime.now(timezone.utc), "Output": output}
        )


def _install_life(cloud: Cloud) -> None:
    fleet = cloud.fleet
    release = Instance.terminate

    def end(instance: Any) -> None:
        release(instance)
        close_request(instance)
        instance.nics, instance.security_groups, instance._subnet_id = {}, [], None

    fleet.release = end
    fleet.networks_changed = cloud.apply_groups

    @replaces(Instance, "terminate")
    def terminate(_: Any, instance: Any) -> Any:
        before = copy.copy(instance._state)
        fleet.terminate(instance)
        return before

    @replaces(Instance, "stop")
    def stop(_: Any, instance: Any) -> Any:
        before = copy.copy(instance._state)
        _check_state(instance, ("pending", "running", "stopping", "stopped"), "stopped")
        if instance.lifecycle == "spot":
            raise refuse("UnsupportedOperation", f"You can't stop the Spot Instance '{instance.id}'.")
        fleet.stop(instance)
        return before

    @replaces(Instance, "start")
    def start(original: Any, instance: Any) -> Any:
        _check_state(instance, ("stopped", "running", "pending"), "started")
        if instance._state.name != "stopped":
            return copy.copy(instance._state)
        before = original(instance)
        fleet.start(instance)
        return before

    @replaces(Instance, "reboot")
    def reboot(_: Any, instance: Any) -> None:
        _check_state(instance, ("running",), "rebooted")
        fleet.reboot(instance)


def _install_options() -> None:
    """moto forgets the options that a request does not name."""

    @replaces(InstanceBackend, "modify_instance_metadata_options")
    def modify(original: Any, backend: Any, instance_id: str, **named: Any) -> Any:
        before = vars(backend.get_instance(instance_id).metadata_options).copy()
        options = original(backend, instance_id, **named)
        for name, value in before.items():
            if getattr(options, name) is None:
                setattr(options, name, value)
        options.http_put_response_hop_limit = named["hop_limit"] or before["http_put_response_hop_limit"]
        return options


def _check_state(instance: Any, states: tuple[str, ...], what: str) -> None:
    if instance._state.name not in states:
        message = f"The instance '{instance.id}' is not in a state from which it can be {what}."
        raise refuse("IncorrectInstanceState", message)


def _install_addresses() -> None:
    """A terminated instance has no interface, and so no addresses."""

    def of_first(name: str, absent: Any) -> Any:
        return property(lambda instance: getattr(instance.nics[0], name) if instance.nics else absent)

    for ours, theirs in (("private_ip", "private_ip_address"), ("public_ip", "public_ip")):
        setattr(Instance, ours, of_first(theirs, None))
        setattr(Instance, f"{ours}_address", of_first(theirs, None))
    full_name = Instance.private_dns_name.fget
    assert full_name
    Instance.private_dns_name = property(  # type: ignore[assignment, method-assign]
        lambda instance: full_name(instance) if instance.nics else ""
    )


def _install_consistency(cloud: Cloud) -> None:
    """For a while after RunInstances its instances are not known to other requests.

    https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html
    """

    def young(name: str) -> bool:
        machine = cloud.fleet.machines.get(name)
        return machine is not None and time.monotonic() - machine.born < cloud.settings.eventual_s

    def known(original: Any, response: Any) -> Any:
        named = [*response._get_param("InstanceIds", []), *response._get_param("Resources", [])]
        for name in filter(None, (*named, response._get_param("InstanceId"))):
            if young(name):
                message = f"The instance ID '{name}' does not exist"
                raise refuse("InvalidInstanceID.NotFound", message)
        return original(response)

    for action in ("describe_instance_status", "terminate_instances", "stop_instances", "reboot_instances",
                   "create_tags", "get_console_output", "create_image", "modify_instance_attribute",
                   "modify_instance_metadata_options", "describe_instance_attribute"):  # fmt: skip
        replaces_action(action)(known)

    @replaces_action("describe_instances")
    def describe(original: Any, response: Any) -> Any:
        result = known(original, response)
        for reservation in result.result["Reservations"]:
            reservation.instances = [one for one in reservation.instances if not young(one.id)]
        result.result["Reservations"] = [one for one in result.result["Reservations"] if one.instances]
        return result

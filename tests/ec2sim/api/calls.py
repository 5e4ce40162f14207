"""Every request: counted, one at a time, and with the errors that were ordered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moto.core.responses import ActionResult, BaseResponse

from tests.ec2sim.api.cloud import Cloud, Fault, refuse, replaces
from tests.ec2sim.settings import REGIONS

# After these the router may have to let other packets through.
CHANGES_GROUPS = ("AuthorizeSecurityGroup", "RevokeSecurityGroup", "ModifySecurityGroupRules", "RunInstances",
                  "ModifyNetworkInterfaceAttribute", "ModifyInstanceAttribute", "StartInstances",
                  "AssociateAddress", "DisassociateAddress")  # fmt: skip
NOT_VALIDATED = "AWS was not able to validate the provided access credentials"


def install(cloud: Cloud) -> None:
    @replaces(BaseResponse, "call_action")
    def call_action(original: Any, response: Any) -> Any:
        action = response._get_action()
        with cloud.lock:
            cloud.calls[(response.region, action)] += 1
            if response.service_name == "ec2" and response.region not in REGIONS:
                return _error(response, "AuthFailure", NOT_VALIDATED, 401)
            fault = due_fault(cloud.faults, action, getattr(response, "params", None) or {})
            if fault:
                return _error(response, fault.code, fault.message, fault.status)
            try:
                answer = original(response)
            except NotImplementedError as error:  # of moto's
                return _error(response, "InvalidAction", f"not in the simulated EC2: {error}", 400)
            if str(action).startswith(CHANGES_GROUPS):
                cloud.apply_groups()
            return answer


def due_fault(faults: Sequence[Fault], action: str, parameters: Mapping[str, Any]) -> Fault | None:
    """The first that fits and is due; counts down what fits."""
    for fault in faults:
        if fault.action not in (action, "*") or not fits(fault.where, parameters) or fault.times <= 0:
            continue
        if fault.after > 0:
            fault.after -= 1
        else:
            fault.times -= 1
            return fault
    return None


def fits(where: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """True when each named parameter has the value, or a list that holds it.

    >>> fits({"Placement.GroupName": "g"}, {"Placement": {"GroupName": "g"}, "MinCount": 1})
    True
    >>> fits({"InstanceIds": "i-2"}, {"InstanceIds": ["i-1", "i-2"]})
    True
    >>> fits({"NetworkInterfaces.SubnetId": "s"}, {"NetworkInterfaces": [{"SubnetId": "t"}]})
    False
    """
    return all(wanted in _values(parameters, name.split(".")) for name, wanted in where.items())


def _values(parameters: Any, path: Sequence[str]) -> list[Any]:
    if isinstance(parameters, list):
        inside = [value for entry in parameters for value in _values(entry, path)]
        return inside if path else [*inside, parameters]
    if not path:
        return [parameters]
    if isinstance(parameters, Mapping) and path[0] in parameters:
        return _values(parameters[path[0]], path[1:])
    return []


def _error(response: Any, code: str, message: str, status: int) -> tuple[int, Any, Any]:
    _, headers, body = response.serialized(ActionResult(refuse(code, message)))
    headers["status"] = str(status)
    return status, headers, body

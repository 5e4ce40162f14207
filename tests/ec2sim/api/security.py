"""Security groups that are used cannot be deleted, which moto allows; key pairs have ids, too."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instances import InstanceBackend

from tests.ec2sim.api.cloud import Cloud, all_groups, refuse, replaces, replaces_action


def install(cloud: Cloud) -> None:
    @replaces_action("delete_security_group")
    def delete(original: Any, response: Any) -> ActionResult:
        group = response._get_param("GroupId")
        users = [one for one in response.ec2_backend.enis.values() if group in {g.id for g in one.group_set}]
        others = [
            other
            for other in all_groups()
            if other.id != group
            and any(rule.source_group.get("GroupId") == group for rule in other.ingress_rules)
        ]
        if users or others:
            raise refuse("DependencyViolation", f"resource {group} has a dependent object")
        result: ActionResult = original(response)
        return result

    @replaces(InstanceBackend, "modify_instance_security_groups")
    def modify(original: Any, backend: Any, instance_id: str, groups: list[str]) -> Any:
        instance = original(backend, instance_id, groups)
        instance.nics[0]._group_set = list(instance.security_groups)
        return instance

    for action in ("describe_key_pairs", "delete_key_pair"):
        replaces_action(action)(_with_names)


def _with_names(original: Any, response: Any) -> Any:
    """moto does not look at KeyPairId and KeyPairIds."""
    pairs = {pair.id: pair.key_name for pair in response.ec2_backend.key_pairs.values()}
    asked = response._get_param("KeyPairIds", []) or [response._get_param("KeyPairId")]
    for name in filter(None, asked):
        if name not in pairs:
            raise refuse("InvalidKeyPair.NotFound", f"The key pair ID '{name}' does not exist")
        response.params.setdefault("KeyNames", []).append(pairs[name])
        response.params["KeyName"] = pairs[name]
    return original(response)

"""What the patches share: the fleet, the faults to be played, and a few words of moto's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.responses import EC2Response

from tests.ec2sim import router
from tests.ec2sim.firewall import Rule
from tests.ec2sim.fleet import Fleet
from tests.ec2sim.settings import ACCOUNT, Settings


@dataclass
class Fault:
    """An error that requests get in place of their answer; see World.fault."""

    action: str
    code: str
    message: str
    status: int
    times: int
    after: int
    where: Mapping[str, Any]


@dataclass
class Cloud:
    """`lock` is held by every request: moto is not made for threads."""

    settings: Settings
    fleet: Fleet
    lock: threading.RLock
    faults: list[Fault] = field(default_factory=list)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def apply_groups(self) -> None:
        """Hosts, addresses or rules have changed: the router takes all of them anew."""
        router.apply(self.fleet.guarded(), {group.id: _rules(group) for group in all_groups()})


def backends() -> list[Any]:
    """moto's of all regions that were used."""
    return list(ec2_backends[ACCOUNT].values())


def all_groups() -> Iterator[Any]:
    for backend in backends():
        for groups in list(backend.groups.values()):
            yield from list(groups.values())


def refuse(code: str, message: str) -> EC2ClientError:
    return EC2ClientError(code, message)


def replaces(owner: type, name: str) -> Callable[[Callable[..., Any]], None]:
    """The decorated function gets the method that it replaces as its first argument.

    A method that moto lacks is None there.
    """

    def put(function: Callable[..., Any]) -> None:
        original = getattr(owner, name, None)
        setattr(owner, name, lambda self, *rest, **named: function(original, self, *rest, **named))

    return put


def replaces_action(name: str) -> Callable[[Callable[..., Any]], None]:
    return replaces(EC2Response, name)


def tags_for(response: Any, kind: str) -> dict[str, str]:
    """Of the request's TagSpecifications."""
    specifications = response._get_param("TagSpecifications", [])
    return {
        tag["Key"]: tag["Value"]
        for specification in specifications
        if specification.get("ResourceType") == kind
        for tag in specification.get("Tags", [])
    }


def _rules(group: Any) -> list[Rule]:
    return [
        Rule(
            protocol=str(rule.ip_protocol),
            first_port=rule.from_port,
            last_port=rule.to_port,
            cidr=rule.ip_range.get("CidrIp", ""),
            group=rule.source_group.get("GroupId", ""),
        )
        for rule in group.ingress_rules
    ]

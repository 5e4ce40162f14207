"""EC2 instances as nodes.

Everything is found by its tags (`tags`, `standing`), made with them in the call that makes it (`launch`,
`network`), met with a verified host key (`contact`), and removed in an order in which nothing can be left
behind (`take_down`). A call that was cut off is made again as the same call (`launches`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from provision.banner import which_answer
from provision.errors import SettingsError
from provision.model import Cluster, Node
from provision.providers import Forecast, Found, NodeState, Progress, Wanted
from provision.providers.ec2 import images
from provision.providers.ec2.account import Account
from provision.providers.ec2.bake import bake
from provision.providers.ec2.bring_up import BringUp
from provision.providers.ec2.forecast import forecast
from provision.providers.ec2.launches import Launches
from provision.providers.ec2.settings import Ec2Settings
from provision.providers.ec2.standing import Instance, Standing, look
from provision.providers.ec2.take_down import end_instances, take_down

__all__ = ["Ec2Provider", "account_of", "as_cluster"]


class Ec2Provider:
    """Nodes in one region of an AWS account; credentials by boto3's own chain."""

    def settled(self, settings: Any) -> Any:
        """With the region: another shell's AWS_DEFAULT_REGION must not make the cluster vanish."""
        return replace(settings, region=Account(settings.region, settings.profile).region)

    def forecast(self, wanted: Wanted) -> Forecast:
        settings = _settings(wanted)
        return forecast(Account(settings.region, settings.profile), settings, wanted)

    def create(self, wanted: Wanted, progress: Progress) -> tuple[Node, ...]:
        """All wanted nodes, in the order of `node_names`. Raises ProviderError, naming each that failed."""
        settings = _settings(wanted)
        account = Account(settings.region, settings.profile)
        return BringUp(account, wanted, settings, Launches(wanted.state_dir), progress).nodes()

    def find(self, cluster: Cluster) -> Found:
        """RUNNING when its sshd greets, SILENT when it runs and does not."""
        account = account_of(cluster)
        standing = look(account, cluster.name)
        instances = standing.by_node
        running = {name: each.address for name, each in instances.items() if each.state == "running"}
        answering = which_answer({name: address for name, address in running.items() if address})
        names = dict.fromkeys((*(node.name for node in cluster.nodes), *instances))
        states = {name: _state(instances.get(name), name in answering) for name in names}
        return Found(states, notes(account, standing))

    def remove(self, cluster: Cluster, node_names: tuple[str, ...], progress: Progress) -> None:
        """Nodes that are not there are passed over."""
        account = account_of(cluster)
        standing = look(account, cluster.name)
        end_instances(account, [each for each in standing.instances if each.node in node_names], progress)

    def destroy(self, cluster: Cluster, progress: Progress) -> None:
        """By tags: what the record does not know is removed too. Images that were baked stay."""
        take_down(account_of(cluster), cluster.name, progress)

    def baked(self, settings: Any, stack: str) -> str | None:
        """None where the settings name an image of their own."""
        account = Account(settings.region, settings.profile)
        return None if settings.image else images.name_of_baked(account, stack)

    def bake(self, cluster: Cluster, stack: str, progress: Progress) -> str:
        """The head is rebooted for it; what the others need of it (its mesh key) is made again by `up`."""
        return bake(account_of(cluster), cluster, stack, progress)

    def stack_store(self) -> Path | None:
        """None: the head builds the stack, or the image has it."""
        return None


def account_of(cluster: Cluster) -> Account:
    """The account and region of a recorded cluster."""
    return Account(cluster.settings.get("region"), cluster.settings.get("profile"))


def as_cluster(name: str, region: str, standing: Standing) -> Cluster:
    """A cluster as its tags tell it, without this machine's record: enough to see it and to remove it."""
    nodes = tuple(
        Node(each.node, each.address or "", private_address=each.private_address, provider_id=each.id)
        for each in standing.by_node.values()
    )
    return Cluster(name, "ec2", nodes, settings={"region": region})


def notes(account: Account, standing: Standing) -> tuple[str, ...]:
    """Where it is, what it is, when it ends."""
    if not standing.live:
        left = [each.id for each in (*standing.groups, *standing.placements, *standing.keys)]
        return (f"{account.region}: no instance; left: {', '.join(left)}",) if left else ()
    first = standing.live[0]
    kind = f"{len(standing.live)} x {first.type}{' spot' if first.spot else ''}"
    return (f"{kind} in {first.zone}", ends(standing.ends_at_s))


def ends(when_s: float | None) -> str:
    """When it ends by itself, in words."""
    if when_s is None:
        return "ttl none: it ends only with `clusterctl down`"
    shown = datetime.fromtimestamp(when_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return f"ends by itself at {shown} ({_left(when_s - time.time())}); see `clusterctl extend`"


def _left(seconds: float) -> str:
    """
    >>> _left(3 * 3600 + 600), _left(-5)
    ('in 3 h 10 min', 'which is over')
    """
    if seconds <= 0:
        return "which is over"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"in {hours} h {minutes} min" if hours else f"in {minutes} min"


def _state(instance: Instance | None, answers: bool) -> NodeState:
    if instance is None:
        return NodeState.GONE
    if instance.state in ("running", "pending"):
        return NodeState.RUNNING if answers else NodeState.SILENT
    return NodeState.STOPPED


def _settings(wanted: Wanted) -> Ec2Settings:
    if not isinstance(wanted.settings, Ec2Settings):
        raise SettingsError(f"{wanted.name}: EC2 nodes need Ec2Settings")
    return wanted.settings

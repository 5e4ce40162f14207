"""create() of EC2 nodes: find what stands, make what is missing, wait, and meet each new instance."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from provision.banner import which_answer
from provision.errors import ClusterctlError, ProviderError, SettingsError
from provision.model import Node
from provision.providers import NodesUnopenable, Progress, Wanted
from provision.providers.ec2 import contact, images, launch, network, tags
from provision.providers.ec2.account import Account, all_at_once
from provision.providers.ec2.contact import Contact
from provision.providers.ec2.launches import Launches
from provision.providers.ec2.settings import Ec2Settings, ttl_seconds
from provision.providers.ec2.standing import Instance, Standing, look
from provision.providers.ec2.take_down import end_instances


@dataclass(frozen=True)
class Prospect:
    """What new nodes would be made from; nothing of it changes anything."""

    tries: tuple[launch.Place, ...]
    image: images.Image


@dataclass(frozen=True)
class BringUp:
    """One create()."""

    account: Account
    wanted: Wanted
    settings: Ec2Settings
    launches: Launches
    progress: Progress

    def nodes(self) -> tuple[Node, ...]:
        """All wanted nodes. Raises ProviderError; those that came up stand and are recorded."""
        standing = self._refuse_conflicts(look(self.account, self.wanted.name))
        prospect = prospect_of(
            self.account, self.settings, self.wanted.stack, standing, self._missing(standing)
        )
        cidrs = network.allowed_cidrs(self.settings)
        self._record(standing.by_node.values())
        order = self._order(standing, prospect, cidrs)
        chosen = self._standing(standing)
        launched = self._launched(standing, prospect, order)
        if launched or any(each.state != "running" for each in chosen):
            found = launch.wait_until_running(self.account, [*(each.id for each in chosen), *launched])
            chosen = self._in_order(found.values())
            self._record(chosen)
        return self._met(chosen)

    def _refuse_conflicts(self, standing: Standing) -> Standing:
        """Raises before anything is changed; with `may_replace`, ends what cannot be opened."""
        types = {instance.type for instance in standing.live}
        if types - set(self.settings.instance_types):
            raise SettingsError(
                f"cluster {self.wanted.name} stands with {', '.join(sorted(types))}, the inventory says "
                f"{' or '.join(self.settings.instance_types)}; run `clusterctl down` first, or change it back"
            )
        lost = [instance for instance in standing.live if not self._openable(instance)]
        if not lost:
            return standing
        if not self.wanted.may_replace:
            raise NodesUnopenable(
                f"{self.wanted.name} stands in {self.account.region} ({_whose(lost)}), and "
                "this machine does not have the key that opens it"
            )
        end_instances(self.account, lost, self.progress)
        return look(self.account, self.wanted.name)

    def _openable(self, instance: Instance) -> bool:
        known = self.launches.known
        cut_off = {node for each in known.launches if not each.instances for node in each.nodes}
        return (
            instance.id in known.host_keys
            or known.first_key(instance.id) is not None
            or instance.node in cut_off
        )

    def _missing(self, standing: Standing) -> tuple[str, ...]:
        return tuple(name for name in self.wanted.node_names if name not in standing.by_node)

    def _order(
        self, standing: Standing, prospect: Prospect | None, cidrs: Sequence[str]
    ) -> launch.Order | None:
        """The key pair and the groups, made or made right; what to launch with when something is missing."""
        name, labels = self.wanted.name, functools.cache(self._labels)
        if prospect:
            labels()  # asks AWS who we are: once, before three threads do
        vpc = prospect.tries[0].subnet.vpc if prospect else ""
        ready = all_at_once(
            {
                "key": lambda: network.ensure_key(
                    self.account, standing, name, self.wanted.public_key, labels
                ),
                "group": lambda: network.ensure_group(self.account, standing, name, vpc, cidrs, labels),
                "placement": lambda: self._placement(standing, labels),
            }
        )
        if prospect is None:
            return None
        return launch.Order(
            name, prospect.image, ready["key"], ready["group"], ready["placement"], self._ends_at_s(standing),
            labels(), self.settings,
        )  # fmt: skip

    def _placement(self, standing: Standing, labels: network.Labels) -> str | None:
        if not self.settings.together:
            return None
        return network.ensure_placement(self.account, standing, self.wanted.name, labels)

    def _labels(self) -> dict[str, str]:
        return {
            **self.settings.tags,
            "Name": tags.resource_name(self.wanted.name),
            tags.CLUSTER: self.wanted.name,
            tags.OWNER: self.account.owner(),
            tags.MADE_AT: tags.moment(time.time()),
        }

    def _ends_at_s(self, standing: Standing) -> float | None:
        """New nodes end with those that stand."""
        if standing.live:
            return standing.ends_at_s
        ttl_s = ttl_seconds(self.settings.ttl)
        return None if ttl_s is None else time.time() + ttl_s

    def _standing(self, standing: Standing) -> list[Instance]:
        """The wanted instances that stand, stopped ones started; those nobody wants are ended."""
        chosen = standing.by_node
        unwanted = [each for each in chosen.values() if each.node not in self.wanted.node_names]
        end_instances(self.account, [*standing.surplus, *unwanted], self.progress)
        wanted = [chosen[name] for name in self.wanted.node_names if name in chosen]
        stopped = [each.id for each in wanted if each.state == "stopped"]
        if stopped:
            self.account.ec2("start_instances", InstanceIds=stopped)
        return wanted

    def _launched(
        self, standing: Standing, prospect: Prospect | None, order: launch.Order | None
    ) -> list[str]:
        """Ids of instances for the missing nodes: of calls that were cut off, then of new ones."""
        missing = set(self._missing(standing))
        ids: list[str] = []
        for cut_off in [each for each in self.launches.known.launches if not each.instances]:
            if not missing.issuperset(cut_off.nodes) and not set(standing.by_node).issuperset(cut_off.nodes):
                self.launches.forget(cut_off)
                continue
            answered = launch.call_again(self.account, self.launches, cut_off)
            if answered and missing.issuperset(cut_off.nodes):
                ids += answered
                missing -= set(cut_off.nodes)
        if prospect is None or order is None:
            return ids
        for nodes in tags.in_launches([name for name in self.wanted.node_names if name in missing]):
            ids += launch.run(self.account, self.launches, order, nodes, prospect.tries, self.progress)
        return ids

    def _in_order(self, found: Iterable[Instance]) -> list[Instance]:
        places = {name: at for at, name in enumerate(self.wanted.node_names)}
        return sorted((each for each in found if each.node in places), key=lambda each: places[each.node])

    def _met(self, instances: Sequence[Instance]) -> tuple[Node, ...]:
        """Every instance with its own host key and an sshd that answers."""
        known = self.launches.known
        established = {each.id for each in instances if known.first_key(each.id) is None}
        answering = self._revived([each for each in instances if each.id in established])
        meeting = Contact(
            self.account, self.launches, self.settings.user, self.wanted.identity_file,
            self.wanted.public_key, self.settings.boot_limit_s, self.progress,
        )  # fmt: skip

        def meet(instance: Instance) -> Node:
            if instance.node in answering and instance.id in known.host_keys:
                return meeting.as_node(instance, known.host_keys[instance.id])
            return meeting.node(instance)

        met = contact.each(meet, instances)
        self._forget_met(instances, met)
        lacking = [name for name in self.wanted.node_names if name not in met]
        problems = [str(result) for result in met.values() if isinstance(result, ClusterctlError)]
        problems += [
            f"{name}: EC2 does not show its instance yet; run `clusterctl up` again" for name in lacking
        ]
        if problems:
            raise ProviderError("\n".join(problems))
        return tuple(node for node in met.values() if isinstance(node, Node))

    def _revived(self, established: Sequence[Instance]) -> frozenset[str]:
        """Names of the nodes that answer; of those met before, the silent ones are rebooted.

        Where all are silent the fault is more likely here (a VPN, a moved laptop): nothing is rebooted then.
        """
        addresses = {
            each.node: each.address for each in established if each.address and each.state == "running"
        }
        answering = which_answer(addresses)
        silent = [each for each in established if each.node in addresses and each.node not in answering]
        if silent and not answering:
            raise ProviderError(
                f"none of {', '.join(each.node for each in silent)} answers on port 22 from here: is this "
                "machine's network up? They were left alone; `aws ec2 reboot-instances --instance-ids "
                f"{' '.join(each.id for each in silent)}` reboots them"
            )
        if silent:
            for each in silent:
                self.progress(each.node, "does not answer: rebooting")
            self.account.ec2("reboot_instances", InstanceIds=[each.id for each in silent])
        return answering

    def _forget_met(self, instances: Sequence[Instance], met: Mapping[str, Node | ClusterctlError]) -> None:
        """A launch whose instances all have their own host key is over."""
        self.launches.keep_only(frozenset(each.id for each in instances))
        good = {each.id for each in instances if isinstance(met[each.node], Node)}
        for done in self.launches.known.launches:
            if done.instances and good.issuperset(set(done.instances) & {each.id for each in instances}):
                self.launches.forget(done)

    def _record(self, instances: Iterable[Instance]) -> None:
        """What stands, with the host key that each has or is about to have."""
        known = self.launches.known
        nodes = [
            Node(
                name=each.node,
                address=each.address or "",
                user=self.settings.user,
                private_address=each.private_address,
                identity_file=self.wanted.identity_file,
                host_keys=tuple(filter(None, (known.host_keys.get(each.id) or known.first_key(each.id),))),
                provider_id=each.id,
            )
            for each in self._in_order(instances)
        ]
        self.wanted.record(tuple(nodes))


def _whose(instances: Sequence[Instance]) -> str:
    owners = sorted({each.owner for each in instances if each.owner})
    made = f", made by {' and '.join(owners)}" if owners else ""
    return f"{len(instances)} instance{'s' if len(instances) > 1 else ''}{made}"


def prospect_of(
    account: Account, settings: Ec2Settings, stack: str, standing: Standing, missing: Sequence[str]
) -> Prospect | None:
    """Where new nodes would be made and from what; None when none is missing, and nobody needs to ask.

    Raises ProviderError: no subnet, no such type there, no image.
    """
    if not missing:
        return None
    found = all_at_once(
        {
            "subnets": lambda: network.find_subnets(account, settings),
            "zones": lambda: network.zones_by_type(account, settings.instance_types),
            "image": lambda: images.choose(account, settings.image, stack),
        }
    )
    tries = launch.places(settings, found["subnets"], found["zones"], standing.live)
    if not tries:
        raise ProviderError(
            f"no subnet of {account.region} is in a zone that has {' or '.join(settings.instance_types)}"
        )
    return Prospect(tries, found["image"])

"""All clusters of an account, by their tags alone: what no record of this machine is needed for."""

from __future__ import annotations

from dataclasses import dataclass

from provision.model import Cluster
from provision.providers.ec2 import account_of, as_cluster, images, tags
from provision.providers.ec2.account import Account, each_at_once
from provision.providers.ec2.standing import Instance, Standing, look, look_at_all

# An `up` makes the groups first and instances moments later: what is younger may be at work.
HALF_MADE_AFTER_S = 900.0


@dataclass(frozen=True)
class Seen:
    """A cluster as its tags tell it."""

    name: str
    region: str
    standing: Standing

    @property
    def instances(self) -> tuple[Instance, ...]:
        return self.standing.live

    @property
    def owners(self) -> tuple[str, ...]:
        return tuple(sorted({each.owner for each in self.instances if each.owner}))

    def leftover(self, now_s: float) -> str | None:
        """Why `gc` would remove it; None for a cluster that is wanted."""
        if not self.instances:
            made = [
                tags.seconds_of(each.tags.get(tags.MADE_AT))
                for each in (*self.standing.keys, *self.standing.groups, *self.standing.placements)
            ]
            young = any(when is not None and now_s - when < HALF_MADE_AFTER_S for when in made)
            return None if young or self.standing.nothing else "no instance, only what was made for some"
        ends = self.standing.ends_at_s
        return "its time to live is over" if ends is not None and ends < now_s else None


def clusters_of(region: str | None) -> list[Cluster]:
    """Clusters of one region, as far as tags tell. Raises ProviderError."""
    account = Account(region)
    return [as_cluster(name, account.region, each) for name, each in look_at_all(account).items()]


def survey(region: str | None = None, *, all_regions: bool = False) -> list[Seen]:
    """Every cluster of one region, or of all that the account has enabled. Raises ProviderError."""
    account = Account(region)
    regions = _enabled(account) if all_regions else [account.region]
    found = each_at_once(lambda name: look_at_all(account.elsewhere(name)), regions)
    return [Seen(name, where, standing) for where in regions for name, standing in found[where].items()]


def _enabled(account: Account) -> list[str]:
    return sorted(each["RegionName"] for each in account.ec2("describe_regions")["Regions"])


def delete_images(cluster: Cluster) -> tuple[str, ...]:
    """The images that were baked from this cluster, and their snapshots; returns their names."""
    account = account_of(cluster)
    mine = [each for each in images.baked(account) if each.cluster == cluster.name]
    for image in mine:
        images.delete(account, image)
    return tuple(each.name for each in mine)


def extend_tags(cluster: Cluster, ends_at_s: float | None) -> None:
    """Write when its instances end into their tags, in one call; nodes are told over ssh."""
    account = account_of(cluster)
    ids = [each.id for each in look(account, cluster.name).live]
    value = "" if ends_at_s is None else tags.moment(ends_at_s)
    account.ec2("create_tags", Resources=ids, Tags=[{"Key": tags.ENDS_AT, "Value": value}])

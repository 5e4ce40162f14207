"""ls, gc, images, extend: what is about an account rather than about one cluster's nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from provision.errors import ClusterctlError, ProviderError, SettingsError
from provision.host import Host
from provision.model import Cluster
from provision.providers.ec2 import as_cluster, ends
from provision.providers.ec2.account import Account
from provision.providers.ec2.fleet import Seen, extend_tags, survey
from provision.providers.ec2.images import Image, baked
from provision.providers.ec2.images import delete as delete_image
from provision.providers.ec2.settings import ttl_seconds
from provision.providers.ec2.take_down import take_down
from provision.providers.ec2.types import TYPES
from provision.providers.ec2.user_data import ENDS_AT
from provision.report import report_for
from provision.step import run_on_hosts
from run.commands.common import confirm, count, open_hosts, print_json, print_table, standing_cluster


def ls(region: str | None, *, all_regions: bool, as_json: bool) -> int:
    """Every cluster of the account that its tags show, whoever made it. Returns 0."""
    found = survey(region, all_regions=all_regions)
    if as_json:
        print_json([_as_json(each) for each in found])
        return 0
    if not found:
        print(f"no cluster {'in any region' if all_regions else f'in {Account(region).region}'}")
        return 0
    print_table(
        ("CLUSTER", "REGION", "NODES", "TYPE", "OWNER", "$/HOUR", "ENDS"),
        [_row(each) for each in found],
    )
    return 0


def gc(region: str | None, *, all_regions: bool, yes: bool, as_json: bool) -> int:
    """Remove what is left of half-made or expired clusters. Returns 0."""
    left = [
        (each, why)
        for each in survey(region, all_regions=all_regions)
        if (why := each.leftover(time.time())) is not None
    ]
    for each, why in left:
        if not as_json:
            print(f"{each.name} in {each.region} ({count(len(each.instances), 'instance')}): {why}")
    if left:
        confirm(f"Remove {count(len(left), 'cluster')} with all they hold?", yes=yes)
    with report_for(as_json=as_json, nodes=()) as report:
        for each, _ in left:
            take_down(Account(each.region), each.name, report.progress)
    removed = [{"cluster": each.name, "region": each.region, "why": why} for each, why in left]
    if as_json:
        print_json({"event": "gc", "removed": removed})
    else:
        print(f"{count(len(left), 'cluster')} removed" if left else "nothing is left behind")
    return 0


def images(region: str | None, *, prune: bool, keep: int, yes: bool, as_json: bool) -> int:
    """The images that `up --bake` made; `prune` leaves the newest `keep` of each stack. Returns 0."""
    account = Account(region)
    found = baked(account)
    going = superfluous(found, keep) if prune else ()
    if going:
        confirm(f"Delete {count(len(going), 'image')} with their snapshots?", yes=yes)
    for image in going:
        delete_image(account, image)
    left = [image for image in found if image not in going]
    if as_json:
        print_json({"images": [_image_json(each) for each in left], "deleted": [each.id for each in going]})
        return 0
    for image in going:
        print(f"deleted {image.id} {image.name}")
    if left:
        rows = [(each.id, each.stack, each.made_at, f"{each.size_gib} GiB", each.state) for each in left]
        print_table(("IMAGE", "STACK", "MADE", "SIZE", "STATE"), rows)
    else:
        print(f"no image in {account.region}; `clusterctl up --bake` makes one")
    return 0


def superfluous(found: Sequence[Image], keep: int) -> tuple[Image, ...]:
    """All but the newest `keep` of each stack; `found` has the oldest first.

    >>> a, b = Image("ami-1", "", "", stack="s"), Image("ami-2", "", "", stack="s")
    >>> [image.id for image in superfluous([a, b], keep=1)]
    ['ami-1']
    """
    kept: list[Image] = []
    for image in reversed(found):
        if sum(each.stack == image.stack for each in kept) < keep:
            kept.append(image)
    return tuple(image for image in found if image not in kept)


def extend(ttl: str, name: str | None, *, as_json: bool) -> int:
    """Let a cluster end so long from now. Returns 0, or 1 when a node did not hear of it."""
    _, cluster = standing_cluster(name)
    if cluster.provider != "ec2":
        raise SettingsError(f"cluster {cluster.name} does not end by itself: nobody is billed for it")
    ttl_s = ttl_seconds(ttl)
    ends_at_s = None if ttl_s is None else time.time() + ttl_s
    deaf = _tell_nodes(cluster, ends_at_s)
    extend_tags(cluster, ends_at_s)
    if as_json:
        print_json({"cluster": cluster.name, "ends_at_s": ends_at_s, "not_told": sorted(deaf)})
    else:
        print(f"cluster {cluster.name}: {ends(ends_at_s)}")
    if deaf:
        raise ProviderError("\n".join([*deaf.values(), "these nodes keep their earlier end; run it again"]))
    return 0


def _tell_nodes(cluster: Cluster, ends_at_s: float | None) -> dict[str, str]:
    """Every node's own timer is set, by a file moved into place; what went wrong, by node."""
    value = "" if ends_at_s is None else f"{ends_at_s:.0f}"

    def tell(host: Host) -> None:
        host.run(
            "printf '%%s\\n' %s > %s.new && mv -f %s.new %s", value, ENDS_AT, ENDS_AT, ENDS_AT, sudo=True
        )

    with open_hosts(cluster) as hosts:
        done = run_on_hosts(hosts, tell)
    return {node: str(error) for node, error in done.items() if isinstance(error, ClusterctlError)}


def _row(seen: Seen) -> tuple[str, ...]:
    instances = seen.instances
    kinds = sorted({f"{each.type}{' spot' if each.spot else ''}" for each in instances})
    dollars = sum(TYPES[each.type].usd_per_hour for each in instances if each.type in TYPES)
    leftover = seen.leftover(time.time())  # on-demand prices of the table: asking would cost a call each
    return (
        seen.name,
        seen.region,
        str(len(instances)),
        ", ".join(kinds) or "-",
        ", ".join(seen.owners) or "-",
        f"{dollars:.2f}" if instances else "-",
        leftover or _when(seen),
    )


def _when(seen: Seen) -> str:
    ends_at_s = seen.standing.ends_at_s
    return "never" if ends_at_s is None else ends(ends_at_s).partition("(")[2].partition(")")[0]


def _as_json(seen: Seen) -> dict[str, object]:
    cluster = as_cluster(seen.name, seen.region, seen.standing)
    return {
        "name": seen.name,
        "region": seen.region,
        "nodes": [
            {"name": node.name, "id": node.provider_id, "address": node.address} for node in cluster.nodes
        ],
        "owners": seen.owners,
        "ends_at_s": seen.standing.ends_at_s,
        "leftover": seen.leftover(time.time()),
    }


def _image_json(image: Image) -> dict[str, object]:
    return {
        "id": image.id,
        "name": image.name,
        "stack": image.stack,
        "made_at": image.made_at,
        "state": image.state,
    }

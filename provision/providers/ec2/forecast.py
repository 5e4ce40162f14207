"""What `up` would make and what that costs: for --dry-run, and for whoever asks before paying."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from provision.errors import ClusterctlError
from provision.providers import Forecast, Wanted
from provision.providers.ec2 import network, prices
from provision.providers.ec2.account import Account, call_errors
from provision.providers.ec2.bring_up import Prospect, prospect_of
from provision.providers.ec2.settings import Ec2Settings
from provision.providers.ec2.standing import look
from provision.providers.ec2.types import type_named


def forecast(account: Account, settings: Ec2Settings, wanted: Wanted) -> Forecast:
    """Raises ProviderError as create() would: no credentials, no subnet, no such type there."""
    standing = look(account, wanted.name)
    missing = tuple(name for name in wanted.node_names if name not in standing.by_node)
    prospect = prospect_of(account, settings, wanted.stack, standing, missing)
    kind = prospect.tries[0].type if prospect else standing.live[0].type
    zone = prospect.tries[0].subnet.zone if prospect else standing.live[0].zone
    price = price_of(account, settings, kind, zone)
    lines = [_nodes_line(kind, zone, settings), f"ttl {settings.ttl}, then they end by themselves"]
    if prospect:
        lines += _launch_lines(settings, prospect)
    lines.append(f"{price.source}; volumes of {settings.volume_gib} GiB and traffic come on top")
    return Forecast(missing, tuple(lines), prices.per_hour(len(wanted.node_names), price))


def price_of(account: Account, settings: Ec2Settings, kind: str, zone: str) -> prices.Price:
    """Of one node an hour; the on-demand price where there is no spot history."""
    if settings.spot:
        with contextlib.suppress(*call_errors(), KeyError):
            return prices.spot(account.client("ec2"), kind, [zone])[zone]
    client = account.elsewhere(prices.PRICING_API_REGIONS[0]).client("pricing", attempts=1)
    return prices.on_demand(client, kind, account.region, call_errors())


def _nodes_line(kind: str, zone: str, settings: Ec2Settings) -> str:
    each = type_named(kind)
    market = "spot" if settings.spot else "on demand"
    size = f"{each.cores} cores, {each.memory_gib:g} GiB, {each.network_gbps:g} Gb/s each"
    return f"{kind} in {zone}, {market}: {size}"


def _launch_lines(settings: Ec2Settings, prospect: Prospect) -> list[str]:
    lines = [f"image {prospect.image.name or prospect.image.id} ({prospect.image.id})", _reached_by(settings)]
    others = dict.fromkeys(f"{place.type} in {place.subnet.zone}" for place in prospect.tries[1:])
    if others:
        lines.append(f"where there is no capacity: {_few(list(others))}")
    return lines


def _reached_by(settings: Ec2Settings) -> str:
    try:
        return f"port 22 open to {', '.join(network.allowed_cidrs(settings))} alone"
    except ClusterctlError as error:
        return str(error)


def _few(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

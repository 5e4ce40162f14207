"""Addresses, links and routes of a cluster: which subnet, which names, and the guard.

A cluster's subnet is a /24 of 198.18.0.0/15, the range that RFC 2544 sets aside for benchmarks: it is
never routed on the internet, and unlike 10/8, 172.16/12 and 192.168/16 hardly ever used by an office,
a VPN or Docker.

The guard is an `unreachable` route over the subnet with the worst metric. While the cluster lives,
the uplink's own route wins. Once the uplink is gone, however it went, the guard keeps packets for
dead nodes from leaving the machine by its default route, and makes connecting to them fail at once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any, NamedTuple

from . import Refused, quietly, run

RANGE = IPv4Network("198.18.0.0/15")
GUARD_METRIC = 4_000_000_000
# A bridge takes 1024 ports and a /24 has 253 addresses for nodes; beyond this one machine is no help.
MOST_NODES = 250


class Use(NamedTuple):
    """A network that this machine already uses, and what uses it, in words."""

    network: IPv4Network
    what: str


def link_name(runtime_dir: str, end: str) -> str:
    """Name of a cluster's link, at most 15 characters: `cc1a2b3c4dup` in the machine, `...br`, `...n7`."""
    return f"cc{zlib.crc32(runtime_dir.encode()):08x}{end}"


def mac(address: IPv4Address) -> str:
    """A node's MAC follows from its address: neighbours' tables stay right when it restarts."""
    return "02:cc:" + ":".join(f"{byte:02x}" for byte in address.packed)


def machine_address(subnet: IPv4Network) -> IPv4Address:
    return subnet[1]


def networks_in_use() -> list[Use]:
    """What addresses and routes of this machine cover, default routes apart."""
    addresses = json.loads(run("ip", "-4", "-json", "address", "show") or "[]")
    routes = json.loads(run("ip", "-4", "-json", "route", "show", "table", "all") or "[]")
    return uses_of_addresses(addresses) + uses_of_routes(routes)


def uses_of_addresses(links: Sequence[Mapping[str, Any]]) -> list[Use]:
    """From the JSON of `ip -4 -json address show`."""
    uses = []
    for link in links:
        for info in link.get("addr_info", ()):
            text = f"{info['local']}/{info['prefixlen']}"
            uses.append(Use(IPv4Network(text, strict=False), f"address {text} of {link['ifname']}"))
    return uses


def uses_of_routes(routes: Iterable[Mapping[str, Any]]) -> list[Use]:
    """From the JSON of `ip -4 -json route show table all`; `default` covers all and counts for nothing."""
    uses = []
    for route in routes:
        destination = str(route["dst"])
        if destination in ("default", "0.0.0.0/0"):
            continue
        through = route.get("dev") or route.get("type", "route")
        uses.append(Use(IPv4Network(destination, strict=False), f"route {destination} ({through})"))
    return uses


def check_subnet(text: str, uses: Sequence[Use]) -> IPv4Network:
    """The subnet that was asked for. Raises Refused: not a private network, or used, saying by what."""
    try:
        subnet = IPv4Network(text)
    except ValueError as error:
        raise Refused(f"subnet {text!r} is no IPv4 network such as 198.18.7.0/24: {error}") from None
    if not subnet.is_private or not 16 <= subnet.prefixlen <= 29:
        raise Refused(f"subnet {subnet} is not a private network between /16 and /29; 198.18.7.0/24 would be")
    for use in uses:
        if use.network.overlaps(subnet):
            raise Refused(
                f"subnet {subnet} is in use by {use.what}; name another one, or none to have it chosen"
            )
    return subnet


def choose_subnet(name: str, uses: Sequence[Use]) -> IPv4Network:
    """A /24 of RANGE that nothing uses; the search starts where the cluster's name says.

    Raises Refused when all 512 are used.
    """
    choices = list(RANGE.subnets(new_prefix=24))
    first = zlib.crc32(name.encode()) % len(choices)
    for subnet in choices[first:] + choices[:first]:
        if not any(use.network.overlaps(subnet) for use in uses):
            return subnet
    raise Refused(f"no free /24 is left in {RANGE}; name one with `subnet`")


def room_for_nodes(subnet: IPv4Network) -> int:
    """Nodes that the subnet has addresses for: all but its two ends and the machine's."""
    return min(MOST_NODES, subnet.num_addresses - 3)


def free_address(subnet: IPv4Network, taken: Iterable[str]) -> IPv4Address:
    """The lowest address that no node has. Raises Refused when the subnet is full."""
    room = room_for_nodes(subnet)
    used = set(taken)
    if len(used) >= room:
        raise Refused(f"subnet {subnet} has room for {room} nodes; use fewer nodes or a second cluster")
    return next(subnet[at] for at in range(2, subnet.num_addresses - 1) if str(subnet[at]) not in used)


def add_guard(subnet: str) -> None:
    """Idempotent: `replace` also takes an equal route that is there."""
    run("ip", "route", "replace", "unreachable", subnet, "metric", str(GUARD_METRIC))


def remove_guard(subnet: str) -> None:
    quietly("ip", "route", "del", "unreachable", subnet, "metric", str(GUARD_METRIC))


def burst_bytes(bits: int) -> int:
    """Size of the token bucket (tc's `burst`) for a link of so many bits in a second.

    It must hold what passes in 2 ms, between two looks of the kernel at it, and at least a few of the
    64 KiB packets that the kernel makes of a TCP stream; or the limit lies far under the rate.
    """
    return max(256 * 1024, bits // 8 // 500)


def bits_per_s(rate: str) -> int:
    """Bits in a second of tc's "10gbit", "200mbit", "64kbit" or "800bit".

    >>> bits_per_s("10gbit")
    10000000000
    """
    for unit, bits in (("gbit", 10**9), ("mbit", 10**6), ("kbit", 10**3), ("bit", 1)):
        number = rate.removesuffix(unit)
        if number != rate and number.replace(".", "", 1).isdigit() and float(number) > 0:
            return int(float(number) * bits)
    raise ValueError(f"{rate!r} is no rate such as 10gbit or 200mbit")

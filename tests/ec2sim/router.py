"""The world's own network namespace: the router between hosts and the two outside networks.

    hosts (a link each, 172.31.x.y) -- router -- operator  198.51.100.7   (TEST-NET-2)
                                             -- stranger  192.88.99.9    (once 6to4's, unused)

Routed, not bridged: stateful rules on a bridge need a kernel option that is often off. proxy_arp makes the
router answer for every host, so that hosts see each other on one subnet as on EC2. It has no default
route: a packet to anywhere else comes back as unreachable, at once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.providers.local.asroot import ip_batch, run
from tests.ec2sim.firewall import Guarded, Rule, ruleset

METADATA = "169.254.169.254"
API_ADDRESS = "198.51.100.1"


@dataclass(frozen=True)
class Outside:
    """A network beyond the internet gateway; `router` is our address in it."""

    name: str
    link: str
    router: str
    address: str


OUTSIDES = (
    Outside("operator", "op0", API_ADDRESS, "198.51.100.7"),
    Outside("stranger", "st0", "192.88.99.1", "192.88.99.9"),
)

SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/default/proxy_arp": "1",
    "net/ipv4/conf/default/rp_filter": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}


def set_up(gateways: Iterable[str]) -> dict[str, int]:
    """Make the router and both outside networks.

    Returns the process that holds each outside network, by its pid on the machine.
    """
    for name, value in SETTINGS.items():
        (Path("/proc/sys") / name).write_text(value)
    own = [f"address add {address}/32 dev lo" for address in (METADATA, *gateways)]
    ip_batch(["link set lo up", *own])
    apply((), {})
    return {outside.name: _make_outside(outside) for outside in OUTSIDES}


def attach_commands(link: str, address: str) -> list[str]:
    """For `ip`: bring up our end of a host's link, and the route to the host.

    proxy_delay: the kernel answers for others only after a random part of it, 0.8 s by default. retrans:
    a link's first packet may be lost while it comes up; the kernel would ask again after 1 s. Both are per
    link, as a network namespace has no defaults of its own for them.
    """
    return [
        f"ntable change name arp_cache dev {link} retrans 100 proxy_delay 0",
        f"link set {link} up",
        f"route add {address}/32 dev {link}",
    ]


def apply(hosts: Sequence[Guarded], rules: Mapping[str, Sequence[Rule]]) -> None:
    """Replace all rules in one transaction."""
    run("nft", "-f", "-", stdin=ruleset(hosts, rules, [outside.link for outside in OUTSIDES]))


def _make_outside(outside: Outside) -> int:
    # /proc is the machine's, so /proc/self/stat begins with the pid that the machine knows.
    hold = "read -r pid _ < /proc/self/stat; echo $pid; exec sleep infinity"
    holder = subprocess.Popen(
        ("unshare", "--net", "/bin/sh", "-c", hold),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout
    pid = int(holder.stdout.readline())
    ip_batch([
        f"link add {outside.link} type veth peer name eth0 netns {holder.pid}",
        f"address add {outside.router}/24 dev {outside.link}",
        f"link set {outside.link} up",
    ])  # fmt: skip
    inside = ["link set lo up", f"address add {outside.address}/24 dev eth0", "link set eth0 up",
              f"route add default via {outside.router}"]  # fmt: skip
    run("nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-", stdin="\n".join(inside) + "\n")
    return pid

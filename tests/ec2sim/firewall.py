"""Security groups and public addresses as one ruleset for nft: pure text, applied by the router.

Groups are enforced where EC2 enforces them, outside of the hosts, on what goes to a host's link: what no
rule lets in is dropped without an answer, answers to what was let out pass. All egress is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PUBLIC = "203.0.113.0/24"  # TEST-NET-3 of RFC 5737: nobody's addresses
PRIVATE = "172.31.0.0/16"


@dataclass(frozen=True)
class Rule:
    """One ingress rule: from a `cidr` or from the members of a `group`; protocol "-1" is all of them."""

    protocol: str
    first_port: int | None
    last_port: int | None
    cidr: str = ""
    group: str = ""


@dataclass(frozen=True)
class Guarded:
    """A host as the router sees it; `public` is empty without a public address."""

    link: str
    address: str
    public: str
    groups: tuple[str, ...]


def ruleset(hosts: Sequence[Guarded], rules: Mapping[str, Sequence[Rule]], outside: Iterable[str]) -> str:
    """Everything, to be read by `nft -f` as one transaction. `outside` are the links of the internet."""
    members: dict[str, list[str]] = {}
    for host in hosts:
        for group in host.groups:
            members.setdefault(group, []).append(host.address)
    chains = [_host_chain(host, rules, members) for host in hosts]
    jumps = ", ".join(f'"{host.link}" : jump to_{host.link}' for host in hosts)
    guards = f"oifname vmap {{ {jumps} }}" if jumps else ""
    return f"""\
table inet groups
delete table inet groups
table ip internet
delete table ip internet
table inet groups {{
{"".join(chains)}
  chain forward {{
    type filter hook forward priority 0; policy accept;
    ct state established,related accept
    ct state invalid drop
    {guards}
  }}
}}
{_public_addresses(hosts, outside)}"""


def _host_chain(host: Guarded, rules: Mapping[str, Sequence[Rule]], members: Mapping[str, list[str]]) -> str:
    lines = []
    for group in host.groups:
        for rule in rules.get(group, ()):
            source = _source(rule, members)
            if source:
                lines.append(f"    {source} {_protocol(rule)} accept\n")
    return f"  chain to_{host.link} {{\n{''.join(lines)}    drop\n  }}\n"


def _source(rule: Rule, members: Mapping[str, list[str]]) -> str:
    """Empty when nobody fits. Members count by their private addresses only, as on EC2."""
    if rule.cidr:
        return f"ip saddr {rule.cidr}"
    addresses = members.get(rule.group, [])
    return f"ct original ip daddr != {PUBLIC} ip saddr {{ {', '.join(addresses)} }}" if addresses else ""


def _protocol(rule: Rule) -> str:
    if rule.protocol in ("tcp", "udp"):
        return f"{rule.protocol} dport {rule.first_port}-{rule.last_port}"
    if rule.protocol == "icmp" and rule.first_port not in (None, -1):
        return f"icmp type {rule.first_port}"
    return "" if rule.protocol == "-1" else f"meta l4proto {rule.protocol}"


def _public_addresses(hosts: Sequence[Guarded], outside: Iterable[str]) -> str:
    """The internet gateway: one public address stands for one host, both ways."""
    pairs = [(host.public, host.address) for host in hosts if host.public]
    inward = ", ".join(f"{public} : {private}" for public, private in pairs)
    outward = ", ".join(f"{private} : {public}" for public, private in pairs)
    links = ", ".join(f'"{link}"' for link in outside)
    there = f"dnat to ip daddr map {{ {inward} }}" if pairs else ""
    back = f"oifname {{ {links} }} snat to ip saddr map {{ {outward} }}" if pairs else ""
    return f"""\
table ip internet {{
  chain before {{
    type nat hook prerouting priority -100;
    {there}
  }}
  chain after {{
    type nat hook postrouting priority 100;
    {back}
  }}
}}
"""

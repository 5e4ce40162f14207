"""Host patterns: n[01:04], n[a:c], n[1:10:2], HOST:PORT, [IPV6]:PORT, expanded as Ansible does.

https://docs.ansible.com/ansible/latest/inventory_guide/intro_inventory.html#adding-ranges-of-hosts
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from string import ascii_letters

_PORTED = (re.compile(r"\[(.+)\]:([0-9]+)"), re.compile(r"((?:[^:\[\]]|\[[^\]]*\])*):([0-9]+)"))
_RANGE = r"\[(?:[a-z]:[a-z]|[0-9]+:[0-9]+)(?::[0-9]+)?\]"
_LABEL = rf"(?:\w|{_RANGE})(?:[\w-]|{_RANGE})*(?<![_-])"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.IGNORECASE)
_IPV6_RANGE = re.compile(r"\[[0-9a-f]+:[0-9a-f]+(?::[0-9]+)?\]", re.IGNORECASE)


def parse_pattern(pattern: str) -> tuple[tuple[str, ...], int | None]:
    """The hosts that a key under `hosts:` names, and the port that it gives them.

    Raises ValueError when a range cannot be understood. What looks like no host keeps its colon.

    >>> parse_pattern("n[09:11].lab:2222")
    (('n09.lab', 'n10.lab', 'n11.lab'), 2222)
    >>> parse_pattern("[fe80::1]:22"), parse_pattern("fe80::1")
    ((('fe80::1',), 22), (('fe80::1',), None))
    """
    name, port = pattern, None
    for shape in _PORTED:
        match = shape.fullmatch(name)
        if match:
            name, port = match[1], int(match[2])
    if not _is_host(name):
        name, port = pattern, None
    return tuple(_expanded(name)), port


def _is_host(name: str) -> bool:
    if _HOST_NAME.fullmatch(name):
        return True
    try:
        ipaddress.IPv6Address(_IPV6_RANGE.sub("0", name))
    except ValueError:
        return False
    return "%" not in name


def _expanded(pattern: str) -> Iterator[str]:
    """The first range expanded, and those after it for each."""
    if "[" not in pattern:
        yield pattern
        return
    head, _, rest = pattern.partition("[")
    bounds, closed, tail = rest.partition("]")
    if not closed or "]" in head or "|" in pattern:
        raise ValueError(f"{pattern!r} has a bracket of no range")
    for item in _items(bounds):
        yield from _expanded(f"{head}{item}{tail}")


def _items(bounds: str) -> Iterator[str]:
    """What stands for first:last or first:last:step; both ends are in it.

    >>> list(_items("01:10:4")), list(_items("a:c"))
    (['01', '05', '09'], ['a', 'b', 'c'])
    """
    first, last, step = _ends(bounds)
    width = len(first) if first.startswith("0") and len(first) > 1 else 0
    if width and width != len(last):
        raise ValueError(f"the ends of [{bounds}] are not of the same width")
    at, end = ascii_letters.find(first), ascii_letters.find(last)
    if at >= 0 and end >= 0:
        if at > end:
            raise ValueError(f"[{bounds}] ends before it begins")
        yield from ascii_letters[at : end + 1 : step]
        return
    try:
        numbers = range(int(first), int(last) + 1, step)
    except ValueError:
        raise ValueError(f"[{bounds}] is a range neither of numbers nor of letters") from None
    yield from (str(number).zfill(width) for number in numbers)


def _ends(bounds: str) -> tuple[str, str, int]:
    parts = bounds.split(":")
    if len(parts) not in (2, 3) or not parts[1]:
        raise ValueError(f"[{bounds}] is not [first:last] or [first:last:step]")
    step = parts[2] if len(parts) == 3 else "1"
    if not step.isdecimal() or int(step) == 0:
        raise ValueError(f"the step of [{bounds}] is not a number above 0")
    return parts[0] or "0", parts[1], int(step)

"""A managed block in somebody else's text: put in, replaced, taken out, every other byte kept."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.line import closed, ending_of


def _begin(name: str) -> str:
    return f"# >>> clusterctl {name} >>> managed, do not edit"


def _end(name: str) -> str:
    return f"# <<< clusterctl {name} <<<"


def set_block(text: str, name: str, lines: Sequence[str], *, at_start: bool = False) -> str:
    """The text with the block of that name holding exactly `lines`, in the text's own line ending.

    An old block is replaced where it stands; a new one goes to the end, or to the start for files in which
    the first match wins (/etc/hosts, ssh's config).

    >>> print(set_block("mine", "mesh", ["a"]), end="")
    mine
    # >>> clusterctl mesh >>> managed, do not edit
    a
    # <<< clusterctl mesh <<<
    """
    block = "".join(f"{line}{ending_of(text)}" for line in (_begin(name), *lines, _end(name)))
    found = _find(text, name)
    if found:
        return text[: found[0]] + block + text[found[1] :]
    return block + text if at_start else closed(text) + block


def remove_block(text: str, name: str) -> str:
    """The text without the block of that name; unchanged when there is none."""
    found = _find(text, name)
    return text[: found[0]] + text[found[1] :] if found else text


def _find(text: str, name: str) -> tuple[int, int] | None:
    """Where the block starts and ends. A block whose end was cut off ends with its begin line."""
    begin = re.compile(rf"(?<![^\n]){re.escape(_begin(name))}\r?\n").search(text)
    if begin is None:
        return None
    end = re.compile(rf"(?<![^\n]){re.escape(_end(name))}\r?(\n|\Z)").search(text, begin.end())
    return begin.start(), (end or begin).end()

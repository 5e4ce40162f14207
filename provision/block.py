"""A managed block in somebody else's text: put in, replaced, taken out, every other byte kept."""

from __future__ import annotations

from collections.abc import Sequence


def _begin(name: str) -> str:
    return f"# >>> clusterctl {name} >>> managed, do not edit\n"


def _end(name: str) -> str:
    return f"# <<< clusterctl {name} <<<\n"


def set_block(text: str, name: str, lines: Sequence[str], *, at_start: bool = False) -> str:
    """The text with the block of that name holding exactly `lines`.

    An old block is replaced where it stands; a new one goes to the end, or to the start for files in which
    the first match wins (/etc/hosts, ssh's config).

    >>> print(set_block("mine", "mesh", ["a"]), end="")
    mine
    # >>> clusterctl mesh >>> managed, do not edit
    a
    # <<< clusterctl mesh <<<
    """
    block = _begin(name) + "".join(f"{line}\n" for line in lines) + _end(name)
    found = _find(text, name)
    if found:
        return text[: found[0]] + block + text[found[1] :]
    if at_start:
        return block + text
    return text + ("" if not text or text.endswith("\n") else "\n") + block


def remove_block(text: str, name: str) -> str:
    """The text without the block of that name; unchanged when there is none."""
    found = _find(text, name)
    return text[: found[0]] + text[found[1] :] if found else text


def _find(text: str, name: str) -> tuple[int, int] | None:
    """Where the block starts and ends. A block whose end was cut off ends with its begin line."""
    begin, end = _begin(name), _end(name)
    start = text.find(begin)
    while start > 0 and text[start - 1] != "\n":
        start = text.find(begin, start + 1)
    if start < 0:
        return None
    stop = (text + "\n").find(end, start)
    if stop < 0:
        return start, start + len(begin)
    return start, min(stop + len(end), len(text))

"""One line of somebody else's text: present, put in place of another, or absent; every other byte kept.

Lines end with a line feed and nothing else; a carriage return before it is part of the ending. The newline
that a last line lacks is put in when something is to follow it, and stays.
"""

from __future__ import annotations

import re


def ending_of(text: str) -> str:
    r"""How the text's first line ends; a line feed where there is none to learn from.

    >>> ending_of("a\r\nb\n")
    '\r\n'
    """
    return "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"


def closed(text: str) -> str:
    """The text with a newline at its end, unless it is empty."""
    if not text or text.endswith("\n"):
        return text
    return text + ("\n" if text.endswith("\r") else ending_of(text))


def set_line(text: str, line: str, match: re.Pattern[str] | None = None) -> str:
    r"""The text in which `line` stands and no other line matches.

    The first line that matches becomes `line`, unless that stands already; others that match go. Where
    none matches, the line goes to the end.

    >>> set_line("#Port 22\nPort 2200\nUseDNS no\n", "Port 2222", re.compile("^#?Port "))
    'Port 2222\nUseDNS no\n'
    """
    lines = _split(text)
    others = [
        at for at, each in enumerate(lines) if match and match.search(_bare(each)) and _bare(each) != line
    ]
    if not any(_bare(each) == line for each in lines):
        if not others:
            return closed(text) + line + ending_of(text)
        first = others.pop(0)
        lines[first] = line + lines[first][len(_bare(lines[first])) :]
    return "".join(each for at, each in enumerate(lines) if at not in others)


def remove_line(text: str, line: str, match: re.Pattern[str] | None = None) -> str:
    r"""The text without lines that are `line` or match.

    >>> remove_line("a\nb\na\n", "a")
    'b\n'
    """
    kept = [
        each for each in _split(text) if _bare(each) != line and not (match and match.search(_bare(each)))
    ]
    return "".join(kept)


def _split(text: str) -> list[str]:
    """Lines with their endings. Not splitlines(): it also ends them at form feeds and the like."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _bare(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")

"""Steps about a part of somebody else's file: a managed block, one line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.block import remove_block, set_block
from provision.errors import SettingsError
from provision.host import Host
from provision.line import remove_line, set_line
from provision.steps.texts import edit_text, parse_seen, read_probe, unified


class _Edit:
    """What the steps of this file share: a text is read, and what is wanted of it written back."""

    path: str
    owner: str
    mode: str

    @property
    def probe(self) -> str:
        return read_probe(self.path)

    def diff(self, actual: str) -> str:
        content = parse_seen(actual).content
        return unified(content, self._wanted(content), self.path)

    def apply(self, host: Host) -> None:
        edit_text(host, self.path, self._wanted, self.owner, self.mode)

    def _wanted(self, content: str) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class Block(_Edit):
    """A managed block in a file; the rest of the file, and its owner and mode, stay as they are.

    `owner` and `mode` are for a file that does not exist yet. With `present=False` the block goes.
    """

    path: str
    marker: str
    lines: tuple[str, ...]
    owner: str = "root"
    mode: str = "644"
    at_start: bool = False
    present: bool = True

    @property
    def name(self) -> str:
        return f"block {self.marker} in {self.path}"

    def drift(self, actual: str) -> str | None:
        content = parse_seen(actual).content
        if self._wanted(content) == content:
            return None
        return "block missing or different" if self.present else "block is there"

    def _wanted(self, content: str) -> str:
        if not self.present:
            return remove_block(content, self.marker)
        return set_block(content, self.marker, self.lines, at_start=self.at_start)


@dataclass(frozen=True)
class Line(_Edit):
    """One line of a file; the rest of the file, and its owner and mode, stay as they are.

    `match` is a regular expression for the lines that this one takes the place of: the first that matches
    becomes the line, and no other may remain. With `present=False`, the line and all that match go.
    `owner` and `mode` are for a file that does not exist yet.
    """

    path: str
    line: str
    match: str = ""
    present: bool = True
    owner: str = "root"
    mode: str = "644"

    def __post_init__(self) -> None:
        if not self.line.strip() or "\n" in self.line or self.line.endswith("\r"):
            raise SettingsError(
                f"Line in {self.path}: {self.line!r} is not one line; for several there is Block"
            )
        try:
            re.compile(self.match)
        except re.error as error:
            raise SettingsError(f"Line in {self.path}: match {self.match!r}: {error}") from None

    @property
    def name(self) -> str:
        return f"line in {self.path}: {self.line}"

    def drift(self, actual: str) -> str | None:
        content = parse_seen(actual).content
        if self._wanted(content) == content:
            return None
        if not self.present:
            return "line is there"
        return "another line stands there" if self.match and self._matches(content) else "line missing"

    def _matches(self, content: str) -> bool:
        return any(re.search(self.match, line.removesuffix("\r")) for line in content.split("\n"))

    def _wanted(self, content: str) -> str:
        match = re.compile(self.match) if self.match else None
        change = set_line if self.present else remove_line
        return change(content, self.line, match)

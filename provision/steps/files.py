"""Steps about files: a directory, a whole text file, a managed block in somebody else's file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from provision.block import set_block
from provision.host import Host, quoted

# Prints "owner mode" and then the content; nothing at all when the file is not there.
_READ = "[ -e %s ] && stat -L -c '%%U %%a' %s && cat %s"

# Written beside the target and renamed over it: a full disk or a cut connection leaves the old file whole.
_WRITE = """
target=$(readlink -f %s) && folder=$(dirname "$target") && mkdir -p "$folder" || exit 1
new=$(mktemp -p "$folder" .clusterctl.XXXXXX) || exit 1
cat > "$new" && chown %s: "$new" && chmod %s "$new" && mv "$new" "$target" || { rm -f "$new"; exit 1; }
"""


def write_file(host: Host, path: str, content: str, owner: str, mode: str) -> None:
    """Replace a file's content at once, through a symlink where it is one. Raises HostError."""
    host.run(_WRITE, path, owner, mode, sudo=True, stdin=content.encode())


def _unified(before: str, after: str, path: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="")
    return "\n".join(lines)


def _parse(actual: str) -> tuple[str, str, str]:
    """Owner, mode and content from what _READ printed; three empty strings when there is no file."""
    head, _, content = actual.partition("\n")
    owner, _, mode = head.partition(" ")
    return owner, mode, content


@dataclass(frozen=True)
class Directory:
    """A directory with its owner and mode."""

    path: str
    owner: str = "root"
    mode: str = "755"

    @property
    def name(self) -> str:
        return f"directory {self.path}"

    @property
    def probe(self) -> str:
        return quoted("[ -d %s ] && stat -c '%%U %%a' %s", self.path, self.path)

    def drift(self, actual: str) -> str | None:
        wanted = f"{self.owner} {self.mode}"
        if actual.strip() == wanted:
            return None
        return f"{actual.strip() or 'no directory'}, wanted {wanted}"

    def apply(self, host: Host) -> None:
        host.run("install -d -o %s -m %s %s", self.owner, self.mode, self.path, sudo=True)


@dataclass(frozen=True)
class TextFile:
    """A file whose whole content is wanted.

    A file that was there before and does not start with the same first line is somebody's own: it is kept
    beside, named `.before-clusterctl`.
    """

    path: str
    content: str
    owner: str = "root"
    mode: str = "644"

    @property
    def name(self) -> str:
        return f"file {self.path}"

    @property
    def probe(self) -> str:
        return quoted(_READ, self.path, self.path, self.path)

    def drift(self, actual: str) -> str | None:
        owner, mode, content = _parse(actual)
        if not owner:
            return "no such file"
        if content != self.content:
            return "content differs"
        if (owner, mode) != (self.owner, self.mode):
            return f"{owner} {mode}, wanted {self.owner} {self.mode}"
        return None

    def diff(self, actual: str) -> str:
        return _unified(_parse(actual)[2], self.content, self.path)

    def apply(self, host: Host) -> None:
        before = _parse(host.run(self.probe, sudo=True, expect=(0, 1)).stdout)[2]
        if before and before.partition("\n")[0] != self.content.partition("\n")[0]:
            host.run("cp -p %s %s", self.path, f"{self.path}.before-clusterctl", sudo=True)
        write_file(host, self.path, self.content, self.owner, self.mode)


@dataclass(frozen=True)
class Block:
    """A managed block in a file; the rest of the file, and its owner and mode, stay as they are.

    `owner` and `mode` are for a file that does not exist yet.
    """

    path: str
    marker: str
    lines: tuple[str, ...]
    owner: str = "root"
    mode: str = "644"
    at_start: bool = False

    @property
    def name(self) -> str:
        return f"block {self.marker} in {self.path}"

    @property
    def probe(self) -> str:
        return quoted(_READ, self.path, self.path, self.path)

    def drift(self, actual: str) -> str | None:
        content = _parse(actual)[2]
        return None if self._wanted(content) == content else "block missing or different"

    def diff(self, actual: str) -> str:
        content = _parse(actual)[2]
        return _unified(content, self._wanted(content), self.path)

    def apply(self, host: Host) -> None:
        owner, mode, content = _parse(host.run(self.probe, sudo=True, expect=(0, 1)).stdout)
        write_file(host, self.path, self._wanted(content), owner or self.owner, mode or self.mode)

    def _wanted(self, content: str) -> str:
        return set_block(content, self.marker, self.lines, at_start=self.at_start)

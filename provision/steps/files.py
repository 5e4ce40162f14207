"""Steps about whole files: a directory, a text file, a link, and nothing at all."""

from __future__ import annotations

import hashlib
import posixpath
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.errors import HostError, SettingsError
from provision.host import Host, quoted
from provision.steps.edits import Block as Block  # it was born here, and is still imported from here
from provision.steps.texts import octal, parse_seen, read_probe, read_text, unified, write_text

# What no playbook means to remove, whatever a variable in its path was empty.
_KEPT = re.compile(r"/[^/]*|/usr/(s?bin|lib|lib64|local|share)|/var/(cache|lib|log|spool|tmp)|/home/[^/]*")


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
        wanted = f"{self.owner} {octal(self.mode)}"
        if actual.strip() == wanted:
            return None
        return f"{actual.strip() or 'no directory'}, wanted {wanted}"

    def apply(self, host: Host) -> None:
        host.run("install -d -o %s -m %s %s", self.owner, octal(self.mode), self.path, sudo=True)


@dataclass(frozen=True)
class TextFile:
    """A file whose whole content is wanted.

    A file that was there before and does not start with the same first line is somebody's own: it is kept
    beside, named `.before-clusterctl`. Of a `secret` file no content is shown or read, and none is kept.
    """

    path: str
    content: str = field(repr=False)
    owner: str = "root"
    mode: str = "644"
    secret: bool = False

    @classmethod
    def from_template(
        cls,
        path: str,
        template: str,
        values: Mapping[str, object],
        owner: str = "root",
        mode: str = "644",
        secret: bool = False,
    ) -> TextFile:
        """The file whose content is the template with each `$name` or `${name}` replaced, `$$` being `$`.

        Raises SettingsError naming the line: a name without a value, or a `$` that begins no name.
        """
        return cls(path, fill(template, values, path), owner, mode, secret)

    @property
    def name(self) -> str:
        return f"file {self.path}"

    @property
    def probe(self) -> str:
        if self.secret:
            digest = "[ -e %s ] && stat -L -c '%%U %%a' %s && sha256sum < %s"
            return quoted(digest, self.path, self.path, self.path)
        return read_probe(self.path)

    def drift(self, actual: str) -> str | None:
        seen = parse_seen(actual)
        if not seen.owner:
            return "no such file"
        if seen.content != self._wanted:
            return "content differs"
        if (seen.owner, seen.mode) != (self.owner, octal(self.mode)):
            return f"{seen.owner} {seen.mode}, wanted {self.owner} {octal(self.mode)}"
        return None

    def diff(self, actual: str) -> str:
        if self.secret:
            return "(secret, not shown)"
        return unified(parse_seen(actual).content, self.content, self.path)

    def apply(self, host: Host) -> None:
        if not self.secret:
            before = read_text(host, self.path)
            if before and before.partition("\n")[0] != self.content.partition("\n")[0]:
                host.run("cp -p %s %s", self.path, f"{self.path}.before-clusterctl", sudo=True)
        write_text(host, self.path, self.content, self.owner, self.mode)

    @property
    def _wanted(self) -> str:
        if not self.secret:
            return self.content
        return hashlib.sha256(self.content.encode(errors="surrogateescape")).hexdigest() + "  -\n"


def fill(template: str, values: Mapping[str, object], where: str) -> str:
    """The template with all its names replaced. Raises SettingsError.

    >>> fill("port=$port cost=$$5", {"port": 22}, "demo")
    'port=22 cost=$5'
    """
    try:
        return string.Template(template).substitute(values)
    except KeyError as error:
        name = error.args[0]
        line = template[: _first(template, name)].count("\n") + 1
        known = ", ".join(sorted(values)) or "none"
        raise SettingsError(
            f"{where}: line {line} of its template has ${name}; values are: {known}"
        ) from None
    except ValueError as error:
        raise SettingsError(f"{where}: its template: {error}; write $$ for a $") from None


def _first(template: str, name: str) -> int:
    found = re.search(rf"(?<!\$)(?:\$\$)*\$(?:{name}\b|{{{name}}})", template)
    return found.start() if found else 0


@dataclass(frozen=True)
class Symlink:
    """A symbolic link. A file or folder that stands in its place is not replaced: that is said instead."""

    path: str
    target: str

    @property
    def name(self) -> str:
        return f"link {self.path}"

    @property
    def probe(self) -> str:
        return quoted("if [ -L %s ]; then readlink %s; elif [ -e %s ]; then echo; fi", *[self.path] * 3)

    def drift(self, actual: str) -> str | None:
        if actual.removesuffix("\n") == self.target:
            return None
        if actual == "\n":
            return f"something that is no link stands there; remove it first, with Absent({self.path!r})"
        return f"links to {actual.strip()}" if actual else "no such link"

    def apply(self, host: Host) -> None:
        drift = self.drift(host.run(self.probe, sudo=True).stdout)
        if drift and drift.startswith("something"):
            raise HostError(host.node.name, f"{self.path}: {drift}")
        new = posixpath.join(posixpath.dirname(self.path), f".{posixpath.basename(self.path)}.clusterctl-new")
        host.run(
            "mkdir -p %s && ln -sfn %s %s && mv -fT %s %s",
            posixpath.dirname(self.path) or ".", self.target, new, new, self.path,
            sudo=True,
        )  # fmt: skip


@dataclass(frozen=True)
class Absent:
    """Nothing at a path: a file, a link or a whole folder goes.

    What is mounted inside it stays, and that is told.
    """

    path: str

    def __post_init__(self) -> None:
        if (
            not self.path.startswith("/")
            or posixpath.normpath(self.path) != self.path
            or _KEPT.fullmatch(self.path)
        ):
            raise SettingsError(
                f"Absent({self.path!r}): a full path below the system's own folders is wanted"
            )

    @property
    def name(self) -> str:
        return f"no {self.path}"

    @property
    def probe(self) -> str:
        return quoted("if [ -e %s ] || [ -L %s ]; then stat -c %%F %s; fi", *[self.path] * 3)

    def drift(self, actual: str) -> str | None:
        return f"a {actual.strip()} is there" if actual.strip() else None

    def apply(self, host: Host) -> None:
        host.run("rm -rf --one-file-system %s", self.path, sudo=True)

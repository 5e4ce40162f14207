"""Steps about file systems: one mounted now, and at every boot."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from provision.errors import CommandError, HostError, SettingsError
from provision.host import Host, quoted
from provision.line import remove_line, set_line
from provision.steps.texts import edit_text, unified

_FSTAB = "/etc/fstab"
# Neither stat nor findmnt: on a share whose server is gone, both would wait for it.
_LOOK = "grep -F %s /proc/self/mounts; echo fstab; cat /etc/fstab"
_MOUNT_LIMIT_S = 150.0
# Options that every file system shows as they were given, and changes while it is mounted.
_FLAGS = frozenset({"ro", "rw", "noexec", "nosuid", "nodev", "noatime"})
# Kinds whose source the kernel shows as it was given (an EFS share, for one, is shown as 127.0.0.1:/).
_SHOWN_BY_NAME = frozenset({"nfs", "nfs4", "cifs", "tmpfs"})


@dataclass(frozen=True)
class Mounted:
    """What /proc/self/mounts says of a mount point, the last mount there: the one that is seen."""

    source: str
    kind: str
    options: frozenset[str]


@dataclass(frozen=True)
class Mount:
    """A file system mounted at a path, and its line in /etc/fstab; that path's line alone is touched.

    `source` and `kind` are fstab's first and third field, such as "10.0.0.9:/data" and "nfs4". On what
    is mounted already, those of ro, rw, noexec, nosuid, nodev and noatime that are named are set at once;
    other options hold from the next mount. Another source is mounted in the old one's place unless that is in
    use. With `present=False` it is unmounted and its line goes.
    """

    source: str
    path: str
    kind: str
    options: tuple[str, ...] = ("defaults",)
    present: bool = True

    def __post_init__(self) -> None:
        fields = (self.source, self.path, self.kind, *self.options)
        if (
            not all(fields)
            or re.search(r"[\n\t]", "".join(fields))
            or re.search("[ ,]", "".join(self.options))
        ):
            raise SettingsError(f"Mount at {self.path!r}: an empty field, or a tab, comma or space in one")
        if not self.path.startswith("/") or posixpath.normpath(self.path) != self.path or self.path == "/":
            raise SettingsError(f"Mount at {self.path!r}: a full path without a / at its end is wanted")

    @property
    def name(self) -> str:
        return f"mount {self.path}"

    @property
    def probe(self) -> str:
        return quoted(_LOOK, f" {_escaped(self.path)} ")

    def drift(self, actual: str) -> str | None:
        mounted, fstab = self._parse(actual)
        return "; ".join(self._differences(mounted, fstab)) or None

    def _differences(self, mounted: Mounted | None, fstab: str) -> Iterator[str]:
        if self.present and mounted is None:
            yield "not mounted"
        if not self.present and mounted is not None:
            yield f"{mounted.source} is mounted"
        if self.present and mounted is not None:
            if not self._is_it(mounted):
                yield f"{mounted.source} ({mounted.kind}) is mounted, wanted {self.source} ({self.kind})"
            elif self._flags_to_set(mounted):
                yield f"mounted without {','.join(self._flags_to_set(mounted))}"
        if self._wanted(fstab) != fstab:
            yield "its line in /etc/fstab differs" if self.present else "it has a line in /etc/fstab"

    def diff(self, actual: str) -> str:
        fstab = self._parse(actual)[1]
        return unified(fstab, self._wanted(fstab), _FSTAB)

    def apply(self, host: Host) -> None:
        mounted = self._parse(host.run(self.probe, sudo=True, expect=(0, 1)).stdout)[0]
        if mounted and not (self.present and self._is_it(mounted)):
            host.run("umount %s", self.path, sudo=True, timeout_s=_MOUNT_LIMIT_S)
            mounted = None
        if self.present and mounted is None:
            self._mount(host)
        elif mounted and self._flags_to_set(mounted):
            flags = ",".join(("remount", *self._bind, *self._flags))
            host.run("mount -o %s %s", flags, self.path, sudo=True, timeout_s=_MOUNT_LIMIT_S)
        # Last: a line for what cannot be mounted might keep the node from booting.
        edit_text(host, _FSTAB, self._wanted, "root", "644")
        host.run("[ ! -d /run/systemd/system ] || systemctl daemon-reload", sudo=True)

    def _mount(self, host: Host) -> None:
        host.run("mkdir -p %s", self.path, sudo=True)
        command = quoted("mount -t %s -o %s %s %s", self.kind, self._options, self.source, self.path)
        try:
            host.run(command, sudo=True, timeout_s=_MOUNT_LIMIT_S)
            if self._bind and self._flags:
                # The first mount of a bind takes the flags of what is bound.
                flags = ",".join(("remount", "bind", *self._flags))
                host.run("mount -o %s %s", flags, self.path, sudo=True)
        except CommandError as error:
            why = next((line for line in reversed(error.last_lines) if "dmesg(1)" not in line), error.problem)
            helper = f"; is the package with mount.{self.kind} installed?" if "helper" in why else ""
            raise HostError(host.node.name, f"{self.source} was not mounted: {why}{helper}") from error

    @property
    def _options(self) -> str:
        return ",".join(self.options) or "defaults"

    @property
    def _bind(self) -> tuple[str, ...]:
        return tuple(option for option in self.options if option in ("bind", "rbind"))

    @property
    def _flags(self) -> tuple[str, ...]:
        return tuple(option for option in self.options if option in _FLAGS)

    def _flags_to_set(self, mounted: Mounted) -> tuple[str, ...]:
        return tuple(flag for flag in self._flags if flag not in mounted.options)

    def _is_it(self, mounted: Mounted) -> bool:
        """Whether this is mounted there, as far as names tell: labels and binds are shown as devices."""
        if self._bind or self.kind not in _SHOWN_BY_NAME:
            return True
        # nfs is shown as nfs4 where that was agreed upon, and a share without its last slash.
        alike = mounted.kind.startswith(self.kind)
        return alike and mounted.source.rstrip("/") == self.source.rstrip("/")

    def _wanted(self, fstab: str) -> str:
        fields = (_escaped(self.source), _escaped(self.path), self.kind, self._options, "0", "0")
        own = re.compile(rf"^\s*[^#\s]\S*\s+{re.escape(_escaped(self.path))}(\s|$)")
        line = "\t".join(fields)
        return set_line(fstab, line, own) if self.present else remove_line(fstab, line, own)

    def _parse(self, actual: str) -> tuple[Mounted | None, str]:
        mounts, _, fstab = ("\n" + actual).partition("\nfstab\n")
        rows = [line.split(" ") for line in mounts.splitlines()]
        mine = [row for row in rows if len(row) == 6 and row[1] == _escaped(self.path)]
        if not mine:
            return None, fstab
        source, _, kind, options = mine[-1][:4]
        return Mounted(_plain(source), kind, frozenset(options.split(","))), fstab


def _escaped(field: str) -> str:
    """As in fstab and /proc/self/mounts: a space would end the field."""
    return field.replace("\\", "\\134").replace(" ", "\\040")


def _plain(field: str) -> str:
    return field.replace("\\040", " ").replace("\\134", "\\")

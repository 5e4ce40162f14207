"""Steps about the kernel's settings."""

from __future__ import annotations

from dataclasses import dataclass

from provision.errors import SettingsError
from provision.host import Host, quoted
from provision.steps.texts import write_text

_LOOK = """
if [ -e %s ]; then echo "now $(cat %s)"; fi
if [ -e %s ]; then echo "kept $(cat %s)"; fi
"""


@dataclass(frozen=True)
class Sysctl:
    """A kernel setting, now and after the next boot (a file of its own in /etc/sysctl.d).

    `key` has dots, and slashes where a part has a dot itself: "net.ipv4.conf.eth0/7.rp_filter".
    """

    key: str
    value: str

    def __post_init__(self) -> None:
        parts = self._path.split("/")
        if "." not in self.key or ".." in parts or "" in parts[1:] or "\n" in self.value:
            raise SettingsError(f"Sysctl({self.key!r}, {self.value!r}): such as net.core.somaxconn, 4096")

    @property
    def name(self) -> str:
        return f"sysctl {self.key}"

    @property
    def probe(self) -> str:
        return quoted(_LOOK, self._path, self._path, self._file, self._file)

    def drift(self, actual: str) -> str | None:
        found = dict(line.split(" ", 1) for line in actual.splitlines() if " " in line)
        if "now" not in found:
            return "this kernel has no such setting; is its module loaded?"
        # The kernel separates several numbers by tabs, people by spaces.
        if found["now"].split() != self.value.split():
            return f"{' '.join(found['now'].split())}, wanted {self.value}"
        if found.get("kept") != self._line:
            return f"not kept in {self._file}"
        return None

    def apply(self, host: Host) -> None:
        # The value first: what the kernel refuses is not to be tried again at every boot.
        # env: dash's own printf says "I/O error" where coreutils' gives the kernel's reason.
        host.run("env printf '%%s\\n' %s > %s", self.value, self._path, sudo=True)
        write_text(host, self._file, f"{self._line}\n", "root", "644")

    @property
    def _path(self) -> str:
        return "/proc/sys/" + self.key.translate(str.maketrans("./", "/."))

    @property
    def _file(self) -> str:
        return f"/etc/sysctl.d/90-clusterctl-{self.key.replace('/', '_')}.conf"

    @property
    def _line(self) -> str:
        return f"{self.key} = {self.value}"

"""Distribution packages."""

from __future__ import annotations

from dataclasses import dataclass

from provision.host import Host, quoted

# A fresh cloud image may still be running its own first apt: wait for the lock instead of failing on it.
_INSTALL = (
    "export DEBIAN_FRONTEND=noninteractive; apt-get -q -o DPkg::Lock::Timeout=120 update"
    " && apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "
)


@dataclass(frozen=True)
class AptPackages:
    """Debian and Ubuntu packages that are installed, at whatever version the distribution has."""

    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return "packages " + " ".join(self.names)

    @property
    def probe(self) -> str:
        # Read from dpkg's own table: dpkg-query would cost a process more.
        pattern = "|".join(name.replace("+", "\\+").replace(".", "\\.") for name in self.names)
        return quoted(
            "awk '/^Package: /{p=$2} /^Status: .* installed$/ && p ~ /^('%s')$/{print p}' "
            "/var/lib/dpkg/status",
            pattern,
        )

    def drift(self, actual: str) -> str | None:
        missing = [name for name in self.names if name not in actual.split()]
        return f"not installed: {' '.join(missing)}" if missing else None

    def apply(self, host: Host) -> None:
        host.run(_INSTALL + " ".join(quoted("%s", name) for name in self.names), sudo=True, timeout_s=900)

"""Distribution packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provision.facts import NodeFacts
from provision.host import Host, quoted
from provision.step import Step
from provision.steps.checks import Verdict

# A fresh cloud image may still be running its own first apt: wait for the lock instead of failing on it.
# A dpkg that was killed half way has to be told to finish before apt does anything again.
_APT = """
export DEBIAN_FRONTEND=noninteractive
install() { apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "$@"; }
set -- %s
apt-get -q -o DPkg::Lock::Timeout=120 update && { install "$@" || { dpkg --configure -a && install "$@"; }; }
"""

# dnf and yum wait for each other's lock by themselves. Amazon Linux 2 has yum alone, which knows no weak
# dependencies.
_DNF = """
if command -v dnf > /dev/null; then dnf="dnf --setopt=install_weak_deps=False"; else dnf=yum; fi
$dnf -q -y install %s
"""

_INSTALL_LIMIT_S = 900.0
_WITH_APT = frozenset({"debian", "ubuntu"})
_WITH_DNF = frozenset({"fedora", "rhel", "centos", "amzn"})


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
        host.run(_APT % _words(self.names), sudo=True, timeout_s=_INSTALL_LIMIT_S)


@dataclass(frozen=True)
class DnfPackages:
    """Packages of Fedora, RHEL and its rebuilds, and Amazon Linux, installed at whatever version.

    A name may also be what a package provides ("nfs-client", "/usr/bin/git"), as dnf takes it.
    """

    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return "packages " + " ".join(self.names)

    @property
    def probe(self) -> str:
        return f"command -v rpm > /dev/null && echo rpm; rpm -q --whatprovides {_words(self.names)}"

    def drift(self, actual: str) -> str | None:
        """From rpm's answers, one or more lines a name; what it lacks it says it lacks."""
        first, *lines = actual.splitlines() or [""]
        if first != "rpm":
            return "there is no rpm on this node"
        missing = [name for name in self.names if any(_says_missing(line, name) for line in lines)]
        return f"not installed: {' '.join(missing)}" if missing else None

    def apply(self, host: Host) -> None:
        host.run(_DNF % _words(self.names), sudo=True, timeout_s=_INSTALL_LIMIT_S)


def _says_missing(line: str, name: str) -> bool:
    return line in (
        f"no package provides {name}",
        f"file {name} is not owned by any package",
        f"error: file {name}: No such file or directory",
    )


def _words(names: tuple[str, ...]) -> str:
    return " ".join(quoted("%s", name) for name in names)


def packages_for(facts: NodeFacts, names: Mapping[str, tuple[str, ...]]) -> Step:
    """The packages of the node's distribution: of the nearest key among its ID and its ID_LIKE.

    Keys are those of /etc/os-release: "debian" is also Ubuntu, "fedora" also RHEL, its rebuilds and Amazon
    Linux; "ubuntu", "rhel" or "amzn" come before them. A distribution that no key fits is named by a
    Verdict.
    """
    family = (facts.os_id, *facts.os_like)
    named = [names[distribution] for distribution in family if distribution in names]
    if named and not _WITH_APT.isdisjoint(family):
        return AptPackages(named[0])
    if named and not _WITH_DNF.isdisjoint(family):
        return DnfPackages(named[0])
    known = ", ".join(sorted(names))
    problem = f"distribution {facts.os_id!r} is not supported"
    return Verdict("packages", problem, f"packages are named for {known}, and for what is like them")

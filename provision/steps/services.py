"""Steps about systemd's services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from provision.errors import HostError
from provision.host import Host, quoted

_PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,ActiveEnterTimestampMonotonic"
# The moment of the start is told since boot: systemd before 247 tells dates only for people to read.
_LOOK = f"""
[ -d /run/systemd/system ] || {{ echo NoSystemd=yes; exit; }}
systemctl show -p {_PROPERTIES} %s
read -r up rest < /proc/uptime; echo "Uptime=$up"; date +Now=%%s.%%N
"""
# What `systemctl enable` has nothing to do for: units without [Install], made by generators, aliases.
_ENABLED = frozenset({"enabled", "static", "generated", "alias", "indirect", "transient"})
_STARTS_AT_BOOT = frozenset({"enabled", "enabled-runtime", "linked"})
# What the clocks' rounding may make of a file that was written just before the start.
_SLACK_S = 0.05
_NO_SYSTEMD = "no systemd runs on this node, so services cannot be managed there"


@dataclass(frozen=True)
class Service:
    """A systemd unit that is enabled and runs; None leaves either as it is.

    `restarted_after` are files that it reads at its start: changed later, it is restarted. On a node
    without systemd the drift says so, and nothing can remove it.
    """

    unit: str
    enabled: bool | None = True
    running: bool | None = True
    restarted_after: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"service {self.unit}"

    @property
    def foreseeable(self) -> bool:
        return not self.restarted_after

    @property
    def probe(self) -> str:
        # ctime: a file that was moved or copied here with an old date has changed all the same.
        files = [quoted("stat -L -c 'File=%%.9Z %%n' %s", file) for file in self.restarted_after]
        return "\n".join([quoted(_LOOK, self.unit), *files])

    def drift(self, actual: str) -> str | None:
        state, changed = _parse(actual)
        if "NoSystemd" in state:
            return _NO_SYSTEMD
        if state.get("LoadState") == "not-found":
            return "no such unit"
        return "; ".join(self._differences(state, changed)) or None

    def _differences(self, state: Mapping[str, str], changed: Mapping[str, float]) -> Iterator[str]:
        at_boot = state.get("UnitFileState", "")
        if self.enabled and at_boot not in _ENABLED:
            yield f"{at_boot or 'not enabled'}, wanted enabled"
        if self.enabled is False and at_boot in _STARTS_AT_BOOT:
            yield f"{at_boot}, wanted disabled"
        shown = f"{state.get('ActiveState', 'unknown')} ({state.get('SubState', 'unknown')})"
        runs = state.get("ActiveState") in ("active", "reloading")
        if self.running and not runs:
            yield f"{shown}, wanted running"
        # A failed one does not run either; "activating" may be a crash loop, and is no rest.
        if self.running is False and state.get("ActiveState") not in ("inactive", "failed"):
            yield f"{shown}, wanted stopped"
        if state.get("NeedDaemonReload") == "yes":
            yield "its unit file is not the one that systemd has read"
        if self.running and runs:
            later = _later(state, changed)
            if later:
                yield f"runs since before {', '.join(later)} changed"

    def apply(self, host: Host) -> None:
        state, changed = _parse(host.run(self.probe, sudo=True, expect=(0, 1)).stdout)
        if "NoSystemd" in state:
            raise HostError(host.node.name, f"{self.unit}: {_NO_SYSTEMD}")
        verbs = {
            "enable": self.enabled is True,
            "disable": self.enabled is False,
            "restart": self.running is True and bool(_later(state, changed)),
            "start": self.running is True,
            "stop": self.running is False,
        }
        commands = [quoted(f"systemctl {verb} %s", self.unit) for verb, wanted in verbs.items() if wanted]
        host.run(" && ".join(["systemctl daemon-reload", *commands]), sudo=True)


def _parse(actual: str) -> tuple[dict[str, str], dict[str, float]]:
    """systemd's properties, and when each file was last changed, in seconds since the epoch."""
    rows = [line.partition("=") for line in actual.splitlines()]
    state = {key: value for key, _, value in rows if key != "File"}
    files = [value.partition(" ") for key, _, value in rows if key == "File"]
    return state, {path: float(seconds) for seconds, _, path in files}


def _later(state: Mapping[str, str], changed: Mapping[str, float]) -> list[str]:
    """The files that changed after the service started; none when it never did."""
    started_us = int(state.get("ActiveEnterTimestampMonotonic") or 0)
    if not started_us:
        return []
    started_s = float(state["Now"]) - float(state["Uptime"]) + started_us / 1e6
    return [path for path, seconds in changed.items() if seconds > started_s + _SLACK_S]

"""Steps for what no other step is for: a guarded command, a download."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from provision.errors import CommandError, HostError, SettingsError
from provision.host import COMMAND_TIMEOUT_S, Host, quoted
from provision.steps.texts import octal


@dataclass(frozen=True)
class Command:
    """A script that runs, as root, when its guard says that there is something to do.

    One guard: `unless`, a script that only reads, whose exit code 0 means that there is nothing to do; or
    `creates`, a path that the script makes, as the last thing it does. The guard is asked again after it,
    and must be content. In check mode a guard after a step that would change something cannot be foreseen.
    """

    name: str
    script: str
    unless: str = ""
    creates: str = ""
    timeout_s: float = COMMAND_TIMEOUT_S
    secret: bool = False

    foreseeable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if bool(self.unless.strip()) == bool(self.creates):
            raise SettingsError(
                f"Command {self.name!r}: give it one guard, `unless` or `creates`, or it runs every time"
            )

    @property
    def probe(self) -> str:
        # A sh of its own: a slip in the guard's syntax would end all the probes that travel with it.
        guard = self.unless or quoted("[ -e %s ]", self.creates)
        return quoted("sh -c %s < /dev/null > /dev/null 2>&1 && echo content", guard)

    def drift(self, actual: str) -> str | None:
        if actual.strip() == "content":
            return None
        return f"no {self.creates}" if self.creates else "its guard says that there is something to do"

    def apply(self, host: Host) -> None:
        host.run(self.script, sudo=True, timeout_s=self.timeout_s)


# The URL comes by stdin and may hold a signature: neither `ps` nor an error shows it.
_FETCH = """
target=$(readlink -m %s) && folder=$(dirname "$target") && mkdir -p "$folder" || exit 1
new=$folder/.$(basename "$target").clusterctl-new
fetch() {
    rm -rf "$new" && umask 077 && : > "$new" || return
    if command -v curl > /dev/null; then curl -fsSL --retry 3 --connect-timeout 20 -K - -o "$new"
    else /usr/bin/python3 -c "$with_python" > "$new"; fi
}
with_python='
import json, re, shutil, sys, urllib.request
url = json.loads(re.search("url = (.*)", sys.stdin.read())[1])
try:
    with urllib.request.urlopen(url, timeout=60) as answer:
        shutil.copyfileobj(answer, sys.stdout.buffer)
except OSError as error:
    sys.exit(str(error))
'
check() {
    got=$(sha256sum < "$new") && got=${got%%%% *}
    [ "$got" = %s ] || { echo "its sha256 is $got" >&2; return 1; }
}
fetch && check && chown %s: "$new" && chmod %s "$new" && mv -fT "$new" "$target" || { rm -rf "$new"; exit 1; }
"""
_FETCH_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Download:
    """A file from the web, moved into place only if its SHA-256 is the one given.

    With curl, else with the node's Python. The file is read whole at every run: for many GB, have a Command
    with `creates`.
    """

    url: str = field(repr=False)
    path: str
    sha256: str
    owner: str = "root"
    mode: str = "644"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-fA-F]{64}", self.sha256):
            raise SettingsError(f"Download {self.path}: sha256 is 64 hexadecimal digits, not {self.sha256!r}")
        if not re.fullmatch(r"[a-z]+://[^\s\"\\]+", self.url):
            raise SettingsError(f"Download {self.path}: not a URL")

    @property
    def name(self) -> str:
        return f"download {self.path}"

    @property
    def probe(self) -> str:
        look = "[ -e %s ] && stat -L -c '%%U %%a' %s && sha256sum < %s"
        return quoted(look, self.path, self.path, self.path)

    def drift(self, actual: str) -> str | None:
        words = actual.split()
        if len(words) < 3:
            return "no such file"
        if words[2] != self.sha256.lower():
            return f"its sha256 is {words[2][:12]}…, wanted {self.sha256[:12].lower()}…"
        if words[:2] != [self.owner, octal(self.mode)]:
            return f"{words[0]} {words[1]}, wanted {self.owner} {octal(self.mode)}"
        return None

    def apply(self, host: Host) -> None:
        try:
            self._fetch(host)
        except CommandError as error:
            why = error.last_lines[-1] if error.last_lines else f"exit code {error.command_exit_code}"
            raise HostError(host.node.name, f"{self.path} was not downloaded: {why}") from None

    def _fetch(self, host: Host) -> None:
        host.run(
            _FETCH, self.path, self.sha256.lower(), self.owner, octal(self.mode),
            sudo=True, stdin=f'url = "{self.url}"\n'.encode(), timeout_s=_FETCH_LIMIT_S,
        )  # fmt: skip

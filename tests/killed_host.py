"""A Host that is killed in the middle of a step: with SIGKILL, at a chosen command of its scripts.

A folder of small scripts stands before the real commands on PATH. Each counts itself; at the chosen count
it kills its whole process group, before the real command runs, or, if it is to write what it was sent, after
it has written the first bytes of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision.errors import ClusterctlError
from provision.host import CommandResult, Host, Stream, quoted
from provision.model import Node
from provision.step import Step

WATCHED = """
    base64 basename cat chmod chown cp curl dirname dpkg grep groupadd install ln mkdir mktemp mount mv pwconv
    python3 readlink rm runuser sha256sum touch umount useradd usermod
"""

_SHIM = """#!/bin/sh
read -r count < FOLDER/count
count=$((count + 1))
echo $count > FOLDER/count
read -r last < FOLDER/last
if [ $count -ge $last ]; then
    [ $# != 0 ] || [ "${0##*/}" != cat ] || /usr/bin/head -c 7
    kill -9 0
fi
exec "$(PATH=${PATH#FOLDER:} command -v "${0##*/}")" "$@"
"""

_LAY_OUT = """
mkdir -p FOLDER && chmod 777 FOLDER && cd FOLDER || exit 1
[ -e shim ] || { cat > shim; chmod 755 shim; for name in NAMES; do ln shim $name; done; }
echo 0 > count; echo LAST > last; chmod 666 count
"""


class KilledHost:
    """The host, whose commands are counted over all its scripts and killed at the one numbered `at`."""

    def __init__(self, host: Host, folder: str, at: int) -> None:
        self._host = host
        self._folder = folder
        values = {"FOLDER": folder, "NAMES": " ".join(WATCHED.split()), "LAST": str(at)}
        script = _LAY_OUT
        for name, value in values.items():
            script = script.replace(name, value)
        host.run(script, stdin=_SHIM.replace("FOLDER", folder).encode())

    @property
    def count(self) -> int:
        """How many commands have been started."""
        return int(self._host.run("cat %s/count", self._folder).stdout)

    @property
    def node(self) -> Node:
        return self._host.node

    def run(
        self,
        script: str,
        *args: str,
        sudo: bool = False,
        stdin: bytes = b"",
        expect: Sequence[int] = (0,),
        timeout_s: float = 60,
    ) -> CommandResult:
        watched = f"PATH={self._folder}:$PATH\n{quoted(script, *args)}"
        return self._host.run(watched, sudo=sudo, stdin=stdin, expect=expect, timeout_s=timeout_s)

    def stream(self, script: str, *args: str) -> Stream:
        raise NotImplementedError("no step streams")

    def close(self) -> None:
        return None


def killed_at(step: Step, host: Host, folder: str, at: int) -> bool:
    """Apply the step and kill it at its command numbered `at`. False when it had done before."""
    killed = KilledHost(host, folder, at)
    try:
        step.apply(killed)
    except ClusterctlError:
        assert killed.count >= at
        return True
    return killed.count >= at

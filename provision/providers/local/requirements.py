"""What this machine must have before it can hold nodes; found out before anything is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from provision.errors import ProviderError

PACKAGES = {
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "sudo": "sudo",
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "taskset": "util-linux",
    "mount": "mount",
}
# An ordinary user's PATH lacks the folders where sshd, ip and tc live.
TOOL_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))

Find = Callable[[str], str | None]


def find_tool(name: str) -> str | None:
    return shutil.which(name, path=TOOL_PATH)


def check_tools(find: Find = find_tool) -> None:
    """Raises ProviderError with the command that installs what is missing."""
    missing = sorted({package for tool, package in PACKAGES.items() if find(tool) is None})
    if missing:
        names = missing[0] if len(missing) == 1 else f"{', '.join(missing[:-1])} and {missing[-1]}"
        raise ProviderError(f"local nodes need {names}: sudo apt-get install -y {' '.join(missing)}")


def root_prefix() -> tuple[str, ...]:
    """What to put before a command for it to run as root; nothing when we are.

    Raises ProviderError when there is no way.
    """
    if os.geteuid() == 0:
        return ()
    asked = ("sudo", "-n", "true")
    if find_tool("sudo") and subprocess.run(asked, capture_output=True, check=False).returncode == 0:
        return ("sudo", "-n")
    raise ProviderError(
        "local nodes need root: run as root, or let sudo work without a password "
        "(`sudo -v` beforehand is enough); `sudo -n true` failed"
    )

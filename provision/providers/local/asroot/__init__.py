"""The half of the local provider that runs as root: standard library only, nothing of clusterctl.

`entry.py` starts and stops a cluster from the machine's own namespaces, `supervisor.py` holds it.
Both are started as `python -I -S` with only this folder's parent on the path, so that the supervisor
stays small (10 MB) and needs no virtual environment. Hence relative imports only in here, and
`Refused` in place of the house's errors: the operator's half turns it into a ProviderError.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


class Refused(Exception):
    """A request that cannot be met; the message is one line for the user."""


def run(*argv: str, stdin: str | None = None) -> str:
    """Standard output of a command.

    Raises Refused with the command and its last line of error.
    """
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"`{' '.join(argv)}` ended with exit code {done.returncode}: {_last(done.stderr)}")
    return done.stdout


def quietly(*argv: str) -> bool:
    """True when the command succeeded; used where absence is as good as removal."""
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def ip_batch(lines: Sequence[str]) -> None:
    """Several `ip` commands in one process, as one process costs more than the command."""
    run("ip", "-batch", "-", stdin="\n".join(lines) + "\n")


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"

"""What travels between the operator's machine and the run folders of the nodes, as tar; and the sweep."""

from __future__ import annotations

import base64
import tarfile
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO

from provision.errors import CommandError, HostError
from provision.host import COMMAND_TIMEOUT_S, Host, Stream
from run.job import OUTPUT_FOLDER, LaunchPlan
from run.parcel import Parcel
from run.program import WORK_FOLDER

SILENCE_S = 60.0  # without a byte from a node that is sending its files
SWEEP_TIMEOUT_S = 15.0
SLOWEST_BYTES_S = 1e6  # of a way to a node that still counts as one

THERE_ALREADY = 17
NOT_OURS = 18
SAME_HOST_NAME = 19

# Large files come from the store of the home, where other runs, of other nodes too, may be at work meanwhile.
_FILL = """tar -xzf -
files=../../files
mkdir -p $files; for large in .large/?????????????????????????????????*; do
  [ ! -e "$large" ] || mv "$large" $files/
done
while read -r digest path; do
  mkdir -p "$(dirname "$path")"; cp -p $files/$digest "$path"; touch -ac $files/$digest
done < .large/paths
rm -r .large; find $files -type f -atime +30 -delete 2>/dev/null || :"""

# mkdir without -p: two runs must never share a folder. `made` is the last file that is written.
_UNPACK = f"""set -e
run=%s
mkdir -p ~/.clusterctl/runs; cd ~/.clusterctl/runs
if ! why=$(mkdir "$run" 2>&1); then
  [ -d "$run" ] && exit {THERE_ALREADY}
  echo "$why" >&2; exit 1
fi
trap 'rm -rf ~/.clusterctl/runs/"$run"' EXIT; trap 'exit 1' HUP TERM
cd "$run"
{_FILL}
mkdir logs nodes
echo %s > "nodes/$(uname -n)"
echo %s %s > made
trap - EXIT"""

# A node is known by its host name there: whose file it is must not depend on who reads it.
_JOIN = f"""cd ~/.clusterctl/runs/%s && read -r token maker < made && [ "$token" = %s ] || exit {NOT_OURS}
own="nodes/$(uname -n)"
(set -C; echo %s > "$own") 2>/dev/null || {{ echo "$(uname -n) $(cat "$own")"; exit {SAME_HOST_NAME}; }}
echo "$maker\""""

_ADD = f"""set -e
cd ~/.clusterctl/runs/%s
{_FILL}"""

# Touched, so that no other run of this home takes it for old meanwhile.
_MISSING = """mkdir -p ~/.clusterctl/files && cd ~/.clusterctl/files && while read -r digest; do
  [ -e "$digest" ] && touch -ac "$digest" || echo "$digest"
done"""

# Checkpoints stay on the head: with the optimizer's state they are three times the model.
_PACK_LOGS = """cd ~/.clusterctl/runs/%s || exit 1
tar -cf - logs | base64 -w 61440"""
# Of somebody's own program, what it made or changed: `made` was the last file written before it began.
_PACK_ALL = f"""cd ~/.clusterctl/runs/%s || exit 1
{{ find logs {OUTPUT_FOLDER} -name 'checkpoint-*' -prune -o -print 2>/dev/null
  find {WORK_FOLDER} -type f -newer made ! -path '*/__pycache__/*' 2>/dev/null
}} | tar -cf - --no-recursion --verbatim-files-from -T - --transform 's,^{WORK_FOLDER}/,{OUTPUT_FOLDER}/,' |
base64 -w 61440"""

_PACK_FOLDER = """cd ~/.clusterctl/runs/%s || exit 1
tar -cf - -- %s | base64 -w 61440"""

# `made` is younger than all that was brought, and older than all that the run made. Logs have been fetched.
_PRUNE = """cd ~/.clusterctl/runs/%s || exit 0
rm -rf logs nodes inductor exit_code checkpoint_wanted .checkpoint_wanted-*
find . -type f ! -newer made ! -path ./made -delete
find . -name __pycache__ -prune -exec rm -rf {} +
find . -mindepth 1 -type d -empty -delete
[ "$(ls -A)" != made ] || rm -rf "$PWD\""""

# By the run id in the environment that every process of the run was born with, twice, because a process
# may be forking while the first look is taken. What is just about to end by itself may do so.
_SWEEP = """mark=CLUSTERCTL_RUN_ID=%s
find_left() { grep -lzxsF -e "$mark" /proc/[0-9]*/environ | cut -d/ -f3; }
killed=0
[ -z "$(find_left)" ] || sleep 0.3
for round in 1 2 3; do
  left=$(find_left)
  [ -z "$left" ] && break
  for pid in $left; do kill -KILL "$pid" 2>/dev/null && killed=$((killed + 1)); done
  sleep 0.2
done
echo "$killed $(find_left | wc -l)\""""


def upload(host: Host, plan: LaunchPlan, parcel: Parcel, token: str) -> bool:
    """Make the run folder on the node and fill it; `token` tells this launch from any other.

    False where a folder of that name is there already: see join. Raises HostError.
    """
    try:
        _send(host, parcel, _UNPACK, plan.run_id, host.node.name, token, host.node.name)
    except CommandError as error:
        if error.command_exit_code == THERE_ALREADY:
            return False
        raise _not_brought(error) from error
    return True


def join(host: Host, plan: LaunchPlan, token: str) -> str:
    """Sign in at the run folder that another node of this launch made in the home that both have; its name.

    Raises HostError where it is another run's.
    """
    try:
        return host.run(_JOIN, plan.run_id, token, host.node.name, timeout_s=SWEEP_TIMEOUT_S).stdout.strip()
    except CommandError as error:
        raise _not_joined(host, plan, error) from error


def add(host: Host, plan: LaunchPlan, parcel: Parcel) -> None:
    """More files into the run folder. Raises HostError."""
    try:
        _send(host, parcel, _ADD, plan.run_id)
    except CommandError as error:
        raise _not_brought(error) from error


def _send(host: Host, parcel: Parcel, script: str, *args: str) -> None:
    """The script with the parcel as its stdin, less the large files that the node has. Raises HostError."""
    missing: Collection[str] = ()
    if parcel.digests:
        asked = "".join(f"{digest}\n" for digest in sorted(parcel.digests)).encode()
        missing = host.run(_MISSING, stdin=asked).stdout.split()
    packed = parcel.packed(missing)
    limit_s = COMMAND_TIMEOUT_S + len(packed) / SLOWEST_BYTES_S
    host.run(script, *args, stdin=packed, timeout_s=limit_s)


def _not_brought(error: CommandError) -> HostError:
    why = error.last_lines[-1] if error.last_lines else f"exit code {error.command_exit_code}"
    return HostError(error.host, f"the run's files could not be brought there: {why}")


def _not_joined(host: Host, plan: LaunchPlan, error: CommandError) -> HostError:
    if error.command_exit_code == NOT_OURS:
        return HostError(
            host.node.name, f"{plan.run_folder} is there already, of another run; start this one again"
        )
    if error.command_exit_code == SAME_HOST_NAME:
        its, peer = error.last_lines[-1].split()
        return HostError(
            host.node.name,
            f"its host name {its} is {peer}'s too, and both have one home; give each machine its own "
            "(`hostnamectl set-hostname`)",
        )
    return error


class Unwanted(HostError):
    """The user does not wait for what is being fetched."""


def fetch(
    host: Host, run_id: str, into: Path, *, with_output: bool, is_unwanted: Callable[[], bool] = lambda: False
) -> None:
    """The node's logs, and the head's output folder, unpacked under `into`.

    Raises HostError; Unwanted, with nothing unpacked, once it is.
    """
    stream = host.stream(_PACK_ALL if with_output else _PACK_LOGS, run_id)
    _fetch(host, run_id, into, stream, is_unwanted)


def fetch_folder(host: Host, run_id: str, path: str, into: Path) -> None:
    """The folder `path` of the node's run folder, unpacked under `into`. Raises HostError."""
    _fetch(host, run_id, into, host.stream(_PACK_FOLDER, run_id, path), lambda: False)


def _fetch(host: Host, run_id: str, into: Path, stream: Stream, is_unwanted: Callable[[], bool]) -> None:
    """Unpack what comes, as base64 because a Stream carries lines of text. Raises HostError."""
    try:
        with tempfile.TemporaryFile() as spool:
            _receive(host.node.name, stream, spool, is_unwanted)
            spool.seek(0)
            with tarfile.open(fileobj=spool) as archive:
                archive.extractall(into, members=[entry for entry in archive if _harmless(entry)])  # noqa: S202
    except (tarfile.TarError, ValueError, OSError) as error:
        raise HostError(host.node.name, f"its files of run {run_id} did not arrive whole: {error}") from error
    finally:
        stream.close()


def forget(host: Host, run_id: str) -> None:
    """Remove the run's folder from the node, unless it holds checkpoints. Raises HostError."""
    script = "cd ~/.clusterctl/runs && { ls -d %s/output/checkpoint-* >/dev/null 2>&1 || rm -rf %s; }"
    host.run(script, run_id, run_id, timeout_s=SWEEP_TIMEOUT_S)


def prune(host: Host, run_id: str) -> None:
    """Of the run's folder on the node only what the run itself has made stays. Raises HostError."""
    host.run(_PRUNE, run_id, timeout_s=SWEEP_TIMEOUT_S)


def sweep(host: Host, run_id: str) -> tuple[int, int]:
    """Kill what the run left on the node: (processes killed, processes that would not go).

    Raises HostError.
    """
    said = host.run(_SWEEP, run_id, timeout_s=SWEEP_TIMEOUT_S).stdout.split()
    return int(said[0]), int(said[1])


def _receive(node: str, stream: Stream, spool: IO[bytes], is_unwanted: Callable[[], bool]) -> None:
    heard_s = time.monotonic()
    while not is_unwanted():
        try:
            line = stream.readline(0.5)
        except EOFError:
            return
        if line is not None:
            heard_s = time.monotonic()
            spool.write(base64.b64decode(line, validate=True))
        elif time.monotonic() - heard_s > SILENCE_S:
            raise HostError(node, f"no data for {SILENCE_S:.0f} s while fetching files of the run")
    raise Unwanted(node, "files of the run were not fetched to their end")


def _harmless(entry: tarfile.TarInfo) -> bool:
    """A file or folder that stays below the folder it is unpacked in.

    tarfile's own filter="data" would do, but Python before 3.11.4 (Debian 12's) has none.
    """
    path = Path(entry.name)
    return (entry.isfile() or entry.isdir()) and not path.is_absolute() and ".." not in path.parts

"""What travels between the operator's machine and the run folders of the nodes, as tar; and the sweep."""

from __future__ import annotations

import base64
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

from provision.errors import HostError
from provision.host import COMMAND_TIMEOUT_S, Host, Stream
from run.job import OUTPUT_FOLDER, LaunchPlan
from run.parcel import Parcel
from run.program import WORK_FOLDER

SILENCE_S = 60.0  # without a byte from a node that is sending its files
SWEEP_TIMEOUT_S = 15.0
SLOWEST_BYTES_S = 1e6  # of a way to a node that still counts as one

# mkdir without -p: two runs must never share a folder.
_UNPACK = """set -e
mkdir -p ~/.clusterctl/runs; cd ~/.clusterctl/runs
mkdir %s; cd %s
tar -xzf -
files=../../files
mkdir -p $files; for large in .large/?????????????????????????????????*; do
  [ ! -e "$large" ] || mv "$large" $files/
done
while read -r digest path; do
  mkdir -p "$(dirname "$path")"; cp -p $files/$digest "$path"; touch -a $files/$digest
done < .large/paths
rm -r .large; find $files -type f -atime +30 -delete
echo %s > node
mkdir logs"""

_MISSING = """mkdir -p ~/.clusterctl/files && cd ~/.clusterctl/files && while read -r digest; do
  [ -e "$digest" ] || echo "$digest"
done"""

# Checkpoints stay on the head: with the optimizer's state they are three times the model.
_PACK_LOGS = """cd ~/.clusterctl/runs/%s || exit 1
tar -cf - logs | base64 -w 61440"""
# Of somebody's own program, what it made or changed: `node` was the last file written before it began.
_PACK_ALL = f"""cd ~/.clusterctl/runs/%s || exit 1
{{ find logs {OUTPUT_FOLDER} -name 'checkpoint-*' -prune -o -print 2>/dev/null
  find {WORK_FOLDER} -type f -newer node ! -path '*/__pycache__/*' 2>/dev/null
}} | tar -cf - --no-recursion --verbatim-files-from -T - --transform 's,^{WORK_FOLDER}/,{OUTPUT_FOLDER}/,' |
base64 -w 61440"""

_PACK_FOLDER = """cd ~/.clusterctl/runs/%s || exit 1
tar -cf - -- %s | base64 -w 61440"""

# By the run id in the environment that every process of the run was born with, twice, because a process
# may be forking while the first look is taken.
_SWEEP = """mark=CLUSTERCTL_RUN_ID=%s
find_left() { grep -lzxsF -e "$mark" /proc/[0-9]*/environ | cut -d/ -f3; }
killed=0
for round in 1 2 3; do
  left=$(find_left)
  [ -z "$left" ] && break
  for pid in $left; do kill -KILL "$pid" 2>/dev/null && killed=$((killed + 1)); done
  sleep 0.2
done
echo "$killed $(find_left | wc -l)\""""


def upload(host: Host, plan: LaunchPlan, parcel: Parcel) -> None:
    """Make the run folder on the node and fill it. Raises HostError."""
    missing: Collection[str] = ()
    if parcel.digests:
        asked = "".join(f"{digest}\n" for digest in sorted(parcel.digests)).encode()
        missing = host.run(_MISSING, stdin=asked).stdout.split()
    packed = parcel.packed(missing)
    limit_s = COMMAND_TIMEOUT_S + len(packed) / SLOWEST_BYTES_S
    host.run(_UNPACK, plan.run_id, plan.run_id, host.node.name, stdin=packed, timeout_s=limit_s)


def fetch(host: Host, run_id: str, into: Path, *, with_output: bool) -> None:
    """The node's logs, and the head's output folder, unpacked under `into`.

    Raises HostError.
    """
    _fetch(host, run_id, into, host.stream(_PACK_ALL if with_output else _PACK_LOGS, run_id))


def fetch_folder(host: Host, run_id: str, path: str, into: Path) -> None:
    """The folder `path` of the node's run folder, unpacked under `into`. Raises HostError."""
    _fetch(host, run_id, into, host.stream(_PACK_FOLDER, run_id, path))


def _fetch(host: Host, run_id: str, into: Path, stream: Stream) -> None:
    """Unpack what comes, as base64 because a Stream carries lines of text. Raises HostError."""
    try:
        with tempfile.TemporaryFile() as spool:
            _receive(host.node.name, stream, spool)
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


def sweep(host: Host, run_id: str) -> tuple[int, int]:
    """Kill what the run left on the node: (processes killed, processes that would not go).

    Raises HostError.
    """
    said = host.run(_SWEEP, run_id, timeout_s=SWEEP_TIMEOUT_S).stdout.split()
    return int(said[0]), int(said[1])


def _receive(node: str, stream: Stream, spool: IO[bytes]) -> None:
    while True:
        try:
            line = stream.readline(SILENCE_S)
        except EOFError:
            return
        if line is None:
            raise HostError(node, f"no data for {SILENCE_S:.0f} s while fetching files of the run")
        spool.write(base64.b64decode(line, validate=True))


def _harmless(entry: tarfile.TarInfo) -> bool:
    """A file or folder that stays below the folder it is unpacked in.

    tarfile's own filter="data" would do, but Python before 3.11.4 (Debian 12's) has none.
    """
    path = Path(entry.name)
    return (entry.isfile() or entry.isdir()) and not path.is_absolute() and ".." not in path.parts

"""Run a script as one rank of a distributed run. Self-contained: copied to a node, it needs only Python.

    mpirun ... python rank.py [--node NODE] [--folder FOLDER] SCRIPT [ARGUMENT ...]
    mpirun ... python rank.py [--node NODE] [--folder FOLDER] --program PROGRAM [ARGUMENT ...]

1. Knows its place from whatever launcher started it, and gives the script the variables of torchrun.
2. Pins itself to the CPUs that plan.json beside it names for this rank.
3. Copies the script's output to logs/rank-NNN.log, and to its own stdout with the prefix "[rank] ".
4. Reports start, a heartbeat every 5 s (with the CPU seconds used so far), and exit as lines
   `@clusterctl {json}`.
5. Leaves nothing behind: the script and all it started end with this process, even when it is killed.
6. Sees when the node is about to end: NOTICE, or the file that CLUSTERCTL_NOTICE names, is then there, one
   JSON object {"reason": ..., "ends_at": seconds since 1970}. Reports it once a node as the event "notice"
   (with left_s, which no clock that is wrong can spoil), and asks the script for a checkpoint: the file that
   CLUSTERCTL_CHECKPOINT_REQUEST names to the script, absent until then, holds the same object. A script that
   looks for it saves all it needs to go on and ends with 0; one that does not look is stopped in time.

Ends with the script's exit code, 128 + number for a signal, 2 when the script could not be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

HEARTBEAT_S = 5.0
NOTICE = "/run/clusterctl/notice"
NOTICE_EVERY_S = 1.0  # a stat of 2 µs; there are two minutes
STALE_S = 600.0  # a notice this long past its end was about something else: this node still runs
REQUEST = "checkpoint_wanted"
STOP_GRACE_S = 5.0
LAST_LINES = 10
PREFIX = b"@clusterctl "
LINE_LIMIT = 4096  # bytes of a line on stdout; the log has all of it
WRITE_LIMIT = 8192  # bytes of a write, see Output
PR_SET_PDEATHSIG = 1
FOLDER = Path(__file__).resolve().parent

LAUNCHERS = (
    # rank, world size, local rank, ranks on this node
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # Intel MPI, MPICH
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun, docker, Kubernetes
)
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(1 << 26),
}
TCMALLOC_SETTINGS = {
    "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": str(1 << 50),  # else it reports each one over 1 GiB on stderr
    "TCMALLOC_RELEASE_RATE": "0",  # what it gave back to the kernel costs page faults a step later
}
TCMALLOC = ("*/libtcmalloc_minimal.so.4", "*/libtcmalloc.so.4")  # under /usr/lib


class RankError(Exception):
    """The script cannot be started. One line: what, where, what next."""


@dataclass(frozen=True)
class Place:
    """This process among all: `rank` of `world_size`, `local_rank` of `local_size` on `node`."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    node: str


def read_place(environ: Mapping[str, str], node: str) -> Place:
    """The place that the launcher's variables tell; the first launcher in LAUNCHERS that set any wins.

    Raises RankError when none did: a silent world of one would train every rank alone.
    """
    for names in LAUNCHERS:
        if names[0] in environ and names[1] in environ:
            rank, world_size = int(environ[names[0]]), int(environ[names[1]])
            local_rank = int(environ.get(names[2], "0"))
            return Place(rank, world_size, local_rank, int(environ.get(names[3], "1")), node)
    raise RankError(
        "no launcher told which rank this is (PMI_RANK, OMPI_COMM_WORLD_RANK or RANK); start it with mpirun "
        "or torchrun"
    )


def read_plan(folder: Path) -> dict[str, Any]:
    """plan.json of the run folder; empty when the launcher made none."""
    path = folder / "plan.json"
    return json.loads(path.read_text()) if path.exists() else {}


def read_node(folder: Path) -> str:
    """The node's name in the cluster: nodes may share the folder, and each has the file nodes/HOSTNAME in it.

    Its host name when there is none.
    """
    hostname = socket.gethostname()
    path = folder / "nodes" / hostname
    return path.read_text().strip() if path.exists() else hostname


def own_placement(plan: Mapping[str, Any], place: Place) -> Mapping[str, Any]:
    """The plan's entry for this rank, {} without a plan.

    By its place on its node where the launcher numbers ranks as it likes. Raises RankError when the launcher
    put the rank elsewhere: its CPUs would be another node's.
    """
    if "ranks" not in plan:
        return {}
    key, number = ("local_rank", place.local_rank) if plan.get("renumbers") else ("rank", place.rank)
    for entry in plan["ranks"]:
        if (entry[key], entry["node"]) == (number, place.node):
            return dict(entry)
    raise RankError(
        f"the launcher put rank {place.rank} on {place.node}, the plan does not; compare its hostfile with "
        "`ranks` in plan.json"
    )


def pin(wanted: str, allowed: set[int]) -> set[int]:
    """The CPUs of "0-2,5" among the allowed ones, all allowed ones for "".

    Raises RankError when none is left.
    """
    cpus = {cpu for part in wanted.split(",") if part for cpu in _range(part)}
    if not cpus:
        return allowed
    if not cpus & allowed:
        raise RankError(
            f"CPUs {wanted} are wanted, this session may use {sorted(allowed)}; gather facts again with "
            "clusterctl up"
        )
    return cpus & allowed


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def cpus_of_machine() -> set[int]:
    """Every CPU this process may pin itself to: its cpuset, not the narrower mask a launcher left."""
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return os.sched_getaffinity(0) or before


def script_environment(
    environ: Mapping[str, str], plan: Mapping[str, Any], place: Place, threads: int
) -> dict[str, str]:
    """What the script sees: the launcher's environment, the node's, and the place in torchrun's words."""
    node = plan.get("nodes", {}).get(place.node, {}).get("environment", {})
    return {
        "PYTHONUNBUFFERED": "1",
        # c10d warns for every address that has no name in the DNS, where a rank's last line should tell why.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # torch makes the folder even where nothing is compiled; else it is in /tmp, and stays there.
        # Each node has its own, since nodes that share the folder may have different CPUs.
        "TORCHINDUCTOR_CACHE_DIR": str(FOLDER / "inductor" / place.node),
        **preload(environ),
        **environ,
        **node,
        # The library `speed` lies there: any script can import it.
        "PYTHONPATH": os.pathsep.join(filter(None, (str(FOLDER / "lib"), environ.get("PYTHONPATH")))),
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        # Always set: torchrun forces 1, and OpenMP's own default counts hyperthreads.
        "OMP_NUM_THREADS": str(threads),
        "CLUSTERCTL_CHECKPOINT_REQUEST": str(FOLDER / REQUEST),
    }


def with_setvars(
    environment: Mapping[str, str], packages: str = "lib/python3*/site-packages"
) -> dict[str, str]:
    """The environment as Intel's oneCCL wants it sourced before a process begins, where ccl may be used.

    Its setvars.sh says where its libraries and those of its MPI are. Before 1.12 it had another name.
    """
    if environment.get("CLUSTERCTL_BACKEND") not in ("ccl", "auto"):
        return dict(environment)
    names = ("oneccl_bindings_for_pytorch", "torch_ccl")
    found = [path for name in names for path in Path(sys.prefix).glob(f"{packages}/{name}/env/setvars.sh")]
    if not found:
        return dict(environment)
    argv = ("bash", "-c", '. "$0" >/dev/null 2>&1; env -0', str(found[0]))
    done = subprocess.run(argv, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True)
    pairs = (
        each.decode(errors="surrogateescape").partition("=") for each in done.stdout.split(b"\0") if each
    )
    return {**environment, **{name: value for name, _, value in pairs if name not in ("_", "SHLVL", "PWD")}}


def preload(environ: Mapping[str, str]) -> dict[str, str]:
    """tcmalloc where it is installed: a third of a step is page faults under glibc's malloc. Where it is not,
    glibc's is told to keep what it has."""
    if "LD_PRELOAD" in environ:
        return {}
    found = [path for pattern in TCMALLOC for path in sorted(Path("/usr/lib").glob(pattern))]
    if not found:
        return KEEP_MEMORY
    return {"LD_PRELOAD": str(found[0]), **TCMALLOC_SETTINGS}


# --- output ------------------------------------------------------------------------------------


class Output:
    """Whole lines on stdout, unmixed with other ranks' even behind mpirun.

    hydra reads a rank's pipe in chunks of 16 KiB and cuts lines there: of 160,000 lines of 1 kB from 8
    ranks 10,480 arrived mixed. So the pipe is let run empty before each write of at most 8 KiB: then every
    chunk is whole lines, and none of 40,000 was mixed.
    """

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        self._waiting = bytearray()

    def line(self, line: bytes) -> None:
        """Take one line without its newline; written by flush(), or when enough have come together."""
        if len(self._waiting) + len(line) + 1 > WRITE_LIMIT:
            self.flush()
        self._waiting += line + b"\n"

    def event(self, event: str, **fields: object) -> None:
        self.line(PREFIX + json.dumps({"event": event, **fields}).encode())
        self.flush()

    def flush(self) -> None:
        text, self._waiting = bytes(self._waiting), bytearray()
        while text:
            self._await_empty_pipe()
            text = text[os.write(self._descriptor, text) :]

    def _await_empty_pipe(self, limit_s: float = 5.0) -> None:
        deadline = time.monotonic() + limit_s
        reader_gone = select.poll()
        reader_gone.register(self._descriptor, 0)  # reports POLLERR unasked
        while self._is_pipe and self._unread() and time.monotonic() < deadline:
            if reader_gone.poll(1):
                return

    def _unread(self) -> int:
        answer = fcntl.ioctl(self._descriptor, termios.FIONREAD, b"\0" * 4)
        return int(struct.unpack("i", answer)[0])


class Copier:
    """The script's output, line by line: all to the log, prefixed to stdout, its events with the rank."""

    def __init__(self, output: Output, log: BinaryIO, rank: int) -> None:
        self._output, self._log, self._rank = output, log, rank
        self._partial = b""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)

    def feed(self, chunk: bytes) -> None:
        self._log.write(chunk)
        self._log.flush()
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        # A progress bar redraws itself without ever ending its line; only its last state is worth keeping.
        self._partial = self._partial.rpartition(b"\r")[2][-LINE_LIMIT * 16 :]
        for line in lines:
            self._line(line)
        self._output.flush()

    def end(self) -> None:
        if self._partial:
            self._line(self._partial)
        self._partial = b""
        self._output.flush()

    def _line(self, line: bytes) -> None:
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
        if line.startswith(PREFIX):
            self._output.line(self._with_rank(line))
            return
        if line.strip():
            self.last_lines.append(line[:500].decode(errors="replace"))
        self._output.line(b"[%d] %s" % (self._rank, line[:LINE_LIMIT]))

    def _with_rank(self, line: bytes) -> bytes:
        try:
            event = json.loads(line[len(PREFIX) :])
            return PREFIX + json.dumps({**event, "rank": event.get("rank", self._rank)}).encode()
        except (ValueError, TypeError, AttributeError):
            return b"[%d] %s" % (self._rank, line[:LINE_LIMIT])


# --- the end of the node -----------------------------------------------------------------------


def read_notice(path: Path, now_s: float) -> dict[str, Any] | None:
    """What the node is told of its end; None when nothing, or of an end that is long past."""
    try:
        told = json.loads(path.read_text())
        reason, ends_at = str(told["reason"]), float(told["ends_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {"reason": reason, "ends_at": ends_at} if ends_at > now_s - STALE_S else None


class Lookout:
    """Passes a notice on, once: to the operator, and to all scripts on this node by a file.

    Only the node's first rank does; the others would say the same.
    """

    def __init__(self, output: Output, place: Place, environ: Mapping[str, str]) -> None:
        self._output, self._place = output, place
        self._path = FOLDER / environ.get("CLUSTERCTL_NOTICE", NOTICE)
        self._next_s = 0.0 if place.local_rank == 0 else float("inf")

    def look(self, now_s: float) -> None:
        """Where it is time to; `now_s` is monotonic."""
        if now_s >= self._next_s:
            self._next_s = now_s + NOTICE_EVERY_S
            self._look()

    def look_last(self) -> None:
        """At the script's end: another node's notice may have ended it before this node's was looked for."""
        if self._next_s < float("inf"):
            self._look()

    def _look(self) -> None:
        notice = read_notice(self._path, time.time())
        if notice is None:
            return
        self._next_s = float("inf")
        left_s = round(notice["ends_at"] - time.time(), 1)
        self._output.event("notice", rank=self._place.rank, node=self._place.node, **notice, left_s=left_s)
        aside = FOLDER / f".{REQUEST}-{self._place.node}"
        with contextlib.suppress(OSError):  # a full disk: there is no room for a checkpoint either
            aside.write_text(json.dumps(notice) + "\n")
            aside.replace(FOLDER / REQUEST)


# --- the script's process ----------------------------------------------------------------------


def parse_node(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The node's name, as the launcher or the run folder tells it; and the arguments that are left."""
    if list(arguments[:1]) == ["--node"]:
        return arguments[1], list(arguments[2:])
    return read_node(FOLDER), list(arguments)


def parse(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder to run in, and the whole command; a script is for the Python that runs this."""
    folder, rest = FOLDER, list(arguments)
    if rest[:1] == ["--folder"]:
        folder, rest = FOLDER / rest[1], rest[2:]
    return folder, rest[1:] if rest[:1] == ["--program"] else [sys.executable, *rest]


def start(
    command: Sequence[str], environment: Mapping[str, str], cpus: set[int], folder: Path = FOLDER
) -> subprocess.Popen[bytes]:
    """The script in a process group of its own, pinned, ended by the kernel when this process ends."""
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def prepare() -> None:
        os.setpgid(0, 0)
        os.sched_setaffinity(0, cpus)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before prctl
            os._exit(1)

    # Programs that call MPI_Init find their launcher over this descriptor.
    pmi = tuple(int(environment[name]) for name in ("PMI_FD",) if name in environment)
    return subprocess.Popen(
        command,
        env=dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=pmi,
        preexec_fn=prepare,
    )


def guard(group: int) -> int:
    """Fork a process that kills the group once this one is gone; returns a descriptor to dismiss it.

    The kernel's death signal reaches the script but not what the script started, and hydra kills ranks
    with SIGKILL.
    """
    ours, theirs = os.pipe()
    if os.fork() != 0:
        os.close(ours)
        return theirs
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.dup2(ours, 0)
    os.closerange(1, 4096)
    if os.read(0, 1) == b"":
        kill_group(group, signal.SIGKILL)
    os._exit(0)


def cpu_seconds(group: int) -> float:
    """CPU time of all processes of a group, and of their children that have ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def kill_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


class Supervisor:
    """Follows the script until its end: output, heartbeats, notices, and signals passed on."""

    def __init__(self, child: subprocess.Popen[bytes], copier: Copier, output: Output, place: Place) -> None:
        self._child, self._copier, self._output, self._place = child, copier, output, place
        self._lookout = Lookout(output, place, os.environ)
        self._kill_at = float("inf")
        self._next_heartbeat = time.monotonic() + HEARTBEAT_S
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)

    def follow(self) -> int:
        """Exit code of the script, 128 + number when a signal ended it."""
        assert self._child.stdout is not None
        pipe = self._child.stdout.fileno()
        is_open = True
        while is_open and self._child.poll() is None:
            is_open = self._copy(pipe, 0.5)
            self._keep_time()
        while self._child.poll() is None:  # it closed its stdout and goes on
            time.sleep(0.1)
            self._keep_time()
        kill_group(self._child.pid, signal.SIGKILL)
        self._lookout.look_last()
        self._drain(pipe)
        code = self._child.returncode
        return code if code >= 0 else 128 - code

    def _copy(self, pipe: int, wait_s: float) -> bool:
        """Copy what there is; False at the end of the output."""
        if not select.select([pipe], [], [], wait_s)[0]:
            return True
        chunk = os.read(pipe, 65536)
        self._copier.feed(chunk)
        return bool(chunk)

    def _drain(self, pipe: int) -> None:
        # Something that left the group may still hold the pipe, hence the limit.
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and self._copy(pipe, 0.1):
            pass
        self._copier.end()

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_S
            used_s = round(cpu_seconds(self._child.pid), 2)
            self._output.event("heartbeat", rank=self._place.rank, node=self._place.node, cpu_s=used_s)
        self._lookout.look(now)
        if now >= self._kill_at:
            kill_group(self._child.pid, signal.SIGKILL)

    def _stop(self, number: int, _frame: object) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + STOP_GRACE_S)
        kill_group(self._child.pid, number)


def run(command: Sequence[str], place: Place, plan: Mapping[str, Any], output: Output) -> int:
    """Start the script and follow it to its end. Raises RankError when it cannot be started."""
    own = own_placement(plan, place)
    cpus = pin(str(own.get("cpus", "")), cpus_of_machine())
    threads = int(own.get("threads") or os.environ.get("OMP_NUM_THREADS") or len(cpus))
    environment = with_setvars(script_environment(os.environ, plan, place, threads))
    log_name = f"logs/rank-{place.rank:03d}.log"
    (FOLDER / "logs").mkdir(exist_ok=True)
    folder, program = parse(command)
    folder.mkdir(exist_ok=True)
    with (FOLDER / log_name).open("ab") as log:  # to the end: the launcher may have begun anew
        child = start(program, environment, cpus, folder)
        dismissal = guard(child.pid)
        output.event(
            "start",
            rank=place.rank,
            node=place.node,
            pid=child.pid,
            cpus=sorted(cpus),
            world_size=place.world_size,
        )
        copier = Copier(output, log, place.rank)
        code = Supervisor(child, copier, output, place).follow()
    os.write(dismissal, b"x")
    last = list(copier.last_lines) if code else []
    output.event("exit", rank=place.rank, node=place.node, code=code, last_lines=last, log=log_name)
    return code


def main(arguments: Sequence[str]) -> NoReturn:
    output, rank = Output(), None
    node, command = parse_node(arguments)
    try:
        place = read_place(os.environ, node)
        rank = place.rank
        sys.exit(run(command, place, read_plan(FOLDER), output))
    except BrokenPipeError:  # the launcher is gone; the guard ends the script
        os._exit(128 + signal.SIGPIPE)
    except (RankError, OSError) as error:
        output.event("error", rank=rank, node=node, text=str(error))
        output.event("exit", rank=rank, node=node, code=2, last_lines=[str(error)])
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])

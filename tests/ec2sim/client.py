"""Starting a simulated EC2, and talking to it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from provision.providers.local.asroot.image import PATH
from tests.ec2sim.settings import Settings

MARKER = "clusterctl-simulated-ec2"
NEW_NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--")
CLONE_NEWNET = 0x40000000
REPOSITORY = Path(__file__).parents[2]
API = "http://198.51.100.1:5000"
START_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 20.0


class WorldError(Exception):
    """The world does not come up, is gone, or refused a request."""


@dataclass(frozen=True)
class World:
    """A simulated EC2 that stands, known by its folder. As a context manager it is stopped at the end."""

    folder: Path

    @classmethod
    def start(cls, folder: Path | str, *, detached: bool = False, **settings: Any) -> World:
        """A new world; `settings` are those of settings.Settings.

        Unless `detached`, it ends with the thread that starts it, too.
        """
        world = cls(Path(folder).resolve())
        if any(letter in str(world.folder) for letter in " :,"):
            raise WorldError(f"{world.folder}: an overlay's path can have no space, comma or colon")
        world.folder.mkdir(parents=True, exist_ok=True)
        if world.pids():
            raise WorldError(f"a simulated EC2 stands already in {world.folder}")
        (world.folder / "control").unlink(missing_ok=True)
        world._wait(world._spawn(Settings(**settings), detached))
        return world

    def stop(self) -> None:
        """Idempotent; nothing of the world is left when this returns."""
        pids = self.pids()
        for pid in pids:
            _kill(pid)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(map(_lives, pids)):
            if time.monotonic() > deadline:
                raise WorldError(f"the simulated EC2 in {self.folder} does not end: processes {pids}")
            time.sleep(0.01)
        (self.folder / "control").unlink(missing_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """For boto3 and the aws command; credentials are never looked at."""
        return {
            "AWS_ENDPOINT_URL": API,
            "AWS_ACCESS_KEY_ID": "AKIASIMULATEDEC2WRLD",
            "AWS_SECRET_ACCESS_KEY": "simulated",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def address_service(self) -> str:
        """In place of https://checkip.amazonaws.com: answers with the caller's address."""
        return "http://198.51.100.1:5002/"

    def operator(self, *argv: str) -> tuple[str, ...]:
        """The command, in the network of the operator's machine (198.51.100.7); files are this machine's."""
        return self._in_network("operator", argv)

    def stranger(self, *argv: str) -> tuple[str, ...]:
        """The command, in another network of the internet (192.88.99.9)."""
        return self._in_network("stranger", argv)

    def thread_in(self, network: str) -> ThreadPoolExecutor:
        """One thread of this process whose sockets are in the operator's or the stranger's network."""
        pid = self._ask(do="state")["outsides"][network]
        return ThreadPoolExecutor(1, initializer=_enter_network, initargs=(pid,))

    def fault(
        self, action: str, code: str, message: str = "injected (simulated)", *, status: int = 400,
        times: int = 1, after: int = 0, where: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """The next `times` requests for the action ("*" is any) fail, the first `after` left out.

        `where` names parameters of the request, nested ones as "Placement.GroupName"; see calls.fits.
        """
        fault = {"action": action, "code": code, "message": message, "status": status, "times": times,
                 "after": after, "where": dict(where or {})}  # fmt: skip
        self._ask(do="fault", fault=fault)

    def clear_faults(self) -> None:
        self._ask(do="clear_faults")

    def interrupt(self, instance_id: str, notice_s: float = 120.0) -> None:
        """Rebalance recommendation and notice now; the spot instance is taken `notice_s` later."""
        self._ask(do="interrupt", instance=instance_id, notice_s=notice_s)

    def next_boot(self, kind: str, count: int = 1, seconds: float = 5.0) -> None:
        """How the next `count` instances come up.

        "wrong-host-key": the host makes its own key, whatever user data says; "no-sshd"; "dies": terminated
        with Server.InternalError in place of running; "slow": `seconds` pass before anything is done.
        """
        self._ask(do="next_boot", kind=kind, count=count, seconds=seconds if kind == "slow" else 0)

    def calls(self, region: str | None = None) -> Counter[str]:
        """How often each API action was called since the last reset, in one region or all of them."""
        counts: Counter[str] = Counter()
        for where, action, count in self._ask(do="calls")["calls"]:
            if region in (None, where):
                counts[action] += count
        return counts

    def reset_calls(self) -> None:
        self._ask(do="reset_calls")

    def resources(self) -> dict[str, list[str]]:
        """What is there, by type, in all regions; {} when nothing is left."""
        return dict(self._ask(do="resources")["resources"])

    def exec(self, instance_id: str, *argv: str, expect: int | None = 0) -> str:
        """Standard output of a command, run by root inside the instance's host: its serial console.

        Raises WorldError when it ends with another exit code than expected (None: any).
        """
        done = subprocess.run(self.enter(instance_id, *argv), capture_output=True, text=True, check=False)
        if expect is not None and done.returncode != expect:
            raise WorldError(f"{instance_id}: {' '.join(argv)}: exit code {done.returncode}: {done.stderr}")
        return done.stdout

    def enter(self, instance_id: str, *argv: str) -> tuple[str, ...]:
        """The command, by root inside the instance's host."""
        pid = self._ask(do="host", instance=instance_id)["pid"]
        entered = ("nsenter", "--target", str(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--wd=/")
        return (*entered, "--", "env", "-i", f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8", *argv)

    def pids(self) -> list[int]:
        """Processes that hold this world: `unshare` and the world's own, known by their arguments."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _is_marked(entry, str(self.folder)):
                found.append(int(entry.name))
        return found

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _in_network(self, name: str, argv: tuple[str, ...]) -> tuple[str, ...]:
        pid = self._ask(do="state")["outsides"][name]
        return ("nsenter", f"--net=/proc/{pid}/ns/net", "--", *argv)

    def _spawn(self, settings: Settings, detached: bool) -> subprocess.Popen[bytes]:
        python = (sys.executable, "-m", "tests.ec2sim.server", MARKER, str(self.folder), settings.to_json())
        tied = () if detached else ("setpriv", "--pdeathsig", "KILL")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        with (self.folder / "log").open("w") as log:
            return subprocess.Popen(
                (*tied, *NEW_NAMESPACES, *python), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=REPOSITORY, env=environment, start_new_session=True,
            )  # fmt: skip

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(WorldError):
                self._ask(do="state")
                return
            time.sleep(0.02)
        self.stop()
        lines = (self.folder / "log").read_text().strip().splitlines()
        raise WorldError(f"the simulated EC2 did not start: {lines[-1] if lines else 'it printed nothing'}")

    def _ask(self, **request: Any) -> dict[str, Any]:
        # Through /proc, as the path of a socket has 107 bytes at most.
        folder = os.open(self.folder, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(60)
                connection.connect(f"/proc/self/fd/{folder}/control")
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as replies:
                    reply = dict(json.loads(replies.readline()))
        except (OSError, ValueError) as error:
            raise WorldError(f"no simulated EC2 answers in {self.folder}: {error}") from None
        finally:
            os.close(folder)
        if "error" in reply:
            raise WorldError(str(reply["error"]))
        return reply


def _enter_network(pid: int) -> None:
    """For the calling thread only; os.setns is there from Python 3.12 on."""
    with Path(f"/proc/{pid}/ns/net").open() as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def _is_marked(process: Path, folder: str) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return MARKER.encode() in arguments and folder.encode() in arguments and _lives(int(process.name))


def _lives(pid: int) -> bool:
    """Process 1 of a pid namespace turns zombie only after every other process in it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

"""Machines of a stranger's lab: local nodes on which nothing of clusterctl is, and their root."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.model import Node
from provision.providers.local.control import ask
from tests.command import Command, Ended
from tests.local_nodes import LocalCluster

PASSWORD = "correct horse"
ALL_OF_IT = ("-m", "-u", "-i", "-n", "-p", "-r", "-w")  # of a machine's namespaces, for nsenter

# Everything that giving back must leave as it was: type, mode, owner and content of what is below.
_LOOK = r"""
import hashlib, json, os, stat, sys
seen = {}
def see(path):
    at = os.lstat(path)
    what = [stat.filemode(at.st_mode), at.st_uid, at.st_gid]
    if stat.S_ISREG(at.st_mode):
        what.append(open(path, "rb").read(4000).decode("latin1"))
    elif stat.S_ISLNK(at.st_mode):
        what.append(os.readlink(path))
    seen[path] = what
for top in ("/home", "/root", "/etc", "/opt", "/var/lib/clusterctl", "/srv", "/tmp", "/usr/local"):
    if os.path.lexists(top):
        see(top)
    for folder, folders, files in os.walk(top):
        if folder == "/opt/clusterctl/stacks":
            folders.clear()
            continue
        for name in folders + files:
            see(os.path.join(folder, name))
print(json.dumps(seen))
"""


@dataclass(frozen=True)
class BareMetal:
    """The lab's machines, by name."""

    lab: LocalCluster

    def address(self, name: str) -> str:
        return self.node(name).address

    def node(self, name: str) -> Node:
        return next(node for node in self.lab.nodes if node.name == name)

    def root(self, name: str, script: str, expect: int = 0) -> str:
        """Output of a script that root of the machine runs at its console."""
        argv = ("nsenter", "-t", str(self.pid(name)), *ALL_OF_IT, "/bin/sh", "-euc", script)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.returncode == expect, f"{script}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def pid(self, name: str) -> int:
        """Of the machine's first process."""
        state = ask(self.lab.name, do="state")
        assert state
        return next(int(each["pid"]) for each in state["nodes"] if each["name"] == name)

    def stranger(self, name: str) -> None:
        """The key that the local provider put there goes; sshd takes passwords."""
        self.root(
            name,
            "rm -f /home/ubuntu/.ssh/authorized_keys; "
            "echo 'PasswordAuthentication yes' > /etc/ssh/sshd_config.d/10-lab.conf",
        )
        self.reload(name)

    def reload(self, name: str) -> None:
        self.root(name, "kill -HUP $(cat /run/sshd.pid)")

    def add_user(self, name: str, user: str, *, groups: str = "", shell: str = "/bin/bash") -> None:
        """With PASSWORD; in group sudo it pays for root with it."""
        grouped = f"-G {groups}" if groups else ""
        self.root(name, f"useradd -m -s {shell} {grouped} {user}; echo '{user}:{PASSWORD}' | chpasswd")

    def authorize(self, name: str, user: str, key: Path) -> None:
        public = key.with_suffix(".pub").read_text().strip()
        self.root(
            name,
            f"home=$(getent passwd {user} | cut -d: -f6); install -d -m 700 -o {user} $home/.ssh; "
            f"echo '{public}' > $home/.ssh/authorized_keys; chown {user}: $home/.ssh $home/.ssh/*; "
            "chmod 600 $home/.ssh/authorized_keys",
        )

    def look(self, name: str) -> dict[str, list[object]]:
        """Every file that giving back must leave as it was."""
        argv = ("nsenter", "-t", str(self.pid(name)), "-m", "-p", "-r", "/usr/bin/python3", "-c", _LOOK)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
        return dict(json.loads(done.stdout))


def differences(before: dict[str, list[object]], after: dict[str, list[object]]) -> dict[str, object]:
    """Path -> what it was and what it is, for all that differ."""
    return {
        path: (before.get(path), after.get(path))
        for path in sorted(set(before) | set(after))
        if before.get(path) != after.get(path)
    }


_SHARE = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
first, second, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
OPEN_TREE, MOVE_MOUNT, CLONE, EMPTY, NEWNS = 428, 429, 1, 4, 0x00020000
def enter(pid):
    mounts, root = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), os.open(f"/proc/{pid}/root", os.O_RDONLY)
    return mounts, root
one, two = enter(first), enter(second)
def go(place):
    assert libc.setns(place[0], NEWNS) == 0, ctypes.get_errno()
    os.fchdir(place[1]); os.chroot("."); os.chdir("/")
go(one)
tree = libc.syscall(OPEN_TREE, -100, path, CLONE | os.O_CLOEXEC)
assert tree >= 0, ctypes.get_errno()
go(two)
assert libc.syscall(MOVE_MOUNT, tree, b"", -100, path, EMPTY) == 0, ctypes.get_errno()
"""


def share(first: int, second: int, path: str) -> None:
    """A folder of the first process's machine takes the place of the second one's, as by NFS."""
    argv = (sys.executable, "-c", _SHARE, str(first), str(second), path)
    subprocess.run(argv, check=True, timeout=30)


@dataclass(frozen=True)
class LabCommand(Command):
    """clusterctl of an operator with a home, a key and an ssh configuration of his own."""

    @property
    def ssh(self) -> Path:
        return self.home / ".ssh"

    def inventory(self, **machines: str) -> str:
        """Written to lab.yml; each machine with its variables as YAML."""
        hosts = "".join(f"    {name}: {{{text}}}\n" for name, text in machines.items())
        (self.home / "lab.yml").write_text(
            f"all:\n  vars:\n    clusterctl: {{name: {self.name}}}\n  hosts:\n{hosts}"
        )
        return "lab.yml"

    def with_password(self, *args: str, password: str = PASSWORD) -> Ended:
        """The password comes by --password-fd."""
        reading, writing = os.pipe()
        os.write(writing, f"{password}\n".encode())
        os.close(writing)
        done = subprocess.run(
            [*self._argv(args), "--password-fd", str(reading)], env=self.environment, cwd=self.home,
            pass_fds=[reading], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        os.close(reading)
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    def at_terminal(self, answers: Sequence[tuple[str, str]], *args: str, timeout_s: float = 60) -> Ended:
        """With a terminal, where each question gets its answer once it is shown, in this order."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.home)
            os.execvpe(sys.executable, self._argv(args), self.environment)
        left, seen, answered = list(answers), "", 0
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                seen += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
            if left and left[0][0] in seen[answered:]:
                os.write(terminal, f"{left.pop(0)[1]}\n".encode())
                answered = len(seen)
        os.close(terminal)
        return Ended(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen, "")


# --- how a lab is met -----------------------------------------------------------------------------


def bare_metal(lab: LocalCluster, *names: str, **settings: object) -> BareMetal:
    lab.up(*names, **settings)
    bare = BareMetal(lab)
    for name in names:
        bare.stranger(name)
    return bare


def known(bare: BareMetal, command: LabCommand, *names: str, port: int = 22) -> None:
    """The operator has met these machines before."""
    with (command.ssh / "known_hosts").open("a") as file:
        for name in names:
            address = bare.address(name)
            file.write(f"{address if port == 22 else f'[{address}]:{port}'} {bare.node(name).host_keys[0]}\n")


def at(bare: BareMetal, name: str, user: str, more: str = "") -> str:
    return f"ansible_host: {bare.address(name)}, ansible_user: {user}" + (f", {more}" if more else "")


def login(command: LabCommand) -> Path:
    return command.ssh / "id_ed25519"


def roots(bare: BareMetal, command: LabCommand, *names: str, **vars: str) -> str:
    """The inventory of machines that the operator has met before and whose root his key opens."""
    for name in names:
        bare.authorize(name, "root", login(command))
    (command.ssh / "config").write_text(f"IdentityFile {login(command)}\n")
    known(bare, command, *names)
    return command.inventory(**{name: at(bare, name, "root", vars.get(name, "")) for name in names})


def with_one_home(bare: BareMetal, command: LabCommand, *names: str, alone: tuple[str, ...] = ()) -> str:
    """The inventory of machines on which ann has one home, as by NFS; on those `alone` she has another."""
    for name in (*names, *alone):
        bare.root(name, "useradd -m -u 1500 ann; echo 'ann ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ann")
    for name in names[1:]:
        share(bare.pid(names[0]), bare.pid(name), "/home/ann")
    for name in (names[0], *alone):
        bare.authorize(name, "ann", login(command))
    (command.ssh / "config").write_text(f"IdentityFile {login(command)}\n")
    known(bare, command, *names, *alone)
    return command.inventory(**{name: at(bare, name, "ann") for name in (*names, *alone)})

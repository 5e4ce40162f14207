"""Local nodes for tests: a cluster that is surely gone afterwards, and the real `ssh` into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provision.model import Cluster, Node
from provision.providers import NodeState, Wanted
from provision.providers.local import LocalProvider, LocalSettings
from provision.providers.local.control import ask, runtime_dir

needs_nodes = [
    pytest.mark.nodes,
    pytest.mark.skipif(os.geteuid() != 0, reason="local nodes need root"),
    pytest.mark.skipif(
        shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="needs openssh-server"
    ),
]


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{number:02}" for number in range(1, count + 1))


@dataclass
class LocalCluster:
    """One cluster by its provider; `seen` is what progress was told."""

    name: str
    folder: Path
    provider: LocalProvider = field(default_factory=LocalProvider)
    nodes: tuple[Node, ...] = ()
    seen: list[tuple[str, str]] = field(default_factory=list)

    def up(self, *node_names: str, **settings: object) -> tuple[Node, ...]:
        key = make_key(self.folder)
        wanted = Wanted(
            name=self.name,
            node_names=node_names,
            state_dir=self.folder,
            identity_file=key,
            public_key=key.with_suffix(".pub").read_text(),
            settings=LocalSettings.from_mapping(settings),
        )
        self.nodes = self.provider.create(wanted, self.progress)
        lines = [f"{node.address} {key}\n" for node in self.nodes for key in node.host_keys]
        self.known_hosts.write_text("".join(lines))
        return self.nodes

    def progress(self, name: str, what: str) -> None:
        self.seen.append((name, what))

    @property
    def known_hosts(self) -> Path:
        return self.folder / f"known_hosts-{self.name}"

    @property
    def record(self) -> Cluster:
        return Cluster(self.name, "local", self.nodes)

    def states(self) -> list[NodeState]:
        return list(self.provider.find(self.record).states.values())

    def remove(self, *node_names: str) -> None:
        self.provider.remove(self.record, node_names, self.progress)

    def destroy(self) -> None:
        self.provider.destroy(self.record, self.progress)

    def supervisor_pid(self) -> int:
        state = ask(self.name, do="state")
        assert state
        return int(state["pid"])

    def runtime(self) -> Path:
        return runtime_dir(self.name)

    def ssh(self, node: Node, command: str, expect: int = 0, user: str | None = None) -> str:
        """Standard output of the command, run over the real ssh that trusts the pinned key only."""
        options = (
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.known_hosts}",
            "BatchMode=yes",
            "ConnectTimeout=5",
        )
        argv = ["ssh", "-F", "none", "-i", str(node.identity_file), *(f"-o{option}" for option in options)]
        argv += [f"{user or node.user}@{node.address}", command]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == expect, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout.strip()


def make_key(folder: Path) -> Path:
    key = folder / "id_ed25519"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


def eventually(fact: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """True as soon as the fact holds; what the kernel does in the background takes a moment."""
    deadline = time.monotonic() + timeout_s
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

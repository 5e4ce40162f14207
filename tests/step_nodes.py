"""A fresh local node to try steps on: its Host, its whole disk as this machine sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provision.host import SshHost
from tests.killed_host import killed_at
from tests.local_nodes import LocalCluster
from tests.step_cases import run, snapshot, statuses

SHIMS = "/tmp/shims"


@dataclass(frozen=True)
class StepNode:
    """`disk` holds everything the node writes to disk."""

    host: SshHost
    disk: Path

    def sh(self, script: str, expect: int = 0) -> str:
        return self.host.run(script, sudo=True, expect=(expect,)).stdout.strip()

    def run(self, *steps, **options):
        return run(steps, self.host, **options)

    def statuses(self, *steps):
        return statuses(self.run(*steps))

    def seen(self) -> dict[str, tuple[object, ...]]:
        """The whole disk but its logs: every login is written there."""
        return {path: found for path, found in snapshot(self.disk).items() if "/var/log" not in path}

    def killed_at(self, step, at: int) -> bool:
        return killed_at(step, self.host, SHIMS, at)


def fresh_node(folder: Path) -> Iterator[StepNode]:
    cluster = LocalCluster(f"steps-{os.getpid()}", folder)
    try:
        (node,) = cluster.up("n01")
        runtime = Path(f"/proc/{cluster.supervisor_pid()}/root{cluster.runtime()}")
        with SshHost(node) as host:
            host.run("true", sudo=True)  # the first sudo leaves a mark in the home
            yield StepNode(host, runtime / "inside/nodes/n01/disk")
    finally:
        cluster.destroy()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StepNode]:
    yield from fresh_node(tmp_path)

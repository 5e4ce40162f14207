"""What several test files share: the training stack, and a cluster of real local nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Command, built_stack


@pytest.fixture(scope="session")
def stack() -> Path:
    """The native stack on this machine."""
    return built_stack()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, stack: Path) -> Iterator[Command]:
    """Three local nodes that many tests share: leave them as they were found."""
    command = Command(f"test-{os.getpid()}", tmp_path_factory.mktemp("home"))
    try:
        command.ok("up", "--nodes", "3")
        yield command
    finally:
        command("down", "--yes")


@pytest.fixture
def own(tmp_path: Path, stack: Path) -> Iterator[Command]:
    """A cluster's command for a test that breaks things; nothing is up yet."""
    command = Command(f"own-{os.getpid()}", tmp_path)
    try:
        yield command
    finally:
        command("down", "--yes")

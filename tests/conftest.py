"""What several test files share: the training stack, and a cluster of real local nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bare_metal import LabCommand
from tests.command import Command, built_stack
from tests.ec2_command import Ec2Command
from tests.ec2sim import World
from tests.local_nodes import LocalCluster, make_key

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in a shell's background: what the tests start would ignore their Ctrl-C too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, stack: Path) -> Iterator[World]:
    """A simulated EC2 whose image has the stack installed; every test leaves its account empty."""
    with World.start(tmp_path_factory.mktemp("ec2"), stacks=str(stack.parent)) as world:
        yield world


@pytest.fixture
def ec2(world: World, tmp_path: Path) -> Iterator[Ec2Command]:
    """A cluster's command beside the simulated EC2; nothing is up yet, and nothing may be left."""
    command = Ec2Command(f"ec2-{os.getpid()}", tmp_path, world)
    command.write_inventory()
    world.clear_faults()
    world.reset_calls()
    try:
        yield command
        world.clear_faults()
        assert command("down", "--yes").code == 0
        assert world.resources() == {}
    finally:
        world.clear_faults()
        command("down", "--yes", "--images")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(f"lab-{os.getpid()}", tmp_path)
    try:
        yield cluster
    finally:
        cluster.destroy()


@pytest.fixture
def command(tmp_path: Path, stack: Path) -> LabCommand:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    make_key(home / ".ssh")
    return LabCommand(f"lab{os.getpid()}", home)

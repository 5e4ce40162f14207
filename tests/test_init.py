"""init writes what inventory/ has, and never over a file that is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provision.inventory import read_inventory
from tests.command import Command

EXAMPLES = sorted((Path(__file__).parents[1] / "inventory").glob("*.yml"))


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command("none", tmp_path)


def init(command: Command, *args: str) -> subprocess.CompletedProcess[str]:
    """`init` knows no --name."""
    argv = (sys.executable, "-m", "run.cli", "init", *args)
    return subprocess.run(
        argv, capture_output=True, text=True, cwd=command.home, env=command.environment, check=False
    )


def test_every_kind_that_is_asked_for_has_an_example():
    assert {path.stem for path in EXAMPLES} >= {"local", "metal", "ec2"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_init_writes_the_example_of_the_repository(command, example):
    assert init(command, example.stem).returncode == 0
    written = command.home / example.name

    assert written.read_text() == example.read_text()
    assert read_inventory(written).provider


def test_without_a_kind_it_is_this_machine(command):
    done = init(command, "--output", "mine.yml")

    assert "`clusterctl up -i mine.yml`" in done.stdout
    assert read_inventory(command.home / "mine.yml").provider == "local"


def test_a_file_that_is_there_stays(command):
    (command.home / "metal.yml").write_text("mine\n")
    done = init(command, "metal")

    assert done.returncode == 2
    assert "metal.yml is there already" in done.stderr
    assert (command.home / "metal.yml").read_text() == "mine\n"


def test_a_link_that_leads_nowhere_is_not_followed(command):
    (command.home / "local.yml").symlink_to("elsewhere.yml")

    assert init(command, "local").returncode == 2
    assert not (command.home / "elsewhere.yml").exists()


def test_an_unknown_kind_is_named_with_the_nearest(command):
    assert "no inventory 'metall'; did you mean 'metal'?" in init(command, "metall").stderr


def test_a_folder_that_is_not_there_is_named(command):
    done = init(command, "--output", "no/such/x.yml")

    assert done.returncode == 2
    assert "no/such/x.yml: No such file or directory" in done.stderr


def test_the_metal_example_is_four_machines_one_behind_a_jump_host():
    got = read_inventory(next(path for path in EXAMPLES if path.stem == "metal"))

    assert (got.provider, got.require_amx, len(got.machines)) == ("static", True, 4)
    assert [machine.jump for machine in got.machines] == [None, None, None, "ubuntu@gate.example.org"]
    assert got.machines[2].port == 2222

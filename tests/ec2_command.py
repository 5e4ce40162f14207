"""clusterctl as its user runs it, beside a simulated EC2: the real command, in the operator's network."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.command import Command
from tests.ec2sim import World


@dataclass(frozen=True)
class Ec2Command(Command):
    """The command of one cluster whose nodes are instances of a simulated EC2."""

    world: World

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | self.world.environment

    @property
    def inventory(self) -> Path:
        return self.home / "ec2.yml"

    def write_inventory(self, nodes: int = 2, **settings: Any) -> None:
        ec2 = {
            "region": "us-east-1",
            "instance_type": "m7i.large",
            "address_service": self.world.address_service,
            "boot_timeout_s": 20,
            **settings,
        }
        # The CPU behind a simulated instance is this machine's.
        block = {"name": self.name, "provider": "ec2", "nodes": nodes, "require_amx": False, "ec2": ec2}
        self.inventory.write_text(yaml.safe_dump({"all": {"vars": {"clusterctl": block}}}))

    def up(self, *args: str) -> str:
        return self.ok("up", "-i", str(self.inventory), *args)

    def instances(self) -> dict[str, str]:
        """Node -> instance id, as the record has it."""
        record = yaml.safe_load((self.state / "record.yml").read_text())
        return {name: each["clusterctl_provider_id"] for name, each in record["all"]["hosts"].items()}

    def on(self, node: str, command: str, expect: int = 0) -> str:
        argv = ["ssh", "-F", str(self.state / "ssh_config"), "-o", "BatchMode=yes", node, command]
        done = subprocess.run(
            self.world.operator(*argv), capture_output=True, text=True, timeout=60, env=self.environment
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout

    def _argv(self, args: tuple[str, ...]) -> list[str]:
        plain = args[0] in ("ls", "gc", "images", "--help")
        argv = list(args) if plain else [args[0], "--name", self.name, *args[1:]]
        return list(self.world.operator(sys.executable, "-m", "run.cli", *argv))

"""For tests of the simulated EC2 itself: a key, a group and instances, all gone in the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from tests.ec2sim.client import API, World

UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
OPERATOR = "198.51.100.7/32"

Instance = Mapping[str, Any]


@dataclass
class Api:
    """boto3 in the operator's network: api("run_instances", MinCount=1, ...)."""

    world: World
    region: str = "us-east-1"
    _thread: ThreadPoolExecutor = field(init=False)
    _clients: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._thread = self.world.thread_in("operator")

    def __call__(self, action: str, service: str = "ec2", **parameters: Any) -> Any:
        return self._thread.submit(self._call, service, action, parameters).result()

    def _call(self, service: str, action: str, parameters: dict[str, Any]) -> Any:
        if service not in self._clients:
            session = boto3.session.Session("AKIASIMULATEDEC2WRLD", "simulated", region_name=self.region)
            config = Config(retries={"total_max_attempts": 1})
            self._clients[service] = session.client(service, endpoint_url=API, config=config)
        return getattr(self._clients[service], action)(**parameters)


@dataclass
class Site:
    """`host_key` is the public half of the one that user data brings."""

    world: World
    folder: Path
    region: str = "us-east-1"
    api: Api = field(init=False)
    group: str = field(init=False)
    image: str = field(init=False)
    host_key: str = field(init=False)
    instances: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = Api(self.world, self.region)
        for name in ("login", "host"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.folder / name))
        self.host_key = (self.folder / "host.pub").read_text()
        self.api(
            "import_key_pair", KeyName="login", PublicKeyMaterial=(self.folder / "login.pub").read_bytes()
        )
        self.group = self.api("create_security_group", GroupName="nodes", Description="of a test")["GroupId"]
        self.let_in(IpProtocol="tcp", FromPort=22, ToPort=22, IpRanges=[{"CidrIp": OPERATOR}])
        self.let_in(IpProtocol="-1", UserIdGroupPairs=[{"GroupId": self.group}])
        self.image = self.api("get_parameter", "ssm", Name=UBUNTU)["Parameter"]["Value"]

    def let_in(self, **permission: Any) -> None:
        self.api("authorize_security_group_ingress", GroupId=self.group, IpPermissions=[permission])

    def user_data(self, more: str = "") -> str:
        private = "".join(f"    {line}\n" for line in (self.folder / "host").read_text().splitlines())
        keys = f"ssh_keys:\n  ed25519_private: |\n{private}  ed25519_public: {self.host_key}"
        return f"#cloud-config\n{keys}{more}"

    def run(self, count: int = 1, more: str = "", **parameters: Any) -> list[str]:
        """Ids of new instances; `more` is added to their user data."""
        given = {
            "ImageId": self.image,
            "InstanceType": "m7i.large",
            "KeyName": "login",
            "SecurityGroupIds": [self.group],
            "UserData": self.user_data(more),
        }
        answer = self.api("run_instances", MinCount=count, MaxCount=count, **given | parameters)
        new = [instance["InstanceId"] for instance in answer["Instances"]]
        self.instances += new
        return new

    def describe(self, *ids: str) -> list[Instance]:
        found = self.api("describe_instances", InstanceIds=list(ids))["Reservations"]
        instances = [instance for reservation in found for instance in reservation["Instances"]]
        return sorted(instances, key=lambda instance: ids.index(instance["InstanceId"]))

    def wait(self, state: str, *ids: str) -> list[Instance]:
        def reached() -> bool:
            return all(one["State"]["Name"] == state for one in self.describe(*ids))

        until(reached, f"{ids} {state}")
        return self.describe(*ids)

    def up(self, count: int = 1, more: str = "", **parameters: Any) -> list[Instance]:
        """New instances that answer by ssh."""
        instances = self.wait("running", *self.run(count, more, **parameters))
        for instance in instances:
            until(lambda at=instance: self.ssh(at, "true").returncode == 0, "ssh")
        return instances

    def ssh(self, instance: Instance, command: str, user: str = "ubuntu") -> subprocess.CompletedProcess[str]:
        """OpenSSH's ssh from the operator's machine, which trusts the key of user data only."""
        address, known = instance["PublicIpAddress"], self.folder / "known_hosts"
        known.write_text(f"{address} {self.host_key}")
        options = (
            "BatchMode=yes",
            "ConnectTimeout=3",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={known}",
        )
        argv = ("ssh", "-F", "none", "-i", str(self.folder / "login"), *(f"-o{option}" for option in options))
        return subprocess.run(
            self.world.operator(*argv, f"{user}@{address}", command),
            capture_output=True,
            text=True,
            timeout=20,
        )

    def console(self, instance_id: str) -> str:
        return str(self.api("get_console_output", InstanceId=instance_id, Latest=True).get("Output", ""))

    def clean_up(self) -> None:
        """All that this site made; the test that made more takes it away itself."""
        if self.instances:
            self.api("terminate_instances", InstanceIds=self.instances)
            self.wait("terminated", *self.instances)
        self.api("delete_security_group", GroupId=self.group)
        self.api("delete_key_pair", KeyName="login")


def connects(argv_in: Callable[..., tuple[str, ...]], address: str, port: int) -> bool:
    """True when a TCP connection is accepted or refused, False when nothing answers within a second."""
    code = (
        "import socket, sys\n"
        "try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)\n"
        "except ConnectionRefusedError: pass\n"
    )
    argv = argv_in(sys.executable, "-ISc", code, address, str(port))
    return subprocess.run(argv, capture_output=True, timeout=20).returncode == 0


def until(fact: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

"""Where a machine of the inventory is and how one logs in there first: the inventory, then ssh's own
configuration, then this account's name."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from provision.connection import Login
from provision.errors import ConnectError, SettingsError
from provision.model import Machine, Node
from provision.openssh import Destination, resolve


@dataclass(frozen=True)
class Target:
    """A machine to be met: the node it becomes, and the operator's own way in.

    `stated` are the host keys that the inventory gives.
    """

    node: Node
    login: Login
    destination: Destination
    stated: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """For a person: "n01 (ann@10.0.0.5)"."""
        return f"{self.node.name} ({self.where})"

    @property
    def where(self) -> str:
        port = f":{self.node.port}" if self.node.port != 22 else ""
        return f"{self.node.user}@{self.node.address}{port}"


def target(machine: Machine, identity_file: Path, others: Sequence[Machine]) -> Target:
    """Raises ConnectError: the way there is one that clusterctl cannot go."""
    try:
        found = _destination(machine, others)
    except SettingsError as error:
        raise ConnectError(machine.name, str(error)) from error
    jump = machine.jump or found.jump
    if found.proxy_command and not jump:
        raise ConnectError(
            machine.name,
            "your ssh config has a ProxyCommand for it; write it as ProxyJump, or set clusterctl_jump",
        )
    node = Node(
        name=machine.name,
        address=found.host,
        user=found.user,
        port=found.port,
        private_address=machine.private_address,
        identity_file=identity_file,
        jump=jump,
    )
    keys = (machine.identity_file, *found.key_files) if machine.identity_file else found.key_files
    files = tuple(dict.fromkeys(Path(key).expanduser() for key in keys))
    for path in files:
        if not path.is_file():
            raise ConnectError(machine.name, f"there is no key {path}")
    stated = tuple(" ".join(key.split()[:2]) for key in machine.host_keys)
    return Target(node, Login(files, agent=found.agent), found, stated)


def _destination(machine: Machine, others: Sequence[Machine]) -> Destination:
    if machine.local:
        return _this_machine(machine, others)
    name = machine.address or machine.name
    bracketed = f"[{name}]" if ":" in name else name
    return resolve(bracketed, machine.user, machine.port)


def _this_machine(machine: Machine, others: Sequence[Machine]) -> Destination:
    """The operator's own machine is a node like the others: by ssh, at the address that they reach it at.

    Raises SettingsError when no sshd answers there.
    """
    user, port = machine.user or getpass.getuser(), machine.port or 22
    address = machine.private_address or machine.address or _own_address(others)
    try:
        with socket.create_connection((address, port), timeout=5):
            return resolve(address, user, port)
    except OSError:
        raise SettingsError(
            f"it is this machine (ansible_connection: local), and no sshd answers at {address} port {port}; "
            "the others' ranks and mpirun need one: install openssh-server"
        ) from None


def _own_address(others: Sequence[Machine]) -> str:
    """The address of this machine from which the first of the others is reached. Nothing is sent."""
    for other in others:
        if other.local:
            continue
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
                asked.connect((resolve(other.address or other.name).host, 9))
                return str(asked.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def mesh_address(node: Node, seen_by_sshd: str) -> str | None:
    """The private address to record: what the machine itself says it was reached at, where that differs.

    An address that is a name, a port forwarded by a router: the other nodes need the machine's own. A
    private address that the inventory gives always counts.

    >>> mesh_address(Node("n1", "lab1.example.org"), "10.0.0.5")
    '10.0.0.5'
    """
    if node.private_address:
        return node.private_address
    try:
        if ip_address(seen_by_sshd).is_loopback or seen_by_sshd == node.address:
            return None
    except ValueError:
        return None
    return seen_by_sshd

"""An open ssh connection to one node, or the one line that says why there is none. The only Fabric import.

Host keys are pinned: an unknown or changed key ends the connection, never a prompt and never AutoAddPolicy
(which Fabric sets by default).
"""

from __future__ import annotations

import base64
import socket
from typing import TYPE_CHECKING

from provision.errors import ConnectError, HostKeyError
from provision.model import Node

if TYPE_CHECKING:
    import fabric
    import paramiko


def open_connection(node: Node, timeout_s: float) -> fabric.Connection:
    """A connected Fabric connection whose host key is one of the node's pinned ones."""
    import fabric
    import paramiko

    connection = fabric.Connection(
        node.address,
        user=node.user,
        port=node.port,
        config=_fabric_config(),
        connect_timeout=timeout_s,
        connect_kwargs={
            "sock": _socket(node, timeout_s),
            "key_filename": str(node.identity_file) if node.identity_file else None,
            "look_for_keys": node.identity_file is None,
            "allow_agent": node.identity_file is None,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
        },
    )
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    _pin_host_keys(connection.client, node)
    try:
        connection.open()
    except paramiko.BadHostKeyException as error:
        connection.close()
        raise HostKeyError(node.name, _why_no_connection(node, error)) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        connection.close()
        raise ConnectError(node.name, _why_no_connection(node, error)) from error
    connection.transport.set_keepalive(5)
    return connection


def _fabric_config() -> fabric.Config:
    """Fabric's defaults alone: neither the user's ~/.fabric.yaml nor ~/.ssh/config may change a run."""
    import fabric

    return fabric.Config(lazy=True, overrides={"load_ssh_configs": False})


def _socket(node: Node, timeout_s: float) -> socket.socket:
    """A TCP connection tuned for many small exchanges with a node that may vanish.

    Without TCP_NODELAY a connection's first command waits about 40 ms for a delayed ACK. With
    TCP_USER_TIMEOUT an unplugged node is noticed after 20 s, not after the kernel's quarter of an hour.
    """
    try:
        sock = socket.create_connection((node.address, node.port), timeout=timeout_s)
    except OSError as error:
        raise ConnectError(node.name, _why_no_connection(node, error)) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
    return sock


def _pin_host_keys(client: paramiko.SSHClient, node: Node) -> None:
    import paramiko

    name = node.address if node.port == 22 else f"[{node.address}]:{node.port}"
    for line in node.host_keys:
        kind, encoded = line.split()[:2]
        key = paramiko.PKey.from_type_string(kind, base64.b64decode(encoded))
        client.get_host_keys().add(name, kind, key)


def _why_no_connection(node: Node, error: BaseException) -> str:
    """One line for the ways in which a connection fails, and what to do next."""
    import paramiko

    where = f"{node.user}@{node.address} port {node.port}"
    if isinstance(error, paramiko.BadHostKeyException):
        return (
            f"its host key is not the one recorded for {node.address}: somebody answers in its place, "
            "or it was made anew; if you made it anew, run `clusterctl up`"
        )
    if isinstance(error, paramiko.AuthenticationException):
        return f"{where} refuses the key {node.identity_file or 'of the agent'}"
    if isinstance(error, TimeoutError):
        return f"{where} does not answer; is it up, and does its firewall let ssh in?"
    if isinstance(error, ConnectionRefusedError):
        return f"{where} refuses connections: no sshd there; run `clusterctl up` to make it right"
    return f"no ssh session with {where}: {error or type(error).__name__}"

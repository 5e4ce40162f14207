"""An open ssh connection to one node, or the one line that says why there is none. The only Fabric import.

Host keys are pinned: an unknown or changed key ends the connection, never a prompt and never AutoAddPolicy
(which Fabric sets by default).
"""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from provision.errors import ConnectError, HostKeyError, LoginRefused
from provision.jump import JUMPS, JumpError
from provision.model import Node

if TYPE_CHECKING:
    import fabric
    import paramiko

KEEPALIVE_S = 5
SILENT_S = 30.0  # behind a jump host; a slow link may need most of it for what is on its way already


@dataclass(frozen=True)
class Login:
    """What a login may try: key files, the operator's agent, a password. Never stored, never shown."""

    key_files: tuple[Path, ...] = ()
    agent: bool = False
    password: str | None = field(default=None, repr=False)


def cluster_login(node: Node) -> Login:
    """By the cluster's own key; for a node without one, by the agent."""
    return Login((node.identity_file,)) if node.identity_file else Login(agent=True)


def open_connection(node: Node, timeout_s: float, login: Login | None = None) -> fabric.Connection:
    """A connected Fabric connection whose host key is one of the node's pinned ones.

    Raises ConnectError, and of its kinds LoginRefused and HostKeyError.
    """
    # Before the imports, which take 0.1 s: meanwhile the node's sshd gets ready.
    sock = dial(node, timeout_s)
    import fabric
    import paramiko

    login = login or cluster_login(node)
    connection = fabric.Connection(
        node.address,
        user=node.user,
        port=node.port,
        config=_fabric_config(),
        connect_timeout=timeout_s,
        connect_kwargs={
            "sock": sock,
            "key_filename": [str(path) for path in login.key_files],
            "look_for_keys": node.identity_file is None and login.password is None,
            "allow_agent": login.agent,
            "password": login.password,
            "passphrase": "",  # else a password would be tried on key files
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
    except paramiko.AuthenticationException as error:
        connection.close()
        raise LoginRefused(node.name, _why_no_connection(node, error)) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        connection.close()
        raise ConnectError(node.name, _why_no_connection(node, error)) from error
    if node.jump:
        _close_when_silent(connection.transport)
    else:
        connection.transport.set_keepalive(KEEPALIVE_S)
    return connection


def _close_when_silent(transport: paramiko.Transport) -> None:
    """For a node behind a jump host, which acknowledges all that is sent: TCP never tells that it is gone."""
    import paramiko

    def ask() -> None:
        while transport.is_active():
            lost = threading.Timer(SILENT_S, transport.close)
            lost.daemon = True
            lost.start()
            with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
                transport.global_request("keepalive@openssh.com")
            lost.cancel()
            transport.join(KEEPALIVE_S)

    threading.Thread(target=ask, daemon=True).start()


def _fabric_config() -> fabric.Config:
    """Fabric's defaults alone: neither the user's ~/.fabric.yaml nor ~/.ssh/config may change a run."""
    import fabric

    return fabric.Config(lazy=True, overrides={"load_ssh_configs": False})


def greets(node: Node, timeout_s: float) -> bool:
    """True when the node's sshd greets in time, asked through its jump host where it has one."""
    try:
        connection = dial(node, timeout_s)
    except ConnectError:
        return False
    try:
        connection.settimeout(timeout_s)
        return connection.recv(4).startswith(b"SSH-")
    except OSError:
        return False
    finally:
        connection.close()


def which_greet(nodes: Sequence[Node], timeout_s: float) -> frozenset[str]:
    """Names of the nodes whose sshd greets, asked all at once."""
    if not nodes:
        return frozenset()
    with ThreadPoolExecutor(min(64, len(nodes))) as pool:
        answers = pool.map(lambda node: greets(node, timeout_s), nodes)
        return frozenset(node.name for node, answer in zip(nodes, answers, strict=True) if answer)


def shown_host_key(node: Node, timeout_s: float, prefer: Sequence[str] = ()) -> str:
    """The host key that the node shows ("ssh-ed25519 AAAA..."), of the preferred kinds where it has one.

    Nothing is sent that a stranger may not see. Raises ConnectError.
    """
    import paramiko

    try:
        with contextlib.closing(paramiko.Transport(dial(node, timeout_s))) as transport:
            transport.banner_timeout = timeout_s
            options = transport.get_security_options()
            first = [kind for kind in options.key_types if _kind_of(kind) in prefer]
            options.key_types = (*first, *(kind for kind in options.key_types if kind not in first))
            transport.start_client(timeout=timeout_s)
            key = transport.get_remote_server_key()
            return f"{key.get_name()} {key.get_base64()}"
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise ConnectError(node.name, _why_no_connection(node, error)) from error


def _kind_of(algorithm: str) -> str:
    """An RSA key goes by several algorithms."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def dial(node: Node, timeout_s: float) -> socket.socket | paramiko.Channel:
    """A byte stream to the node's sshd. Raises ConnectError."""
    if node.jump is None:
        return _socket(node, timeout_s)
    try:
        return JUMPS.channel(node.jump, node.address, node.port, timeout_s)
    except JumpError as error:
        raise ConnectError(node.name, str(error)) from error


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

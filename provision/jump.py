"""Through jump hosts: one connection for all nodes behind them, as an operator's own, by his keys or agent.

Their host keys are those of the operator's known_hosts: a jump host is his way into a network, met before
any cluster was.
"""

from __future__ import annotations

import base64
import socket
import threading
from typing import TYPE_CHECKING, cast

from provision.errors import SettingsError
from provision.openssh import Destination, known_keys, resolve

if TYPE_CHECKING:
    import paramiko

MOST_HOPS = 8


class JumpError(OSError):
    """The way through a jump host is closed; the message says where and why, in one line."""


class Jumps:
    """The connections to jump hosts that this process has open.

    Shared, because an sshd turns away more than ten logins at once (MaxStartups), and a hundred nodes may
    stand behind one. They end with the process.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[str, ...], paramiko.SSHClient] = {}
        self._hops: dict[str, tuple[Destination, ...]] = {}
        self._opening = threading.Lock()

    def channel(self, jump: str, address: str, port: int, timeout_s: float) -> paramiko.Channel:
        """A byte stream to the address, from the last jump host. Raises JumpError."""
        import paramiko

        with self._opening:
            try:
                hops = self._hops[jump] = self._hops.get(jump) or hops_of(jump)
            except SettingsError as error:
                raise JumpError(str(error)) from error
            transport = self._transport(hops, timeout_s)
        try:
            return transport.open_channel(
                "direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=timeout_s
            )
        except paramiko.ChannelException as error:
            raise JumpError(
                f"{address} port {port} cannot be reached from jump host {hops[-1]}: {error.text or error}"
            ) from error
        except (paramiko.SSHException, EOFError) as error:
            raise JumpError(
                f"jump host {hops[-1]} does not reach {address} port {port}: {error or 'closed'}"
            ) from error

    def _transport(self, hops: tuple[Destination, ...], timeout_s: float) -> paramiko.Transport:
        """Of the last hop, opened through those before it."""
        path = tuple(map(str, hops))
        client = self._clients.get(path)
        transport = client.get_transport() if client else None
        if transport is None or not transport.is_active():
            sock = self._socket(hops, timeout_s)
            self._clients[path] = client = _login(hops[-1], sock, timeout_s)
            transport = client.get_transport()
            assert transport
            transport.set_keepalive(5)
        return transport

    def _socket(self, hops: tuple[Destination, ...], timeout_s: float) -> socket.socket | paramiko.Channel:
        import paramiko

        last = hops[-1]
        try:
            if len(hops) == 1:
                return socket.create_connection((last.host, last.port), timeout=timeout_s)
            before = self._transport(hops[:-1], timeout_s)
            return before.open_channel(
                "direct-tcpip", (last.host, last.port), ("127.0.0.1", 0), timeout=timeout_s
            )
        except JumpError:
            raise
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise JumpError(f"jump host {last} cannot be reached: {error or 'closed'}") from error


JUMPS = Jumps()


def hops_of(jump: str) -> tuple[Destination, ...]:
    """The jump hosts of "a" or "a,b", in the order of travel; the first one's own ProxyJump goes before.

    Raises SettingsError when one is no destination, is behind a ProxyCommand, or leads in a circle.
    """
    names, hops = jump.split(","), list[Destination]()
    while len(hops) < MOST_HOPS:
        hop = resolve(names.pop().strip())
        if hop.proxy_command:
            raise SettingsError(
                f"jump host {hop} has a ProxyCommand in your ssh config; write it as ProxyJump instead"
            )
        hops.insert(0, hop)
        if not names and hop.jump:
            names = hop.jump.split(",")
        if not names:
            return tuple(hops)
    raise SettingsError(f"the way through {jump} has more than {MOST_HOPS} jump hosts; is it a circle?")


def _login(hop: Destination, sock: socket.socket | paramiko.Channel, timeout_s: float) -> paramiko.SSHClient:
    """Raises JumpError: unknown or changed host key, no key that it takes."""
    import paramiko

    keys = known_keys(hop)
    trusted = [key for key in keys.trusted if key not in keys.revoked]
    if not trusted:
        raise JumpError(f"the host key of jump host {hop} is not known here; log in once with `ssh`")
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    name = hop.host if hop.port == 22 else f"[{hop.host}]:{hop.port}"
    for kind, encoded in (key.split() for key in trusted):
        key = paramiko.PKey.from_type_string(kind, base64.b64decode(encoded))
        client.get_host_keys().add(name, kind, key)
    try:
        client.connect(
            hop.host, hop.port, hop.user, sock=sock,
            key_filename=cast(str, [str(path) for path in hop.key_files]),  # its stub knows no list
            allow_agent=hop.agent, look_for_keys=False,
            timeout=timeout_s, banner_timeout=timeout_s, auth_timeout=timeout_s,
        )  # fmt: skip
    except paramiko.BadHostKeyException as error:
        client.close()
        raise JumpError(
            f"jump host {hop} shows another host key than your known_hosts has: somebody may answer in its "
            "place"
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        client.close()
        raise JumpError(
            f"jump host {hop} does not let you in ({error or type(error).__name__}); "
            "`ssh` there must work without a password"
        ) from error
    return client

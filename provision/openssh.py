"""What the operator's own ssh knows: his configuration, and the host keys that he has met. Only read.

OpenSSH is asked itself (`ssh -G`, `ssh-keygen -F`): Include, Match, tokens, patterns and hashed names mean
here what they mean to it.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from provision.block import remove_block
from provision.errors import SettingsError

ASK_TIMEOUT_S = 30.0
_DESTINATION = re.compile(r"(?:(?P<user>.+)@)?(?:\[(?P<ip>[^]]+)\]|(?P<host>[^:@]+))(?::(?P<port>\d+))?")
_KINDS = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-")
_BLOCK = re.compile(r"^# >>> clusterctl (.+) >>> managed", re.MULTILINE)
# ssh's first value wins, so what comes last are defaults. `~` is the account's home to OpenSSH, not $HOME.
_DEFAULTS = """
Match all
Include /etc/ssh/ssh_config
UserKnownHostsFile "{home}/.ssh/known_hosts" "{home}/.ssh/known_hosts2"
"""


@dataclass(frozen=True)
class Destination:
    """Where a name leads, and how one logs in there, as the operator's configuration has it.

    `key_files` are those that exist. `jump` is ProxyJump, None without; `known_as` is the name under which
    known_hosts has the host.
    """

    host: str
    user: str
    port: int
    key_files: tuple[Path, ...] = ()
    agent: bool = True
    jump: str | None = None
    proxy_command: str | None = None
    known_as: str = ""
    known_hosts: tuple[Path, ...] = ()

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" + (f":{self.port}" if self.port != 22 else "")


@dataclass(frozen=True)
class KnownKeys:
    """The host keys that known_hosts has for a host ("ssh-ed25519 AAAA..."), and those it says are stolen."""

    trusted: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()


def resolve(destination: str, user: str | None = None, port: int | None = None) -> Destination:
    """Where "host", "user@host" or "user@host:port" leads. `user` and `port` go before the configuration.

    Raises SettingsError: not a destination, or a configuration that OpenSSH refuses.
    """
    parts = _DESTINATION.fullmatch(destination)
    if not parts or destination.startswith("-"):
        raise SettingsError(f"{destination!r} is no destination such as host or user@host:port")
    user, port = user or parts["user"], port or (int(parts["port"]) if parts["port"] else None)
    options = (*(("-l", user) if user else ()), *(("-p", str(port)) if port else ()))
    with tempfile.NamedTemporaryFile("w", prefix="clusterctl-ssh-config-") as config:
        config.write(own_config() + _DEFAULTS.format(home=Path.home()))
        config.flush()
        done = subprocess.run(
            ("ssh", "-F", config.name, "-G", *options, parts["ip"] or parts["host"]),
            capture_output=True, text=True, check=False, timeout=ASK_TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no output"])[-1].replace(config.name, "~/.ssh/config")
        raise SettingsError(f"ssh does not accept your configuration for {destination}: {why}")
    return parse_settings(done.stdout)


def own_config() -> str:
    """~/.ssh/config without what clusterctl includes there for the clusters that stand."""
    path = Path.home() / ".ssh" / "config"
    text = path.read_text(errors="surrogateescape") if path.exists() else ""
    for name in _BLOCK.findall(text):
        text = remove_block(text, name)
    return text


def parse_settings(text: str) -> Destination:
    """A destination from what `ssh -G` prints.

    >>> parse_settings("hostname 10.0.0.1\\nuser ann\\nport 2222\\nproxyjump gate\\n").jump
    'gate'
    """
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        values.setdefault(name, []).append(value)

    def first(name: str) -> str | None:
        value = values.get(name, ["none"])[0]
        return None if value.lower() == "none" else value

    host = first("hostname") or ""
    keys = [_expanded(each) for each in values.get("identityfile", []) if each.lower() != "none"]
    known = f"{first('userknownhostsfile') or ''} {first('globalknownhostsfile') or ''}".split()
    return Destination(
        host=host,
        user=first("user") or getpass.getuser(),
        port=int(first("port") or 22),
        key_files=tuple(key for key in keys if key.is_file()),
        agent=values.get("identityagent", [""])[0].lower() != "none",
        jump=first("proxyjump"),
        proxy_command=first("proxycommand"),
        known_as=first("hostkeyalias") or host,
        known_hosts=tuple(path for path in map(_expanded, known) if path.is_file()),
    )


def _expanded(path: str) -> Path:
    return Path.home() / path[2:] if path.startswith("~/") else Path(path)


def known_keys(destination: Destination) -> KnownKeys:
    """What the operator's known_hosts files say of a host, hashed names included."""
    name = destination.known_as
    if destination.port != 22:
        name = f"[{name}]:{destination.port}"
    found: list[str] = []
    for path in destination.known_hosts:
        done = subprocess.run(
            ("ssh-keygen", "-F", name, "-f", str(path)),
            capture_output=True, text=True, check=False, timeout=ASK_TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found += done.stdout.splitlines()
    return parse_known(found)


def parse_known(lines: list[str]) -> KnownKeys:
    """From the lines that `ssh-keygen -F` prints. Certificate authorities are passed over.

    >>> parse_known(["# Host n1 found: line 1", "n1 ssh-ed25519 AAAA me", "@revoked * ssh-rsa BBBB"])
    KnownKeys(trusted=('ssh-ed25519 AAAA',), revoked=('ssh-rsa BBBB',))
    """
    trusted, revoked = [], []
    for line in lines:
        words = line.split()
        if len(words) >= 4 and words[0] == "@revoked":
            revoked.append(" ".join(words[2:4]))
        elif len(words) >= 3 and not words[0].startswith(("@", "#")) and words[1].startswith(_KINDS):
            trusted.append(" ".join(words[1:3]))
    return KnownKeys(tuple(trusted), tuple(revoked))


def fingerprint(key: str) -> str:
    """As ssh shows it: SHA256 of the key, in base64 without padding.

    >>> fingerprint("ssh-ed25519 AAAA")
    'SHA256:cJ6AyISHokEeHuTfufIqhhSS0gxHZRUMDHlKvXD4FHw'
    """
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

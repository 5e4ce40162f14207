"""What an instance does at its first boot, as cloud-config.

It takes a host key that is thrown away after the first login (see `contact`), and starts the watcher that
ends it in time and sees spot notices (`node_watch`). User data is shared by all instances of a RunInstances
call and can be read on them by anybody, so nothing in it may stay secret for long; at most 16 KiB
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

LIMIT_BYTES = 16 * 1024
ENDS_AT = "/etc/clusterctl/ends-at"
WATCHER = "/usr/local/lib/clusterctl/node_watch.py"

_UNIT = f"""\
[Unit]
Description=clusterctl: ends this node in time, and sees spot notices
[Service]
ExecStart=/usr/bin/python3 {WATCHER}
Restart=always
[Install]
WantedBy=multi-user.target
"""
# Hosts without systemd (the simulated EC2's) start it by themselves.
_START = (
    "if [ -d /run/systemd/system ]; then systemctl daemon-reload; systemctl enable --now clusterctl-watch; "
    f"else setsid /usr/bin/python3 {WATCHER} > /dev/null 2>&1 < /dev/null & fi"
)


@dataclass(frozen=True)
class HostKey:
    """An ed25519 host key in OpenSSH's formats; `public` without a comment."""

    private: str
    public: str


def new_host_key() -> HostKey:
    """A key made here and now, in memory alone."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(private.decode(), public.decode())


def user_data(host_key: HostKey, ends_at_s: float | None) -> str:
    """The cloud-config text. JSON is YAML, and needs no library to be written right."""
    watcher = resources.files(__package__).joinpath("node_watch.py").read_text()
    files = [
        _file(ENDS_AT, "" if ends_at_s is None else f"{ends_at_s:.0f}\n"),
        _file(WATCHER, watcher, "0755"),
        _file("/etc/systemd/system/clusterctl-watch.service", _UNIT),
    ]
    config = {
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        "write_files": files,
        "runcmd": [_START],
    }
    return f"#cloud-config\n{json.dumps(config, indent=1)}\n"


def _file(path: str, content: str, permissions: str = "0644") -> dict[str, str]:
    return {"path": path, "content": content, "permissions": permissions, "owner": "root:root"}

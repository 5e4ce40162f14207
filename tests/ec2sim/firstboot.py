#!/usr/bin/python3 -ISB
"""Process 1 of a simulated instance: what Ubuntu's cloud image does when it boots, in a subset.

Runs inside the host; standard library only. Everything that is asked of the world goes through the
metadata service. Two paths there are not EC2's: /sim/user-data is the user data as JSON (the
real image has PyYAML, this machine's Python may not), /sim/boot says how this boot is to go wrong.

The order is cloud-init's: bootcmd, write_files, host keys and authorized keys come before sshd; runcmd,
scripts and the keys on the console come after it, so a host may be reachable before runcmd has ended.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import pwd
import shlex
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

METADATA = "169.254.169.254"
SEEN = Path("/var/lib/cloud/data/instance-id")
LOG = Path("/var/log/cloud-init-output.log")
SSH = Path("/etc/ssh")
USER = "ubuntu"
HOSTS_MARK = "# this host; in place of nss-myhostname (simulated)"
SUPPORTED = {"ssh_keys", "ssh_authorized_keys", "write_files", "bootcmd", "runcmd", "ssh_deletekeys"}
# `wait` collects every child, orphans included, as long as one of our own lives. sleep always does.
FOR_EVER = "while :; do sleep infinity & wait; done"
FINISHED = Path("/var/lib/cloud/instance/boot-finished")
# As far as it is asked for: `cloud-init status [--wait]`.
CLOUD_INIT = f"""\
#!/bin/sh
# simulated
while [ "$2" = --wait ] && [ ! -e {FINISHED} ]; do sleep 0.05; done
[ -e {FINISHED} ] && echo "status: done" || echo "status: running"
"""

Config = dict[str, Any]


class Metadata:
    """IMDSv2."""

    def __init__(self) -> None:
        self._token = _http("PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 300") or b""

    def get(self, path: str) -> bytes:
        """Empty when there is no such thing."""
        return _http("GET", path, f"X-aws-ec2-metadata-token: {self._token.decode()}") or b""


def main() -> None:
    console = os.dup(2)
    print("up", flush=True)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(console, 1)
    config, boot, new = {}, {}, False
    try:
        # The link's first packet may be lost while it comes up; the kernel would ask again after 1 s.
        Path("/proc/sys/net/ipv4/neigh/eth0/retrans_time_ms").write_text("100")
        metadata = Metadata()
        boot = json.loads(metadata.get("/sim/boot") or b"{}")
        time.sleep(boot.get("seconds", 0))
        instance = metadata.get("/latest/meta-data/instance-id").decode()
        new = instance != _text(SEEN)
        print(f"simulated instance {instance}: {'first boot' if new else 'boot'}", flush=True)
        if new:
            config = first_boot(metadata, boot.get("kind", ""))
            _write(SEEN, f"{instance}\n")
    except Exception:
        traceback.print_exc()
    if boot.get("kind") != "no-sshd":
        _start_sshd()
    if new and os.fork() == 0:
        _finish(config)
        os._exit(0)
    os.execv("/bin/sh", ("/bin/sh", "-c", FOR_EVER))


def first_boot(metadata: Metadata, kind: str) -> Config:
    """What comes before sshd. Returns the rest of the user data."""
    FINISHED.unlink(missing_ok=True)
    _write(Path("/usr/local/bin/cloud-init"), CLOUD_INIT, 0o755)
    config = read_user_data(metadata)
    _say_who_we_are()
    _run_script("bootcmd", _shell(config.get("bootcmd", [])))
    for entry in config.get("write_files", []):
        if not entry.get("defer"):
            write_file(entry)
    if config.get("ssh_deletekeys", True):
        for path in SSH.glob("ssh_host_*"):
            path.unlink()
    if kind != "wrong-host-key":
        write_host_keys(config.get("ssh_keys", {}))
    if not list(SSH.glob("ssh_host_*_key")):
        subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"root@{socket.gethostname()}",
                        "-f", str(SSH / "ssh_host_ed25519_key")), check=True)  # fmt: skip
    key = metadata.get("/latest/meta-data/public-keys/0/openssh-key").decode().strip()
    write_authorized_keys([key, *config.get("ssh_authorized_keys", [])])
    return config


def read_user_data(metadata: Metadata) -> Config:
    """Of #cloud-config the mapping; a script becomes {"script": text}."""
    data = metadata.get("/latest/user-data")
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data.startswith(b"#!"):
        return {"script": data.decode()}
    if not data.startswith(b"#cloud-config"):
        if data.strip():
            print("user data that is neither #cloud-config nor a #! script is ignored (simulated)")
        return {}
    config = dict(json.loads(metadata.get("/sim/user-data") or b"{}") or {})
    unknown = sorted(set(config) - SUPPORTED)
    if unknown:
        print(f"ignored in user data, as this cloud-init is simulated: {', '.join(unknown)}", flush=True)
    return config


def write_host_keys(keys: dict[str, str]) -> None:
    """{"ed25519_private": ..., "ed25519_public": ...}; a public half that is missing is derived."""
    for name, text in keys.items():
        kind, _, half = name.rpartition("_")
        path = SSH / f"ssh_host_{kind}_key{'' if half == 'private' else '.pub'}"
        _write(path, text.strip() + "\n", 0o600 if half == "private" else 0o644)
    for name in keys:
        kind, _, half = name.rpartition("_")
        if half == "private" and f"{kind}_public" not in keys:
            path = SSH / f"ssh_host_{kind}_key"
            public = subprocess.run(
                ("ssh-keygen", "-y", "-f", path), capture_output=True, text=True, check=True
            )
            _write(path.with_suffix(".pub"), public.stdout)


def write_authorized_keys(keys: list[str]) -> None:
    user = pwd.getpwnam(USER)
    folder = Path(user.pw_dir) / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    _write(folder / "authorized_keys", "".join(f"{key}\n" for key in keys if key), 0o600)
    for path in (folder, folder / "authorized_keys"):
        os.chown(path, user.pw_uid, user.pw_gid)


def write_file(entry: Config) -> None:
    """One of write_files: path, content, encoding, permissions, owner, append."""
    content = entry.get("content", "")
    data = content if isinstance(content, bytes) else str(content).encode()
    if entry.get("encoding") in ("b64", "base64", "gz+b64", "gz+base64", "gzip+b64"):
        data = base64.b64decode(data)
    if str(entry.get("encoding", "")).startswith("gz"):
        data = gzip.decompress(data)
    path = Path(entry["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = int(str(entry.get("permissions", "0644")), 8)
    path.touch(0o600)
    with path.open("ab" if entry.get("append") else "wb") as file:
        path.chmod(mode)
        file.write(data)
    subprocess.run(("chown", str(entry.get("owner", "root:root")), str(path)), check=False)


def _finish(config: Config) -> None:
    """What comes after sshd has started, in a process of its own."""
    try:
        for entry in config.get("write_files", []):
            if entry.get("defer"):
                write_file(entry)
        _run_script("runcmd", config.get("script") or _shell(config.get("runcmd", [])))
        _print_keys()
    except Exception:
        traceback.print_exc()
    _write(FINISHED, f"{time.time():.0f}\n")
    print("Cloud-init (simulated) finished", flush=True)


def _say_who_we_are() -> None:
    name = socket.gethostname()
    address = name.removeprefix("ip-").replace("-", ".")
    others = [line for line in _text(Path("/etc/hosts")).splitlines() if HOSTS_MARK not in line]
    _write(Path("/etc/hosts"), "\n".join([*others, f"{address} {name} {HOSTS_MARK}"]) + "\n")
    _write(Path("/etc/hostname"), f"{name}\n")


def _shell(commands: list[Any]) -> str:
    """cloud-init's way: a list is a command and its arguments, a string is for the shell."""
    lines = [line if isinstance(line, str) else shlex.join(map(str, line)) for line in commands]
    return "#!/bin/sh\n" + "\n".join(lines) + "\n" if lines else ""


def _run_script(name: str, text: str) -> None:
    """Its output goes to cloud-init's log, and to the console when it has ended."""
    if not text:
        return
    script = Path("/var/lib/cloud/instance/scripts") / name
    _write(script, text, 0o700)
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        start = log.tell()
        code = subprocess.run((str(script),), stdout=log, stderr=log, check=False, cwd="/").returncode
    with LOG.open(errors="replace") as log:
        log.seek(start)
        print(log.read(), end="")
    print(f"cloud-init (simulated): {name} ended with exit code {code}", flush=True)


def _start_sshd() -> None:
    subprocess.Popen(("/usr/sbin/sshd", "-D", "-e"), stdin=subprocess.DEVNULL)


def _print_keys() -> None:
    public = sorted(SSH.glob("ssh_host_*_key.pub"))
    prints = [
        subprocess.run(("ssh-keygen", "-lf", path), capture_output=True, text=True).stdout for path in public
    ]
    block = "-----BEGIN SSH HOST KEY FINGERPRINTS-----\n" + "".join(prints)
    block += "-----END SSH HOST KEY FINGERPRINTS-----\n-----BEGIN SSH HOST KEY KEYS-----\n"
    block += "".join(_text(path) + "\n" for path in public) + "-----END SSH HOST KEY KEYS-----"
    print(block, flush=True)


def _http(method: str, path: str, *headers: str) -> bytes | None:
    lines = (f"{method} {path} HTTP/1.0", f"Host: {METADATA}", "Content-Length: 0", *headers, "", "")
    for _ in range(20):
        try:
            with socket.create_connection((METADATA, 80), timeout=5) as connection:
                connection.sendall("\r\n".join(lines).encode())
                with connection.makefile("rb") as reply:
                    head, _, body = reply.read().partition(b"\r\n\r\n")
            return body if head.split(b" ", 2)[1] == b"200" else None
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("no metadata service")


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


if __name__ == "__main__":
    main()
    sys.exit()

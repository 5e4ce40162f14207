"""The image of a fresh server: what of this machine a node sees, laid over it as one shared layer.

A node's `/` is its own empty disk. On it, `usr`, `etc`, `var` (and `bin`, `lib` ... where they are no
links into usr) are overlays: the machine's folder below, this image's layer over it, the node's disk on
top. Nothing else of the machine can be seen, also not what is made later.

Of /etc and /var a node does not see what the machine keeps from ordinary users (files without the
read bit for others: host keys, hashes, sudo rules, database files), nor logs, spools, caches of
people's and homes of services. What a server needs in their place is written here.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .accounts import USER, fresh_accounts, system_homes

SYSTEM_FOLDERS = ("usr", "etc", "var", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
STACKS = "opt/clusterctl/stacks"
# Emptied whatever their modes: what people and programs of this machine left there, and the
# configuration of its own ssh and sudo.
EMPTIED = (
    "etc/ssh", "etc/sudoers.d", "etc/update-motd.d",
    "var/tmp", "var/log", "var/mail", "var/crash", "var/backups", "var/www",
    "var/spool/cron", "var/spool/mail", "var/lib/docker", "var/lib/containerd", "var/lib/systemd/coredump",
)  # fmt: skip
LEFT_OUT = (
    "etc/nologin",
    "etc/passwd-",
    "etc/group-",
    "etc/resolv.conf",
    "etc/hosts.deny",
    "etc/hosts.allow",
)
# /etc is walked whole (1,200 entries); in /var secrets sit in service folders near the top, and its depths
# (flatpak, snap) may hold a million files.
VAR_DEPTH = 3

SSHD_CONFIG = """\
# Written by clusterctl, after Ubuntu's cloud image: keys only.
Include /etc/ssh/sshd_config.d/*.conf
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM yes
UseDNS no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
# mpirun and the operator open one session a rank or a node, all at once.
MaxStartups 512
MaxSessions 512
"""


class Image(NamedTuple):
    """`layers` holds a folder for each overlaid system folder; `links` are the links of `/`.

    `baked` are layers over it, the newest first: `upper` folders of nodes' disks (see `disk`), for a node
    that starts as another one was. Paths without spaces, commas and colons.
    """

    layers: Path
    overlaid: tuple[str, ...]
    links: dict[str, str]
    uid: int
    baked: tuple[Path, ...] = ()


def prepare(layers: Path, sshd_extra: str = "", machine: Path = Path("/")) -> Image:
    """Write the shared layer. `sshd_extra` is added to sshd_config."""
    overlaid, links = system_folders(machine)
    for name in overlaid:
        _folder_like(machine / name, layers / name)
    for path in (*_secrets(machine, "etc", 99), *_secrets(machine, "var", VAR_DEPTH)):
        hide(machine, layers, path)
    passwd = (machine / "etc/passwd").read_text()
    for path in (*EMPTIED, *(home[1:] for home in system_homes(passwd))):
        if (machine / path).is_dir() and not (machine / path).is_symlink():
            empty(machine, layers, path)
    for path in LEFT_OUT:
        if os.path.lexists(machine / path):
            hide(machine, layers, path)
    _keep_log_folders(machine, layers)
    uid = _write_files(machine, layers, sshd_extra)
    return Image(layers, overlaid, links, uid)


def system_folders(machine: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Names of `/` to overlay, and those that are links with where they point (usrmerge)."""
    present = [name for name in SYSTEM_FOLDERS if os.path.lexists(machine / name)]
    links = {name: str((machine / name).readlink()) for name in present if (machine / name).is_symlink()}
    return tuple(name for name in present if name not in links), links


def hide(machine: Path, layers: Path, path: str) -> None:
    """A file is whited out; a folder stays, with its owner and mode, and is empty."""
    if (machine / path).is_dir() and not (machine / path).is_symlink():
        return empty(machine, layers, path)
    _parents(machine, layers, path)
    _remove(layers / path)
    os.mknod(layers / path, stat.S_IFCHR, os.makedev(0, 0))
    return None


def empty(machine: Path, layers: Path, path: str) -> None:
    """The folder as on the machine, with nothing in it."""
    _parents(machine, layers, path)
    _folder_like(machine / path, layers / path)
    os.setxattr(layers / path, "trusted.overlay.opaque", b"y")


def _secrets(machine: Path, top: str, depth: int) -> Iterator[str]:
    """Entries that others than owner and group may not read; a hidden folder is not entered."""
    for entry in os.scandir(machine / top):
        path, kind = f"{top}/{entry.name}", entry.stat(follow_symlinks=False)
        if entry.is_symlink():
            continue
        if not kind.st_mode & stat.S_IROTH:
            yield path
        elif entry.is_dir(follow_symlinks=False) and depth > 1 and not _emptied(path):
            yield from _secrets(machine, path, depth - 1)


def _emptied(path: str) -> bool:
    return path in EMPTIED


def _keep_log_folders(machine: Path, layers: Path) -> None:
    """Packages made these when they were installed, and expect them (apt: /var/log/apt)."""
    for entry in os.scandir(machine / "var/log"):
        if entry.is_dir(follow_symlinks=False):
            _folder_like(Path(entry.path), layers / "var/log" / entry.name)


def _write_files(machine: Path, layers: Path, sshd_extra: str) -> int:
    accounts = fresh_accounts((machine / "etc/passwd").read_text(), (machine / "etc/group").read_text())
    write = _writer(machine, layers)
    write("etc/passwd", accounts.passwd, 0o644)
    write("etc/group", accounts.group, 0o644)
    write("etc/shadow", accounts.shadow, 0o640)
    write("etc/gshadow", accounts.gshadow, 0o640)
    write("etc/sudoers", SUDOERS, 0o440)
    write("etc/sudoers.d/90-cloud-init-users", f"{USER} ALL=(ALL) NOPASSWD:ALL\n", 0o440)
    write("etc/ssh/sshd_config", SSHD_CONFIG + sshd_extra, 0o644)
    write("etc/ssh/ssh_config", SSH_CONFIG, 0o644)
    for folder in ("etc/ssh/sshd_config.d", "etc/ssh/ssh_config.d"):
        (layers / folder).mkdir(mode=0o755, exist_ok=True)
    # A name server on loopback that is not there: a look-up fails at once, where an unreachable one
    # costs apt or pip half a minute.
    write("etc/resolv.conf", "nameserver 127.0.0.1\n", 0o644)
    write("etc/fstab", "", 0o644)
    write("etc/environment", f'PATH="{PATH}"\n', 0o644)
    write("etc/default/locale", "LANG=C.UTF-8\n", 0o644)
    return accounts.uid


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SUDOERS = f"""\
Defaults env_reset
Defaults secure_path="{PATH}"
root ALL=(ALL:ALL) ALL
%sudo ALL=(ALL:ALL) ALL
@includedir /etc/sudoers.d
"""
SSH_CONFIG = """\
Include /etc/ssh/ssh_config.d/*.conf
Host *
    SendEnv LANG LC_*
    HashKnownHosts yes
"""


def _writer(machine: Path, layers: Path) -> Callable[[str, str, int], None]:
    def write(path: str, text: str, mode: int) -> None:
        _parents(machine, layers, path)
        _remove(layers / path)
        (layers / path).write_text(text)
        (layers / path).chmod(mode)

    return write


def _remove(path: Path) -> None:
    if os.path.lexists(path):
        path.unlink()


def _parents(machine: Path, layers: Path, path: str) -> None:
    """A folder of an upper layer shows its own mode and owner, so it takes the machine's."""
    missing = [parent for parent in Path(path).parents if not (layers / parent).exists()]
    for parent in reversed(missing):
        _folder_like(machine / parent, layers / parent)


def _folder_like(model: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if model.is_dir():
        owner = model.stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
        shutil.copymode(model, folder)

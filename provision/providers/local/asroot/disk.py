"""A node's disk: its own `/`, its writable layers over the image, and what makes it this node."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from . import run
from .accounts import USER
from .image import STACKS, Image

# Fresh folders of `/` with their modes; `ubuntu`'s home is put in home.
FRESH = {
    "home": 0o755, "root": 0o700, "tmp": 0o1777, "mnt": 0o755, "media": 0o755, "srv": 0o755, "opt": 0o755,
    "boot": 0o755, "proc": 0o555, "sys": 0o555, "dev": 0o755, "run": 0o755,
}  # fmt: skip


def make_disk(folder: Path, size_mib: int) -> None:
    """Mount an empty tmpfs: one a node, so that a full disk stays that node's own trouble."""
    folder.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=755,nodev", "clusterctl", str(folder))


def fill_disk(folder: Path, image: Image, name: str, address: str, public_key: str) -> str:
    """Write what a first boot writes. Returns the public host key, "ssh-ed25519 AAAA..."."""
    lay_out(folder, image)
    make_home(folder / "root/home" / USER, image, public_key)
    etc = folder / "upper/etc"
    write_identity(etc, name, address)
    return _make_host_key(etc, image, name)


def lay_out(folder: Path, image: Image) -> None:
    """The folders of `/`, empty but for its links, and an empty top layer for each overlaid one."""
    root = folder / "root"
    for entry, mode in {"": 0o755, **FRESH}.items():
        (root / entry).mkdir()
        (root / entry).chmod(mode)
    for entry, target in image.links.items():
        (root / entry).symlink_to(target)
    for entry in image.overlaid:
        (root / entry).mkdir()
    (root / STACKS).mkdir(parents=True)
    add_top_layer(folder, image)


def add_top_layer(folder: Path, image: Image) -> None:
    for entry in image.overlaid:
        _folder(folder / "upper" / entry, image.layers / entry)
        (folder / "work" / entry).mkdir(parents=True)


def write_identity(etc: Path, name: str, address: str) -> None:
    (etc / "hostname").write_text(f"{name}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
    (etc / "machine-id").write_text(os.urandom(16).hex() + "\n")


def _make_host_key(etc: Path, image: Image, name: str) -> str:
    _folder(etc / "ssh", image.layers / "etc/ssh")
    key = etc / "ssh/ssh_host_ed25519_key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"root@{name}", "-f", str(key))
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


def make_home(home: Path, image: Image, public_key: str) -> None:
    """The home of `ubuntu`, who may log in with the key."""
    skeleton = Path("/etc/skel")
    if skeleton.is_dir():
        shutil.copytree(skeleton, home, symlinks=True)
    else:
        home.mkdir()
    (home / ".ssh").mkdir()
    (home / ".ssh/authorized_keys").write_text(public_key.strip() + "\n")
    (home / ".ssh/authorized_keys").chmod(0o600)
    (home / ".ssh").chmod(0o700)
    home.chmod(0o750)
    for path in (home, *home.rglob("*")):
        os.chown(path, image.uid, image.uid, follow_symlinks=False)


def _folder(folder: Path, model: Path) -> None:
    folder.mkdir(parents=True)
    owner = model.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    folder.chmod(owner.st_mode & 0o7777)

"""A simulated instance's host: the local provider's, on a routed link, started as EC2 starts one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.providers.local.asroot import run
from provision.providers.local.asroot.accounts import USER
from provision.providers.local.asroot.disk import (
    add_top_layer,
    lay_out,
    make_disk,
    make_home,
    write_identity,
)
from provision.providers.local.asroot.host import DROPPED, Host, Place
from provision.providers.local.asroot.image import Image
from tests.ec2sim.router import attach_commands

FIRST_BOOT = Path(__file__).with_name("firstboot.py")


@dataclass(frozen=True)
class MachineImage:
    """What an AMI holds: layers for the overlays, and the other folders of `/` (None: a fresh server's)."""

    layers: Image
    root: Path | None = None


class SimulatedHost(Host):
    """Its root may power it off: in a pid namespace reboot(2) ends that namespace only."""

    init = FIRST_BOOT
    dropped = tuple(name for name in DROPPED if name != "sys_boot")

    def __init__(
        self, name: str, place: Place, settings: Mapping[str, Any], gateway: str, root: Path | None
    ) -> None:
        super().__init__(name, place, settings)
        self.gateway = gateway
        self._root = root

    def make(self, public_key: str = "") -> None:
        """The disk as its image has it; keys and users' data are the first boot's business."""
        disk, image = self.place.folder / "disk", self.place.image
        make_disk(disk, int(self.settings["disk_mib"]))
        if self._root:
            run("cp", "-a", str(self._root), str(disk / "root"))
            add_top_layer(disk, image)
        else:
            lay_out(disk, image)
            make_home(disk / "root/home" / USER, image, public_key)
            write_identity(disk / "upper/etc", self.name, str(self.place.address))
            (disk / "upper/etc/hosts").write_text("127.0.0.1 localhost\n")

    def link_commands(self) -> list[str]:
        return attach_commands(self.place.link, str(self.place.address))

    def wait(self) -> int | None:
        """Exit code once process 1 has ended: -2 powered off, -1 restarted from inside (reboot(2))."""
        process = self._process
        return process.wait() if process else None


class Images:
    """Machine images by AMI; one that is not known here is the fresh server's."""

    def __init__(self, folder: Path, fresh: Image) -> None:
        self._folder = folder
        self._fresh = MachineImage(fresh)
        self._baked: dict[str, MachineImage] = {}
        self._lock = threading.Lock()

    def of(self, image_id: str) -> MachineImage:
        return self._baked.get(image_id, self._fresh)

    def bake(self, image_id: str, host: SimulatedHost) -> None:
        """Copy the disk of a host; one that runs is copied as it is at this moment."""
        disk, folder = host.place.folder / "disk", self._folder / image_id
        folder.mkdir(parents=True)
        for part in ("root", "upper"):
            run("cp", "-a", str(disk / part), str(folder / part))
        layers = host.place.image
        baked = layers._replace(baked=(folder / "upper", *layers.baked))
        with self._lock:
            self._baked[image_id] = MachineImage(baked, folder / "root")

    def forget(self, image_id: str) -> None:
        """Its files stay while the world lives, as hosts may run from them."""
        with self._lock:
            self._baked.pop(image_id, None)

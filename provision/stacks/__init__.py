"""Stacks: the matched, locked versions that every node trains with, at one path on all nodes.

A stack's name carries the hash of its lock, so a changed lock is another folder and "is it as wanted?" is
one look for a file. Built once: on the head and copied out from there, or, where all nodes mount one
folder (`Cluster.shared_stack`), on the operator's machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from provision.errors import ProviderError, SettingsError
from provision.facts import MANIFEST, STACKS

# PyPI's torch for Linux on x86 is the CUDA build, several GB with its packages; this index has the CPU one.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
KNOWN = ("native",)


@dataclass(frozen=True)
class Stack:
    """A lock and the index that torch's CPU build comes from when pip itself finds none."""

    kind: str
    lock: str
    torch_index: str = TORCH_CPU_INDEX

    @property
    def name(self) -> str:
        """Unique for what is in it: "native-0f3a5c7d9e1b"."""
        return f"{self.kind}-{hashlib.sha256(self.lock.encode()).hexdigest()[:12]}"

    @property
    def path(self) -> str:
        """Its folder, the same on all nodes."""
        return f"{STACKS}/{self.name}"


def stack_named(kind: str, torch_index: str = TORCH_CPU_INDEX) -> Stack:
    """The stack of that kind. Raises SettingsError naming those there are."""
    if kind not in KNOWN:
        raise SettingsError(f"no stack {kind!r}; there is {', '.join(KNOWN)}")
    lock = resources.files(__name__).joinpath(f"{kind}.txt").read_text()
    return Stack(
        kind, "".join(f"{line}\n" for line in lock.splitlines() if not line.startswith("#")), torch_index
    )


def build_script() -> str:
    """The self-contained Python script that builds a stack; it runs on whichever machine builds."""
    return resources.files(__name__).joinpath("build.py").read_text()


def build_order(stack: Stack, folder: str) -> bytes:
    """What the build script reads from its stdin after the script: everything it needs, as JSON."""
    order = {
        "folder": folder,
        "final_folder": stack.path,
        "name": stack.name,
        "lock": stack.lock,
        "torch_index": stack.torch_index,
        "manifest": MANIFEST,
    }
    return json.dumps(order).encode()


def is_built(stack: Stack, store: Path) -> bool:
    return (store / stack.name / MANIFEST).exists()


def build_here(stack: Stack, store: Path, progress: Callable[[str], None]) -> None:
    """Build the stack in a folder of this machine that all nodes mount, unless it is there.

    `store` is what the nodes see as /opt/clusterctl/stacks. The system's python3 is used, the one that the
    nodes have. Raises ProviderError with the last line that the build printed.
    """
    if is_built(stack, store):
        return
    store.mkdir(parents=True, exist_ok=True)
    command = ["/usr/bin/python3", "-c", build_script()]
    order = build_order(stack, str(store / stack.name))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        build = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
    except OSError as error:
        raise ProviderError(
            f"cannot build the stack: {error}; sudo apt-get install -y python3-venv"
        ) from error
    with build:
        assert build.stdin is not None
        assert build.stdout is not None
        build.stdin.write(order)
        build.stdin.close()
        last = ""
        for line in build.stdout:
            last = line.decode(errors="replace").strip() or last
            progress(last)
    if build.returncode:
        raise ProviderError(f"the stack {stack.name} was not built: {last}")


def version_problems(manifest_and_listing: str) -> list[str]:
    """What a stack's folder holds that its manifest does not say, as "torch 2.12.0, wanted 2.13.0".

    The text is the manifest's one line, then the names of the `*.dist-info` folders.
    """
    first, _, listing = manifest_and_listing.partition("\n")
    try:
        wanted: Mapping[str, str] = json.loads(first)["versions"]
    except (ValueError, KeyError, TypeError):
        return ["its manifest cannot be read"]
    found = dict(
        line.strip().removesuffix(".dist-info").split("-", 1) for line in listing.splitlines() if line.strip()
    )
    return [
        f"{name} {found.get(name, 'missing')}, wanted {wanted.get(name, 'none')}"
        for name in sorted(set(wanted) | set(found))
        if wanted.get(name) != found.get(name)
    ]

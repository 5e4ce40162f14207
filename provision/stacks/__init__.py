"""Stacks: the matched, locked versions that every node trains with, at one path on all nodes.

A stack's name carries the hash of its lock, so a changed lock is another folder and "is it as wanted?" is
one look for a file. Built once: on the head and copied out from there, or, where all nodes mount one
folder (`Cluster.shared_stack`), on the operator's machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Protocol

from provision.errors import ProviderError, SettingsError
from provision.facts import MANIFEST, STACKS
from provision.stacks.kinds import FIRST_PYTHON, KINDS, NONE, SYSTEM_PYTHON, TORCH_CPU_INDEX, Kind, span
from provision.stacks.versions import CCL, IPEX, TORCH, ccl_module, require_matched

_MARK = "# stack_index"  # in a lock: a package that is on no index but the stack's own


@dataclass(frozen=True)
class Stack:
    """A lock, where its packages come from, and the Pythons that they were built for (first, last).

    `own_lines` are those of the lock that only `stack_index` has. An index of "none" is none: pip takes torch
    with all that it needs from where it takes the rest, and a stack is built without its own lines.
    `packages` are the user's: pip chooses what they need when the stack is built, and leaves what is locked
    as it is.
    """

    kind: str
    lock: str
    torch_index: str = TORCH_CPU_INDEX
    stack_index: str = NONE
    own_lines: tuple[str, ...] = ()
    pythons: tuple[str, str] = (FIRST_PYTHON, "")
    packages: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Unique for what was asked for: "native-0f3a5c7d9e1b"."""
        asked = self.lock + "".join(f"and {package}\n" for package in sorted(self.packages))
        return f"{self.kind}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"

    @property
    def path(self) -> str:
        """Its folder, the same on all nodes."""
        return f"{STACKS}/{self.name}"

    @property
    def versions(self) -> Mapping[str, str]:
        """What the lock says, by package; of several Pythons' lines the last."""
        found = (_PINNED.match(line) for line in self.lock.splitlines())
        return {normalised(match[1]): match[2] for match in found if match}


_PINNED = re.compile(r"([\w.-]+)==([^\s;]+)")
_REQUIREMENT = re.compile(r"(\w[\w.-]*)\s*(\[[\w., -]+\])?\s*([=<>!~@;].*)?$")  # name, extras, which


class Settings(Protocol):
    """What an inventory and a cluster's record say of the stack."""

    @property
    def stack(self) -> str: ...
    @property
    def stack_index(self) -> str | None: ...
    @property
    def torch_index(self) -> str | None: ...
    @property
    def packages(self) -> tuple[str, ...]: ...


def stack_of(settings: Settings) -> Stack:
    """The stack that is wanted. Raises SettingsError as stack_named does."""
    return stack_named(settings.stack, settings.torch_index, settings.stack_index, settings.packages)


def stack_named(
    kind: str,
    torch_index: str | None = None,
    stack_index: str | None = None,
    packages: Sequence[str] = (),
) -> Stack:
    """The stack of that kind, or of a lock file of the user's own: a path that ends with .txt.

    Raises SettingsError: no such kind or file, versions in it that do not go together, or packages that are
    none, or are in it already as another version.
    """
    own_file = kind.endswith(".txt")
    known = Kind(f"your own lock, {kind}", ("3.8", "")) if own_file else KINDS.get(kind)
    if known is None:
        raise SettingsError(f"no stack {kind!r}; there is {', '.join(KINDS)}, or the path of a lock (.txt)")
    text = _own_lock(Path(kind)) if own_file else _text_of(kind)
    index = stack_index or known.stack_index or NONE
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    theirs = tuple(line.partition("#")[0].strip() for line in lines if line.endswith(_MARK))
    kept = [line.removesuffix(_MARK).rstrip() for line in lines if index != NONE or not line.endswith(_MARK)]
    stack = Stack(
        Path(kind).stem if own_file else kind,
        "".join(f"{line}\n" for line in kept),
        torch_index or TORCH_CPU_INDEX,
        index,
        theirs if index != NONE else (),
        known.pythons,
    )
    if own_file:
        require_matched(stack.versions, kind)
    return replace(stack, packages=tuple(_wanted_packages(stack, packages)))


def _wanted_packages(stack: Stack, packages: Sequence[str]) -> Iterator[str]:
    """Those that the stack does not have. Raises SettingsError."""
    for package in dict.fromkeys(each.strip() for each in packages):
        found = _REQUIREMENT.match(package)
        if found is None:
            raise SettingsError(
                f"packages: {package!r} is no package; write each as pip takes it: evaluate, or "
                "evaluate==0.4.6"
            )
        name, extras, which = found.groups()
        locked = stack.versions.get(normalised(name))
        if locked and which and which.replace(" ", "") != f"=={locked}":
            raise SettingsError(
                f"packages: {package}: stack {stack.kind} has {name} {locked}, and is matched as it is; for "
                "another version give a lock of your own, stack: mine.txt"
            )
        if extras or not locked:
            yield package


def _text_of(kind: str) -> str:
    return resources.files(__name__).joinpath(f"{kind}.txt").read_text()


def _own_lock(path: Path) -> str:
    try:
        return path.expanduser().read_text()
    except OSError as error:
        raise SettingsError(f"stack {path}: {error.strerror}; there is {', '.join(KINDS)}") from error


def refuse_python(stack: Stack, python: str, where: str) -> None:
    """Raises SettingsError where that Python, 3.11.2, is none that the stack's packages were built for."""
    first, last = stack.pythons
    minor = tuple(int(part) for part in python.split(".")[:2])
    if minor < _minor(first) or (last and minor > _minor(last)):
        raise SettingsError(
            f"{where}: stack {stack.kind} needs Python {span(stack.pythons)}, {python} is there; take nodes "
            "of a distribution that has one, or stack: native"
        )


def _minor(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split("."))


def python_here() -> str:
    """The version of the Python that builds stacks on this machine; "" without one."""
    command = [SYSTEM_PYTHON, "-c", "import platform; print(platform.python_version())"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


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
        "stack_index": stack.stack_index,
        "own_lines": stack.own_lines,
        "packages": stack.packages,
        "pythons": stack.pythons,
        "kind": stack.kind,
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
    command = [SYSTEM_PYTHON, "-c", build_script()]
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


def normalised(package: str) -> str:
    """
    >>> normalised("oneccl_bind_pt")
    'oneccl-bind-pt'
    """
    return re.sub(r"[-_.]+", "-", package).lower()


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


def look_script() -> str:
    """The self-contained Python script that a stack's own Python runs to look at it."""
    return resources.files(__name__).joinpath("look.py").read_text()


def look_order(stack: Stack) -> bytes:
    """What the look reads from its stdin, as JSON."""
    modules = [module for package, module in _modules(stack) if package in stack.versions]
    return json.dumps({"lock": stack.lock, "manifest": MANIFEST, "modules": modules}).encode()


def _modules(stack: Stack) -> tuple[tuple[str, str], ...]:
    ipex = "intel_extension_for_pytorch"
    return ((TORCH, "torch"), (IPEX, ipex), (CCL, ccl_module(stack.versions.get(TORCH, "2.8.0"))))

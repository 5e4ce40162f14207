"""Build a stack: a virtual environment with exactly the locked versions. Runs alone, on any node.

Reads its order as JSON from stdin (see build_order). The manifest is written last, so a folder without one
is a build that was cut off, and is started over. Prints what it does, a line each; the last line of a failed
build says why.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    os.umask(0o022)  # nodes read the stack as another user than the one who builds it
    order = json.loads(sys.stdin.read())
    folder = Path(order["folder"])
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds at once: the second finds the first's work
        if not (folder / order["manifest"]).exists():
            build(folder, order)
    print("built")


def build(folder: Path, order: dict[str, Any]) -> None:
    refuse_python(order)
    shutil.rmtree(folder, ignore_errors=True)
    say("making the environment")
    run([sys.executable, "-m", "venv", str(folder)], "sudo apt-get install -y python3-venv")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q", "--no-input"]
    own_lines = order["own_lines"]
    if own_lines:  # first: they are what may not be had, and the rest takes minutes
        install_own(pip, own_lines, order)
    locked = [line for line in order["lock"].splitlines() if line.strip()]
    torch = next((line for line in locked if line.startswith("torch==")), None)
    if torch:
        install_torch(pip, torch, order["torch_index"])
    say(f"installing {len(locked)} packages")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(line for line in locked if line != torch and line not in own_lines))
        requirements.flush()
        run([*pip, "install", "--no-deps", "-r", requirements.name])
    if order["packages"]:
        install_packages(pip, locked, order["packages"])
    point_scripts_at(folder, order["final_folder"])
    write_manifest(folder, order)


def refuse_python(order: dict[str, Any]) -> None:
    first, last = order["pythons"]
    here = sys.version_info[:2]
    if here < minor(first) or (last and here > minor(last)):
        needed = f"{first} to {last}" if last else f"{first} or newer"
        sys.exit(
            f"stack {order['kind']} needs Python {needed}, {platform.python_version()} is here; take nodes "
            "of a distribution that has one, or stack: native"
        )


def minor(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split("."))


def install_own(pip: list[str], lines: list[str], order: dict[str, Any]) -> None:
    """What only the stack's own index has: an index, a page with links, or a folder of wheels."""
    index = order["stack_index"]
    what = ", ".join(lines)
    say(f"installing {what} from {index}")
    where = ["--index-url", index] if "://" in index else ["--no-index"]
    once = ["--retries", "1", "--timeout", "30"]
    done = subprocess.run(
        [*pip, "install", "--no-deps", *once, *where, "--find-links", index, *lines],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        sys.exit(
            f"{what} cannot be had from {index}: name an index or a folder that has it as stack_index in the "
            "inventory, or stack_index: none to build without (then there is no backend ccl)"
        )


def install_packages(pip: list[str], locked: list[str], packages: list[str]) -> None:
    """The user's, with what they need beside the locked ones, which stay as they are."""
    say(f"installing {', '.join(packages)} and what that needs")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(line for line in locked if "==" in line))
        constraints.flush()
        run(
            [*pip, "install", "-c", constraints.name, *packages],
            "see `packages` in the inventory: each has to go with the versions of the stack",
        )


def install_torch(pip: list[str], torch: str, index: str) -> None:
    """The CPU build; where no index is to be asked, the one that pip finds, with what it needs."""
    if index == "none":
        say(f"installing {torch} as pip finds it")
        run([*pip, "install", torch])
        return
    say(f"installing {torch}, the CPU build")
    run(
        [*pip, "install", "--no-deps", *torch_index(pip, torch, index), torch],
        f"torch_index in the inventory names the index, {index}",
    )


def torch_index(pip: list[str], torch: str, index: str) -> list[str]:
    """The options with which pip takes torch's CPU build and not the CUDA one.

    A local version "+cpu" that pip finds by itself (a find-links folder, a mirror) is taken as it is;
    other than on x86 the plain build is the CPU build.
    """
    if platform.machine() != "x86_64":
        return []
    found = subprocess.run(
        [*pip, "install", "--no-deps", "--dry-run", "--ignore-installed", "--report", "-", torch],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    chosen = json.loads(found.stdout)["install"][0]["metadata"]["version"] if found.returncode == 0 else ""
    return [] if chosen.endswith("+cpu") else ["--index-url", index]


def point_scripts_at(folder: Path, final_folder: str) -> None:
    """Make the scripts in bin/ start the python of the folder as the nodes see it."""
    for script in (folder / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        first = b"#!" + str(folder).encode() + b"/"
        if content.startswith(first):
            script.write_bytes(b"#!" + final_folder.encode() + b"/" + content[len(first) :])


def write_manifest(folder: Path, order: dict[str, Any]) -> None:
    names = [path.name for path in folder.glob("lib/python3*/site-packages/*.dist-info")]
    versions = dict(name[: -len(".dist-info")].split("-", 1) for name in names)
    manifest = {"name": order["name"], "python": platform.python_version(), "versions": versions}
    partial = folder / (order["manifest"] + ".partial")
    partial.write_text(json.dumps(manifest, sort_keys=True) + "\n")
    os.sync()
    partial.rename(folder / order["manifest"])


def run(command: list[str], fix: str = "") -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"error|no space|not available", line, re.I)]
        why = (errors or lines or ["no output"])[0]
        sys.exit(f"{why}{'; ' + fix if fix else ''}")


def say(text: str) -> None:
    print(text, flush=True)


main()

"""Build a stack: a virtual environment with exactly the locked versions. Runs alone, on any node.

Reads its order as JSON from stdin (see build_order). The manifest is written last, so a folder without one
is a build that was cut off, and is started over. Prints what it does, a line each; the last line of a failed
build says why.
"""

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


def build(folder: Path, order: dict[str, str]) -> None:
    if sys.version_info < (3, 11):
        sys.exit(f"Python {platform.python_version()} is too old for this stack, it needs 3.11 or newer")
    shutil.rmtree(folder, ignore_errors=True)
    say("making the environment")
    run([sys.executable, "-m", "venv", str(folder)], "sudo apt-get install -y python3-venv")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q", "--no-input"]
    locked = [line for line in order["lock"].splitlines() if line.strip()]
    torch = next((line for line in locked if line.startswith("torch==")), None)
    if torch:
        say(f"installing {torch}, the CPU build")
        run([*pip, "install", "--no-deps", *torch_index(pip, torch, order["torch_index"]), torch])
    say(f"installing {len(locked)} packages")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(line for line in locked if line != torch))
        requirements.flush()
        run([*pip, "install", "--no-deps", "-r", requirements.name])
    point_scripts_at(folder, order["final_folder"])
    write_manifest(folder, order)


def torch_index(pip: list[str], torch: str, index: str) -> list[str]:
    """The options with which pip takes torch's CPU build and not the CUDA one.

    A local version "+cpu" that pip finds by itself (a find-links folder, a mirror) is taken as it is;
    other than on x86 the plain build is the CPU build.
    """
    if platform.machine() != "x86_64":
        return []
    found = subprocess.run(
        [*pip, "install", "--no-deps", "--dry-run", "--ignore-installed", "--report", "-", torch],
        capture_output=True,
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


def write_manifest(folder: Path, order: dict[str, str]) -> None:
    names = [path.name for path in folder.glob("lib/python3*/site-packages/*.dist-info")]
    versions = dict(name.removesuffix(".dist-info").split("-", 1) for name in names)
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

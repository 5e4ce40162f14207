"""Look at a stack from inside: what is installed against its lock, and whether it can be imported.

Runs alone, by the stack's own Python. Reads its order as JSON from stdin (see look_order), prints one JSON
object: `python`, `versions` of all that is installed, `problems` as "numpy missing, wanted 2.5.5", and
`imports`, module -> {"version", "seconds"} or {"error"}. Each is imported in a child, which may crash.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from importlib import metadata, util
from pathlib import Path
from typing import Any

from pip._vendor.packaging.requirements import Requirement

IMPORT_LIMIT_S = 180.0


def main() -> None:
    order = json.loads(sys.stdin.read())
    versions = {normalised(str(each.metadata["Name"])): each.version for each in metadata.distributions()}
    found = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": versions,
        "problems": list(problems(versions, order["lock"], order["manifest"])),
        "imports": {module: try_import(module) for module in order["modules"]},
    }
    print(json.dumps(found))


def problems(versions: dict[str, str], lock: str, manifest: str) -> list[str]:
    wanted = [Requirement(line) for line in lock.splitlines() if "==" in line]
    wanted = [each for each in wanted if each.marker is None or each.marker.evaluate()]
    found = []
    for each in wanted:
        installed = versions.get(normalised(each.name), "missing")
        if installed == "missing" or not each.specifier.contains(installed, prereleases=True):
            found.append(f"{each.name} {installed}, wanted {str(each.specifier)[2:]}")
    return found + beyond(versions, {normalised(each.name) for each in wanted}, Path(sys.prefix) / manifest)


def beyond(versions: dict[str, str], locked: set[str], manifest: Path) -> list[str]:
    """What was installed, changed or removed after the stack was built, beside what is locked."""
    try:
        built = json.loads(manifest.read_text())["versions"]
    except (OSError, ValueError, KeyError, TypeError):
        return ["its manifest cannot be read"]
    built = {normalised(name): version for name, version in built.items()}
    return [
        f"{name} {versions.get(name, 'missing')}, wanted {built.get(name, 'none')}"
        for name in sorted((set(versions) | set(built)) - locked)
        if versions.get(name) != built.get(name)
    ]


def try_import(module: str) -> dict[str, Any]:
    code = f"import torch, {module}; print('version', getattr({module}, '__version__', ''))"
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*with_setvars(module), sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=IMPORT_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not imported after {IMPORT_LIMIT_S:.0f} s"}
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"ended with code {done.returncode}"}
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("version"))
    return {"version": line.partition(" ")[2], "seconds": round(time.monotonic() - began, 1)}


def with_setvars(module: str) -> list[str]:
    """What starts the child where the module needs an environment of its own, as Intel's oneCCL does."""
    spec = util.find_spec(module)
    place = Path(spec.origin).parent / "env" / "setvars.sh" if spec and spec.origin else None
    if place is None or not place.exists():
        return []
    return ["bash", "-c", '. "$0" >/dev/null && exec "$@"', str(place)]


def normalised(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


main()

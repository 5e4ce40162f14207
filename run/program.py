"""What every rank runs: a recipe of clusterctl's, or somebody's own script, module, program or bash line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from provision.errors import SettingsError

RECIPES: Mapping[str, str] = {"run_qa": "question_answering.py", "run_pretraining": "pretraining.py"}
KINDS = ("auto", "module", "bash")
WORK_FOLDER = "work"
IGNORE_FILE = ".clusterctlignore"
MOST_FILES = 5000
MOST_MIB = 512
ALWAYS_IGNORED = (".*", "__pycache__", "*.pyc", "node_modules", "*.egg-info")
"""Hidden files first of all: they are no part of a program, and some hold secrets."""
MADE = (("pyvenv.cfg",), ("plan.txt", "summary.json"))
"""Files that tell a folder by what made it, whatever it is called."""


@dataclass(frozen=True)
class Program:
    """`command` is what rank.py is to run, without the user's arguments; `files` go into the run folder.

    `reports` is true for the recipes, which tell when their ranks have met and how far they are.
    """

    name: str
    command: tuple[str, ...]
    files: Mapping[str, Path] = field(default_factory=dict)
    source: Path | None = None

    @property
    def reports(self) -> bool:
        return self.source is None

    @property
    def label(self) -> str:
        """The name as it may stand in a run's id."""
        return "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in self.name)[:40]


def find_program(what: str, kind: str = "auto") -> Program:
    """The program that the user means: a recipe's name or a path; with a kind, a module or a bash line.

    Raises SettingsError: no such recipe or file, a file that is no program, too much beside it.
    """
    if kind == "module":
        return _own(what, ("--folder", WORK_FOLDER, "-m", what), Path())
    if kind == "bash":
        return _own("bash", ("--folder", WORK_FOLDER, "--program", "bash", "-c", what), Path())
    if what in RECIPES:
        return recipe_program(what)
    path = Path(what).expanduser()
    if path.is_file():
        return _own(path.stem, _command_of(path), path.parent)
    raise SettingsError(_unknown(what, path))


def recipe_program(name: str) -> Program:
    """Raises SettingsError with the nearest match."""
    if name not in RECIPES:
        raise SettingsError(_unknown(name, Path(name)))
    return Program(name, (f"recipe/{RECIPES[name]}",))


def _own(name: str, command: tuple[str, ...], folder: Path) -> Program:
    source = folder.resolve()
    files = {f"{WORK_FOLDER}/{path.relative_to(source)}": path for path in beside(source)}
    return Program(name, command, files, source)


def _command_of(path: Path) -> tuple[str, ...]:
    if path.suffix == ".py":
        return ("--folder", WORK_FOLDER, path.name)
    if os.access(path, os.X_OK):
        return ("--folder", WORK_FOLDER, "--program", f"./{path.name}")
    raise SettingsError(
        f"{path} is neither Python nor executable; chmod +x it, or train --bash 'bash {path.name}'"
    )


def _unknown(what: str, path: Path) -> str:
    if path.suffix or len(path.parts) > 1:
        return f"{what}: no such file; it is looked for in {Path.cwd()}"
    near = difflib.get_close_matches(what, RECIPES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(sorted(RECIPES))}"
    return f"no recipe {what!r}; {hint}; your own script is given by its path"


# --- the files beside it -----------------------------------------------------------------------


def beside(folder: Path) -> tuple[Path, ...]:
    """All files of a folder that a program may need. Raises SettingsError when that is too much to copy."""
    ignored = read_ignored(folder / IGNORE_FILE)
    found: list[Path] = []
    room = MOST_MIB << 20
    for path in _walk(folder, folder, ignored):
        found.append(path)
        room -= path.stat().st_size
        if room < 0 or len(found) > MOST_FILES:
            raise SettingsError(
                f"{folder} holds more than {MOST_MIB} MiB or {MOST_FILES} files, and all would be copied to "
                f"every node; name what is not needed in {folder / IGNORE_FILE}, a pattern a line"
            )
    return tuple(found)


def read_ignored(path: Path) -> tuple[str, ...]:
    """The patterns of an ignore file. Raises SettingsError for what is not understood, with its line."""
    if not path.is_file():
        return ()
    patterns = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        pattern = line.strip()
        if pattern.startswith("!"):
            raise SettingsError(f"{path}:{number}: {pattern!r}: patterns only leave out; none takes back in")
        if pattern and not pattern.startswith("#"):
            patterns.append(pattern.strip("/"))
    return tuple(patterns)


def _walk(folder: Path, top: Path, ignored: Sequence[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if _is_ignored(path.relative_to(top), ignored) or _was_made(path):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, top, ignored)
        elif path.is_file():
            yield path


def _was_made(path: Path) -> bool:
    """A virtual environment, or what an earlier run brought back (see run/execute.py)."""
    return any(all((path / name).is_file() for name in names) for names in MADE)


def _is_ignored(path: Path, ignored: Sequence[str]) -> bool:
    """A pattern with a slash is for the whole path, one without for the name at any depth."""
    return any(fnmatchcase(path.name, pattern) for pattern in ALWAYS_IGNORED) or any(
        fnmatchcase(str(path) if "/" in pattern else path.name, pattern) for pattern in ignored
    )

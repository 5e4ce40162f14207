"""A training job as the user states it, and the plan that a launcher makes of it."""

from __future__ import annotations

import difflib
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from provision.errors import SettingsError
from run.layout import ranges

RECIPES_FOLDER = Path(__file__).parent / "recipes"
RECIPES: Mapping[str, str] = {"run_qa": "question_answering.py"}
UPLOADED_ARGUMENTS = ("--train_file", "--validation_file")
OUTPUT_FOLDER = "output"
RUNS_FOLDER = "~/.clusterctl/runs"


@dataclass(frozen=True)
class TrainJob:
    """What is to be trained. `uploads` maps a path in the run folder to a file or folder of this machine,
    `head_uploads` does for the head's run folder alone. `request` is what `train --resume` of this run will
    start from; it is kept with the results as it is.

    The limits: every rank must start within `start_timeout_s`, meet the others within
    `rendezvous_timeout_s`, and be heard of again within `lost_after_s`.
    """

    recipe: str
    run_id: str
    script_args: tuple[str, ...] = ()
    uploads: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    head_uploads: Mapping[str, Path] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    start_timeout_s: float = 60
    rendezvous_timeout_s: float = 120
    lost_after_s: float = 30
    stop_grace_s: float = 15
    disk_room_gib: float = 1.0


@dataclass(frozen=True)
class RankPlacement:
    """Where one rank runs and on which CPUs."""

    rank: int
    node: str
    local_rank: int
    cpus: tuple[int, ...]
    threads: int


@dataclass(frozen=True)
class LaunchPlan:
    """Everything a run needs, decided; nothing done yet.

    `argv` is for the head, and "~/" in it means the head's home folder. `environment` is the launcher's,
    beside HOME, USER and the like. `files` (path -> text) and `uploads` (path -> file or folder here) go
    into the run folder of every node in `nodes`, the head first; `head_uploads` into the head's alone.
    """

    run_id: str
    nodes: tuple[str, ...]
    ranks: tuple[RankPlacement, ...]
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    python: str
    files: Mapping[str, str]
    uploads: Mapping[str, Path]
    head_uploads: Mapping[str, Path] = field(default_factory=dict)

    @property
    def run_folder(self) -> str:
        return f"{RUNS_FOLDER}/{self.run_id}"

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    def render(self) -> str:
        """The plan as text: a command to paste into a shell on the head, and what must lie beside it."""
        return "\n".join([*self._command(), "", *self._placement(), "", *self._contents(), ""])

    def _command(self) -> list[str]:
        nodes = f"{len(self.nodes)} node" + ("" if len(self.nodes) == 1 else "s")
        ranks = f"{self.world_size} rank" + ("" if self.world_size == 1 else "s")
        pairs = [f"  {name}={shlex.quote(value)} \\" for name, value in self.environment.items()]
        return [
            f"# {self.run_id}: {ranks} on {nodes}; on the head, {self.nodes[0]}:",
            f"cd {self.run_folder} && env \\",
            *pairs,
            f"  {shell_line(self.argv)}",
        ]

    def _placement(self) -> list[str]:
        lines = [
            f"#   rank {place.rank} = local rank {place.local_rank} of {place.node}: "
            f"{place.threads} threads on CPUs {ranges(place.cpus)}"
            for place in self.ranks
        ]
        return ["# placement", *lines]

    def _contents(self) -> list[str]:
        lines = [f"# in {self.run_folder} of every node", "#   node: the node's own name"]
        lines += [f"#   {path}: from {_shown(source)}" for path, source in self.uploads.items()]
        lines += [
            f"#   {path}: from {source}, on the head only" for path, source in self.head_uploads.items()
        ]
        for path, text in self.files.items():
            lines += [f"#   {path}:", *(f"#     {line}" for line in text.splitlines())]
        return lines


def make_job(recipe: str, script_args: Sequence[str], now: datetime | None = None) -> TrainJob:
    """A job of a known recipe; files of this machine among the arguments become uploads.

    Raises SettingsError for an unknown recipe or a file that is not here.
    """
    recipe_script(recipe)
    job = TrainJob(recipe, new_run_id(recipe, now or datetime.now(timezone.utc)))
    return with_script_args(job, script_args)


def new_run_id(recipe: str, now: datetime) -> str:
    """Sorts by time, tells the recipe, and is unlike any other: 20261121-101500-run_qa-ab12."""
    return f"{now:%Y%m%d-%H%M%S}-{recipe}-{secrets.token_hex(2)}"


def recipe_script(name: str) -> str:
    """The recipe's entry script within the recipes folder. Raises SettingsError with the nearest match."""
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(sorted(RECIPES))}"
    raise SettingsError(f"no recipe {name!r}; {hint}")


def with_script_args(job: TrainJob, args: Sequence[str]) -> TrainJob:
    """The job with the recipe's arguments as they must read on the nodes.

    A data file or a model's folder of this machine is uploaded and its argument rewritten; a checkpoint goes
    to the head alone, from where the recipe brings it to the others. The output folder is always the run
    folder's, from where it is fetched: an --output_dir of the user's is replaced.
    Raises SettingsError when a data file is not here.
    """
    rewritten: list[str] = []
    uploads, head_uploads = dict(job.uploads), dict(job.head_uploads)
    for name, value in _pairs(args):
        if name == "--output_dir" or value is None:
            rewritten += [] if name == "--output_dir" else [name]
        elif name in UPLOADED_ARGUMENTS or _is_model_here(name, value):
            target, uploads[target] = _upload(name, value)
            rewritten += [name, target]
        elif _is_checkpoint_here(name, value):
            target, head_uploads[target] = _upload(name, value)
            rewritten += [name, target]
        else:
            rewritten += [name, value]
    script_args = (*rewritten, "--output_dir", OUTPUT_FOLDER)
    return replace(job, script_args=script_args, uploads=uploads, head_uploads=head_uploads)


def from_anywhere(args: Sequence[str]) -> tuple[str, ...]:
    """The arguments with this machine's files by their whole path, so that they mean the same in any folder.

    >>> from_anywhere(["--seed=7", "--do_eval"])
    ('--seed', '7', '--do_eval')
    """
    found: list[str] = []
    for name, value in _pairs(args):
        is_here = value is not None and (
            name in UPLOADED_ARGUMENTS or _is_model_here(name, value) or _is_checkpoint_here(name, value)
        )
        whole = str(Path(value).expanduser().resolve()) if value is not None and is_here else value
        found += [name] if whole is None else [name, whole]
    return tuple(found)


def shell_line(argv: Sequence[str]) -> str:
    """argv quoted for a shell, except that a leading ~/ stays open for the shell to expand.

    >>> shell_line(("cat", "~/hosts", "a b"))
    "cat ~/hosts 'a b'"
    """
    return " ".join("~/" + shlex.quote(arg[2:]) if arg.startswith("~/") else shlex.quote(arg) for arg in argv)


def _pairs(args: Sequence[str]) -> list[tuple[str, str | None]]:
    """Arguments as (name, value); (argument, None) for one without a value.

    >>> _pairs(["--a", "1", "--b=2", "--c"])
    [('--a', '1'), ('--b', '2'), ('--c', None)]
    """
    pairs: list[tuple[str, str | None]] = []
    for arg in args:
        name, equals, value = arg.partition("=")
        if arg.startswith("--"):
            pairs.append((name, value) if equals else (arg, None))
        elif pairs and pairs[-1][1] is None and pairs[-1][0].startswith("--"):
            pairs[-1] = (pairs[-1][0], arg)
        else:
            pairs.append((arg, None))
    return pairs


def _is_model_here(name: str, value: str) -> bool:
    """A folder of this machine; else it is a name on the hub, or a folder that the nodes have."""
    return name == "--model_name_or_path" and (Path(value).expanduser() / "config.json").is_file()


def _is_checkpoint_here(name: str, value: str) -> bool:
    path = Path(value).expanduser() / "trainer_state.json"
    return name == "--resume_from_checkpoint" and path.is_file()


def _upload(name: str, value: str) -> tuple[str, Path]:
    source = Path(value).expanduser()
    if not source.exists() or (name in UPLOADED_ARGUMENTS and not source.is_file()):
        raise SettingsError(f"{name} {value}: no such file on this machine; give the path of one")
    return f"data/{name.strip('-')}/{source.name}", source.resolve()


def _shown(source: Path) -> str:
    """A path within the installed package by its name there: the same wherever it is installed."""
    package = Path(__file__).parent
    return str(source.relative_to(package.parent)) if source.is_relative_to(package) else str(source)

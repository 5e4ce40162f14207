"""A training job as the user states it, and the plan that a launcher makes of it."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from provision.errors import SettingsError
from run.layout import ranges
from run.program import WORK_FOLDER, Program

RECIPES_FOLDER = Path(__file__).parent / "recipes"
SPEED_FOLDER = Path(__file__).parent / "speed"
UPLOADED_ARGUMENTS = ("--train_file", "--validation_file")
TAKES_MANY_FILES = ("run_pretraining",)
"""Recipes whose data may be folders, and several of them."""
UPLOADED_FOLDERS = {
    "--model_name_or_path": "config.json",
    "--config_name": "config.json",
    "--tokenizer_name": "tokenizer.json",
    "--resume_from_checkpoint": "trainer_state.json",
}
"""Arguments that name a folder of this machine if this file is in it; else it is on the hub or the nodes."""
ON_NODES = "node:"
"""Before a path of data: every node has it."""
MOST_UPLOADED_GIB = 1.0
OUTPUT_FOLDER = "output"
SHOWN_UPLOADS = 30
RUNS_FOLDER = "~/.clusterctl/runs"
OWN_ENVIRONMENT: Mapping[str, str] = {"ACCELERATE_USE_CPU": "true"}
"""For programs that are not ours. transformers' Trainer and Accelerate look for a GPU first, and where nobody
tells them that CPUs are meant (--use_cpu) each rank trains alone, without a word, as if it were all of them.
"""


@dataclass(frozen=True)
class TrainJob:
    """What is to be trained. `uploads` maps a path in the run folder to a file or folder of this machine,
    `head_uploads` does for the head's run folder alone. `request` is what `train --resume` of this run will
    start from; it is kept with the results as it is. `environment` is every rank's, `node_environment` that
    of the ranks of a node. Of a trial nothing stays on the nodes.

    The limits: every rank must start within `start_timeout_s`, meet the others within
    `rendezvous_timeout_s`, and be heard of again within `lost_after_s`. Ranks that neither print nor compute
    for `idle_after_s` wait for something that does not come.
    """

    program: Program
    run_id: str
    script_args: tuple[str, ...] = ()
    uploads: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    node_environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    head_uploads: Mapping[str, Path] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    is_trial: bool = False
    start_timeout_s: float = 60
    rendezvous_timeout_s: float = 120
    lost_after_s: float = 30
    idle_after_s: float = 600
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
    `restarts` is how often the launcher itself begins anew after a rank or a node was lost.
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
    launcher: str = "mpirun"
    restarts: int = 0

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
        lines = [f"# in {self.run_folder} of every node", "#   nodes/HOSTNAME: that node's own name"]
        lines += [f"#   {path}: from {_shown(source)}" for path, source in self.uploads.items()][
            :SHOWN_UPLOADS
        ]
        more = len(self.uploads) - SHOWN_UPLOADS
        lines += [f"#   and {more} more files in {WORK_FOLDER}"] if more > 0 else []
        lines += [
            f"#   {path}: from {source}, on the head only" for path, source in self.head_uploads.items()
        ]
        for path, text in self.files.items():
            lines += [f"#   {path}:", *(f"#     {line}" for line in text.splitlines())]
        return lines


def make_job(program: Program, script_args: Sequence[str], now: datetime | None = None) -> TrainJob:
    """A job of a program. A recipe's arguments may name files of this machine, which become uploads; those of
    somebody's own program are passed on as they are. Raises SettingsError for a file that is not here.
    """
    job = TrainJob(
        program, new_run_id(program.label, now or datetime.now(timezone.utc)), uploads=program.files
    )
    return (
        with_script_args(job, script_args)
        if program.reports
        else replace(job, script_args=tuple(script_args), environment=OWN_ENVIRONMENT)
    )


def new_run_id(program: str, now: datetime) -> str:
    """Sorts by time, tells the program, and is unlike any other: 20261121-101500-run_qa-ab12."""
    return f"{now:%Y%m%d-%H%M%S}-{program}-{secrets.token_hex(2)}"


def with_script_args(job: TrainJob, args: Sequence[str]) -> TrainJob:
    """The job with the recipe's arguments as they must read on the nodes.

    Data or a model's folder of this machine is uploaded and its argument rewritten, data that the nodes have
    is named "node:/path"; a checkpoint goes to the head alone, from where the recipe brings it to the others.
    The output folder is always the run folder's, from where it is fetched: an --output_dir of the user's is
    replaced. Raises SettingsError for data that is not here, or too much to be copied.
    """
    rewritten: list[str] = []
    uploads, head_uploads = dict(job.uploads), dict(job.head_uploads)
    for name, values in _options(args):
        if name == "--output_dir":
            rewritten += values[1:]
        elif name in UPLOADED_ARGUMENTS:
            rewritten += [name, *(_data(job.program.name, name, value, uploads) for value in values)]
        elif _is_folder_here(name, values):
            into = head_uploads if name == "--resume_from_checkpoint" else uploads
            rewritten += [name, _upload(name, Path(values[0]).expanduser(), into), *values[1:]]
        else:
            rewritten += [*([name] if name else []), *values]
    script_args = (*rewritten, "--output_dir", OUTPUT_FOLDER)
    return replace(job, script_args=script_args, uploads=uploads, head_uploads=head_uploads)


def from_anywhere(args: Sequence[str]) -> tuple[str, ...]:
    """The arguments with this machine's files by their whole path, so that they mean the same in any folder.

    >>> from_anywhere(["--seed=7", "--do_eval"])
    ('--seed', '7', '--do_eval')
    """
    found: list[str] = []
    for name, values in _options(args):
        is_here = name in UPLOADED_ARGUMENTS or _is_folder_here(name, values)
        found += [name] if name else []
        found += [_whole(value) if is_here else value for value in values]
    return tuple(found)


def _whole(value: str) -> str:
    return value if value.startswith(ON_NODES) else str(Path(value).expanduser().resolve())


def shell_line(argv: Sequence[str]) -> str:
    """argv quoted for a shell, except that a leading ~/ stays open for the shell to expand.

    >>> shell_line(("cat", "~/hosts", "a b"))
    "cat ~/hosts 'a b'"
    """
    return " ".join("~/" + shlex.quote(arg[2:]) if arg.startswith("~/") else shlex.quote(arg) for arg in argv)


def given(args: Sequence[str], name: str) -> str | None:
    """What a recipe reads as its argument `name`: the last one counts. "" without a value, None where absent.

    >>> given(["--seed", "1", "--seed=2", "--bf16"], "seed"), given(["--bf16"], "bf16"), given([], "seed")
    ('2', '', None)
    """
    found = [values for option, values in _options(args) if option.replace("-", "_") == f"__{name}"]
    return " ".join(found[-1]) if found else None


def _options(args: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Arguments as (name, values); the name is "" for values before the first name.

    >>> _options(["--a", "1", "2", "--b=3", "--c"])
    [('--a', ['1', '2']), ('--b', ['3']), ('--c', [])]
    """
    options: list[tuple[str, list[str]]] = []
    for arg in args:
        name, equals, value = arg.partition("=")
        if arg.startswith("--"):
            options.append((name, [value] if equals else []))
        elif options:
            options[-1][1].append(arg)
        else:
            options.append(("", [arg]))
    return options


def _is_folder_here(name: str, values: Sequence[str]) -> bool:
    """Whether the argument's first value is such a folder of this machine as is uploaded for it."""
    mark = UPLOADED_FOLDERS.get(name)
    return mark is not None and bool(values) and (Path(values[0]).expanduser() / mark).is_file()


def _data(recipe: str, name: str, value: str, uploads: MutableMapping[str, Path]) -> str:
    """Where the nodes find a data file or folder. Raises SettingsError."""
    if value.startswith(ON_NODES):
        return value.removeprefix(ON_NODES)
    source = Path(value).expanduser()
    if not source.exists():
        raise SettingsError(
            f"{name} {value}: no such file on this machine; give the path of one, or {ON_NODES}/path where "
            "every node has it"
        )
    if not source.is_file() and recipe not in TAKES_MANY_FILES:
        raise SettingsError(f"{name} {value}: {recipe} takes a file; this is none")
    size_gib = _bytes(source) / 2**30
    if size_gib > MOST_UPLOADED_GIB:
        raise SettingsError(
            f"{name} {value}: {size_gib:.1f} GiB; more than {MOST_UPLOADED_GIB:g} GiB is not copied; "
            f"put it on every node at the same path, and give {name} {ON_NODES}/path"
        )
    return _upload(name, source, uploads)


def _bytes(source: Path) -> int:
    files = source.rglob("*") if source.is_dir() else [source]
    return sum(file.stat().st_size for file in files if file.is_file())


def _upload(name: str, source: Path, uploads: MutableMapping[str, Path]) -> str:
    """Note what is to be uploaded; its path in the run folder."""
    source = source if source.name.strip(".") else source.resolve()
    folder = f"data/{name.strip('-')}"
    target = f"{folder}/{source.name}"
    if uploads.get(target, source.resolve()) != source.resolve():
        target = f"{folder}/{len(uploads)}/{source.name}"  # another of this name
    uploads[target] = source.resolve()
    return target


def _shown(source: Path) -> str:
    """A path within the installed package by its name there: the same wherever it is installed."""
    package = Path(__file__).parent
    return str(source.relative_to(package.parent)) if source.is_relative_to(package) else str(source)

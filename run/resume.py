"""Go on with a run that has ended: with what it was asked for, and from its last whole checkpoint."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from provision.errors import SettingsError
from provision.host import Host
from provision.step import run_on_hosts
from run.job import OUTPUT_FOLDER, TrainJob
from run.results import REQUEST_FILE
from run.transfer import fetch_folder

STATE = "trainer_state.json"
"""The last file of a checkpoint, and its last character tells that it is whole."""
LOOK_TIMEOUT_S = 30.0

_LOOK = f"""cd ~/.clusterctl/runs/%s/{OUTPUT_FOLDER} 2>/dev/null || exit 0
for state in checkpoint-*/{STATE}; do
  [ "$(tail -c 2 "$state" 2>/dev/null)" = "}}" ] && echo "${{state%%/*}}"
done
:"""


@dataclass(frozen=True)
class Request:
    """What a run was asked for. `script_args` name files of this machine by their whole path.

    `resumed_from` is the run that it went on from.
    """

    recipe: str
    script_args: tuple[str, ...] = ()
    ppn: int | None = None
    threads: int | None = None
    rendezvous_timeout_s: float | None = None
    resumed_from: str | None = None
    launcher: str = "mpirun"
    nodes: str | None = None
    restarts: int = 0
    backend: str | None = None
    backend_module: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Found:
    """A checkpoint: on a node of the cluster, or in a folder of this machine."""

    run_id: str
    step: int
    node: str | None = None
    folder: Path | None = None

    def __str__(self) -> str:
        return f"step {self.step} of {self.run_id}, {f'on {self.node}' if self.node else 'from here'}"


def choose_run(runs_folder: Path, wanted: str) -> str:
    """The run whose id is or contains `wanted`; "last" is the newest. Raises SettingsError."""
    there = sorted(path.parent.name for path in runs_folder.glob(f"[!.]*/{REQUEST_FILE}"))
    if wanted in there:
        return wanted
    fitting = there[-1:] if wanted == "last" else [run for run in there if wanted in run]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise SettingsError(f"--resume {wanted}: {', '.join(fitting[-4:])} fit; say which")
    raise SettingsError(
        f"--resume {wanted}: no such run in {runs_folder}/"
        + (f"; the last one is {there[-1]}" if there else "; name their folder with --runs")
    )


def read_request(runs_folder: Path, run_id: str) -> Request:
    """What the run was asked for. Raises SettingsError when that cannot be read."""
    path = runs_folder / run_id / REQUEST_FILE
    try:
        about: Mapping[str, Any] = json.loads(path.read_text())
        return Request(**{**about, "script_args": tuple(about["script_args"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"{path}: {error}; give the run's arguments again instead of --resume") from error


def find_checkpoint(hosts: Sequence[Host], runs_folder: Path, run_id: str) -> Found | None:
    """The last whole checkpoint of the run, or else of the one that it went on from; None without any.

    One that a node still has is preferred to its copy here: it need not travel.
    """
    for run in _ancestry(runs_folder, run_id):
        found = [*_on_nodes(hosts, run), *_here(runs_folder, run)]
        if found:
            return max(found, key=lambda each: each.step)  # of equal ones the first
    return None


def rescue(hosts: Sequence[Host], runs_folder: Path, run_id: str, leaving: Container[str]) -> None:
    """Bring the run's last checkpoint here where none but nodes that are leaving has it. Raises HostError."""
    found = find_checkpoint(hosts, runs_folder, run_id)
    kept = find_checkpoint([host for host in hosts if host.node.name not in leaving], runs_folder, run_id)
    if found is None or (kept is not None and (kept.run_id, kept.step) == (found.run_id, found.step)):
        return
    host = next(host for host in hosts if host.node.name == found.node)
    fetch_folder(host, found.run_id, f"{OUTPUT_FOLDER}/checkpoint-{found.step}", runs_folder / found.run_id)


def go_on_from(job: TrainJob, found: Found) -> TrainJob:
    """The job, begun at the checkpoint; one of this machine travels to the head, which gives it to others."""
    name = f"checkpoint-{found.step}"
    if found.folder is None:
        path, travels = f"../{found.run_id}/{OUTPUT_FOLDER}/{name}", {}
    else:
        path = f"data/resume_from_checkpoint/{name}"
        travels = {path: found.folder.resolve()}
    return replace(
        job,
        script_args=(*job.script_args, "--resume_from_checkpoint", path),
        head_uploads={**job.head_uploads, **travels},
    )


def _ancestry(runs_folder: Path, run_id: str) -> Iterator[str]:
    """The run, the one that it went on from, and so on."""
    seen: set[str] = set()
    run: str | None = run_id
    while run is not None and run not in seen:
        yield run
        seen.add(run)
        try:
            run = read_request(runs_folder, run).resumed_from
        except SettingsError:
            return


def _on_nodes(hosts: Sequence[Host], run_id: str) -> Iterator[Found]:
    """Nodes that do not answer have none: preflight names them."""
    seen = run_on_hosts(hosts, lambda host: host.run(_LOOK, run_id, timeout_s=LOOK_TIMEOUT_S).stdout.split())
    for node, names in seen.items():
        for step in _steps(names) if isinstance(names, list) else ():
            yield Found(run_id, step, node=node)


def _here(runs_folder: Path, run_id: str) -> Iterator[Found]:
    whole = [path.parent for path in (runs_folder / run_id / OUTPUT_FOLDER).glob(f"checkpoint-*/{STATE}")]
    for folder in whole:
        for step in _steps([folder.name]):
            yield Found(run_id, step, folder=folder)


def _steps(names: Sequence[str]) -> Iterator[int]:
    for name in names:
        number = name.removeprefix("checkpoint-")
        if number.isdigit():
            yield int(number)

"""Where the results of a run are kept on this machine, with all that is known of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from provision.errors import LaunchError, SettingsError
from run.job import LaunchPlan, TrainJob
from run.proof import PROOF_FILE
from run.summary import RunSummary

REQUEST_FILE = "request.json"


def make_room(runs_folder: Path, plan: LaunchPlan) -> Path:
    """A folder for the results under a temporary name: before anything is started, not when days of work are
    to be kept. Raises SettingsError.
    """
    partial = runs_folder / f".{plan.run_id}.partial"
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise SettingsError(
            f"{runs_folder}: no place for the results ({error.strerror}); name another folder with --runs"
        ) from error
    return partial


def keep(
    partial: Path, plan: LaunchPlan, job: TrainJob, summary: RunSummary, missing: tuple[str, ...]
) -> Path:
    """The results with all that is known of the run, renamed now that they are whole. Raises LaunchError."""
    folder = partial.with_name(plan.run_id)
    try:
        _describe(partial, plan, job, summary, missing)
        shutil.move(partial, folder)
    except OSError as error:
        unkept = (
            f"{partial}: {error.strerror}; not all results are there; what the run made is still on "
            f"{plan.nodes[0]}, in {plan.run_folder}"
        )
        raise LaunchError("; ".join(filter(None, [summary.problem, unkept]))) from error
    return folder


def _describe(
    folder: Path, plan: LaunchPlan, job: TrainJob, summary: RunSummary, missing: tuple[str, ...]
) -> None:
    (folder / "plan.json").write_text(plan.files["plan.json"])
    (folder / "plan.txt").write_text(plan.render())
    about = {**summary.to_json(), "missing": missing}
    (folder / "summary.json").write_text(json.dumps(about, indent=2) + "\n")
    if summary.amx_proof is not None:
        (folder / PROOF_FILE).write_text(json.dumps(about["amx_proof"], indent=2) + "\n")
    if job.request:
        (folder / REQUEST_FILE).write_text(json.dumps(dict(job.request), indent=2) + "\n")

"""train --tune: trials on the actual nodes with the actual script, and the best of them kept for later."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from provision.errors import ClusterctlError, LaunchError, SettingsError
from run.backend import find_backend
from run.commands.common import open_hosts, standing_cluster
from run.commands.interrupts import counted_interrupts
from run.commands.launch import (
    TUNED_LAUNCHERS,
    TrainOptions,
    Trial,
    fresh_facts,
    launch,
    node_range,
)
from run.commands.tune_report import Report, show_candidates
from run.commands.tuned import space_and_key
from run.execute import RunOutcome
from run.interruption import STOPPED_CODE
from run.kept import Kept, Key, even_ppn, keep, read_kept
from run.program import RECIPES
from run.timing import Timing, Window
from run.tune import Candidate, Row, Space, Wanted, judge, search
from run.watch import OUT_OF_MEMORY

TRIALS_FOLDER = ".tune"
"""In the folder of runs. Hidden, so that no trial is ever the last run."""
ONLY_STEPS = ("--do_train", "true", "--do_eval", "false", "--save_strategy", "no", "--max_steps", "1000000")
"""After the user's own arguments: nothing but training, and until it is stopped."""


def tune(options: TrainOptions) -> int:
    """Returns the exit code: 0, or 130 when the user stopped it.

    Raises SettingsError for what cannot be tuned, and the default's own error when that fails.
    """
    options = replace(options, launcher=options.launcher or TUNED_LAUNCHERS[0])
    _refuse(options)
    space, key, shares_machine = _look(options)
    if options.dry_run:
        show_candidates(space, as_json=options.as_json)
        return 0
    _warn_of_unreadable()
    logs = options.runs_folder / TRIALS_FOLDER
    report = Report(space, options.program, logs, shares_machine, as_json=options.as_json)
    with counted_interrupts() as interrupts:
        report.begin()
        rows = _Tuning(options, space, report, logs, interrupts).run()
    verdict = judge(rows) if rows else None
    if verdict is not None:
        verdict = replace(verdict, best=_numbered(space, verdict.best), is_whole=not interrupts)
        if verdict.is_kept:
            keep(key, Kept(verdict.best, round(verdict.times, 2), f"{datetime.now(timezone.utc):%Y-%m-%d}"))
    report.end(verdict, is_whole=not interrupts)
    return STOPPED_CODE if interrupts else 0


def _refuse(options: TrainOptions) -> None:
    """Raises SettingsError."""
    if options.program not in RECIPES:
        raise SettingsError(
            "--tune: only recipes tell how fast they are; time some steps of your script with other --ppn"
        )
    others = {"--smoke": options.smoke, "--resume": options.resume, "--replace": options.replace_nodes}
    for name, value in others.items():
        if value:
            why = "a run keeps the ranks it began with" if name == "--resume" else "one of them at a time"
            raise SettingsError(f"--tune and {name}: {why}; tune first, then train without --tune")
    if options.launcher not in TUNED_LAUNCHERS:
        raise SettingsError(
            f"--tune: not with {options.launcher}: an image may be fast at other things than the nodes' "
            "stack; tune with mpirun or torchrun, and give --ppn there"
        )
    if not options.is_tunable:
        raise SettingsError(f"--tune --nodes {options.nodes}: for how many nodes? give one number")


def _look(options: TrainOptions) -> tuple[Space, Key, bool]:
    """What may be tried on the nodes as they are now, the key of it, and whether they share a machine.

    Raises SettingsError, LaunchError.
    """
    backend = find_backend(options.backend, options.backend_module, options.script_args)
    _, cluster = standing_cluster(options.name)
    _, taking_part = node_range(cluster, options)
    with open_hosts(cluster) as hosts:
        facts = fresh_facts(cluster, [host for host in hosts if host.node in taking_part])
    shares_machine = any(node.core_share < 1 for node in taking_part)
    return (*space_and_key(options, cluster, facts, backend), shares_machine)


def _warn_of_unreadable() -> None:
    try:
        read_kept()
    except SettingsError as error:
        print(f"clusterctl: {error}; what is found now takes its place", file=sys.stderr)


def _numbered(space: Space, best: Candidate) -> Candidate:
    """With its ranks as a number, so that the run, and what goes on with it, keeps them."""
    return replace(best, ppn=even_ppn(space, best.ppn))


@dataclass
class _Tuning:
    """Trials, one after the other, until the search or the user ends it."""

    options: TrainOptions
    space: Space
    report: Report
    logs: Path
    interrupts: list[int]
    window: Window | None = None
    rows: list[Row] = field(default_factory=list)

    def run(self) -> Sequence[Row]:
        """What came of them. Raises ClusterctlError when the default fails. Logs of what failed are left."""
        shutil.rmtree(self.logs, ignore_errors=True)
        trials = search(self.space)
        try:
            wanted = next(trials)
            while (row := self._try_out(wanted)) is not None:
                self.rows.append(row)
                self.report.show(row)
                wanted = trials.send(row)
        except StopIteration:
            pass
        finally:
            with contextlib.suppress(OSError):
                self.logs.rmdir()
        return self.rows

    def _try_out(self, wanted: Wanted) -> Row | None:
        """None when the user stopped it."""
        if self.interrupts:
            return None
        timing = Timing(time.monotonic, self.window)
        problem = self._launch(wanted.candidate, timing)
        if self.interrupts:
            return None
        self.window = self.window or timing.window
        speed = None if problem else (timing.steps_per_s or 0) * self.space.global_batch
        return Row(wanted.candidate, speed, timing.dtype, problem, wanted.again)

    def _launch(self, candidate: Candidate, timing: Timing) -> str:
        """Why the trial does not count; empty when it does. Raises ClusterctlError for the default's."""
        is_default = not self.rows
        trial = Trial(self.report.display(candidate), self.interrupts)
        began_s = time.monotonic()
        try:
            outcome = launch(self._options_for(candidate), timing, trial)
        except ClusterctlError as error:
            if is_default and not self.interrupts:
                raise
            return in_few_words(str(error))
        self.report.took_s.append(time.monotonic() - began_s)
        assert outcome is not None
        shutil.rmtree(outcome.folder, ignore_errors=True)
        problem = self._problem(outcome, timing)
        if problem and is_default and not self.interrupts:
            raise LaunchError(f"--tune: the default cannot be measured: {problem}")
        return problem

    def _problem(self, outcome: RunOutcome, timing: Timing) -> str:
        if outcome.summary.interruption is not None:
            return str(outcome.summary.interruption)
        if timing.global_batch not in (None, self.space.global_batch):
            return f"the ranks' global batch is {timing.global_batch}, not {self.space.global_batch}"
        if timing.steps_per_s is None:
            return "too few steps in the time there was; a smaller batch has quicker ones"
        return ""

    def _options_for(self, candidate: Candidate) -> TrainOptions:
        """The default as the user has it; any other with its own arguments after the user's."""
        own = () if candidate == self.space.default else candidate.args
        return replace(
            self.options,
            ppn=candidate.ppn,
            script_args=(*self.options.script_args, *own, *ONLY_STEPS),
            runs_folder=self.logs,
            use_tuned=False,
            prove_amx=False,
            restarts=0,
        )


def in_few_words(problem: str) -> str:
    """
    >>> in_few_words("rank 1 on n2 was killed by signal 9: out of memory? see `dmesg` there; last output: x")
    'out of memory? rank 1 on n2 was killed'
    >>> in_few_words("n2: the clock is off; start its time service; logs are in runs/x")
    'n2: the clock is off'
    """
    who = re.search(r"rank \d+ on \S+", problem)
    if OUT_OF_MEMORY in problem and who:
        return f"out of memory? {who[0]} was killed"
    return problem.splitlines()[0].partition("; ")[0]

"""train --tune as a command: what is kept, what later runs make of it, what is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import run.commands.train as train_command
import run.commands.tune as tune_command
from provision.errors import LaunchError, SettingsError
from provision.facts import CpuInfo, NodeFacts
from run.backend import Backend
from run.commands.launch import Onlooker, TrainOptions, Trial, _job
from run.commands.train import train
from run.commands.tuned import space_and_key, with_kept
from run.events import Event
from run.execute import RunOutcome
from run.interruption import Checkpoint, Interruption, Notice
from run.kept import Kept, Key, choose, find_kept, keep, kept_file, read_kept
from run.layout import LayoutSettings
from run.resume import read_request
from run.summary import RunSummary
from run.tune import Candidate
from tests.run_cases import TWO_CORES, cluster, facts
from tests.test_layout import topology
from tests.test_tune import MINE, QUAD, space, with_units

# --- what is kept ------------------------------------------------------------------------------

KEPT = Kept(Candidate(2, "false", 4, 3), 1.31, "2026-11-21")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/clusterctl"


def test_what_is_kept_comes_back_and_only_its_owner_reads_it(state: Path) -> None:
    here, there = Key("2 x Xeon", "run_qa, 384 tokens"), Key("2 x Xeon", "run_pretraining")
    assert find_kept(here) is None
    keep(here, replace(KEPT, times=1.1))
    keep(there, KEPT)
    keep(here, KEPT)

    assert find_kept(here) == find_kept(there) == KEPT
    assert find_kept(Key("4 x Xeon", "run_qa, 384 tokens")) is None
    assert kept_file().stat().st_mode & 0o777 == 0o600
    assert [path.name for path in state.iterdir()] == ["tuned.json"]


def test_a_file_half_written_never_takes_the_place_of_a_whole_one(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(Key("a", "b"), KEPT)

    def full_disk(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        keep(Key("a", "c"), KEPT)
    assert list(read_kept()["a"]) == ["b"]
    assert [path.name for path in state.iterdir()] == ["tuned.json"]


CORRUPT = {
    "cut off": '{"a": {"b": {"ppn": 1',
    "no mapping": "[1]",
    "a number": "3",
    "no entry": '{"a": {"b": 7}}',
    "less": '{"a": {"b": {"ppn": 1}}}',
    "no count": json.dumps({"a": {"b": {**KEPT.best.to_json(), "ppn": 0, "times": 1, "day": ""}}}),
    "a word": json.dumps({"a": {"b": {**KEPT.best.to_json(), "bf16": "--x", "times": 1, "day": ""}}}),
    "bytes": "\udcff",
}


@pytest.mark.parametrize("case", CORRUPT)
def test_a_corrupt_file_is_one_line_and_the_run_goes_on_untuned(
    case: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state.mkdir(parents=True)
    kept_file().write_bytes(CORRUPT[case].encode(errors="surrogateescape"))

    assert used(TUNED) == TUNED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"clusterctl: {kept_file()}: not what --tune wrote")
    assert line.endswith("this run goes on untuned")
    keep(Key("a", "b"), KEPT)
    assert find_kept(Key("a", "b")) == KEPT


# --- what a run makes of it --------------------------------------------------------------------

TUNED = TrainOptions("run_qa", (*MINE, "--per_device_train_batch_size", "12"), launcher="mpirun")
BEST = Candidate(2, "false", 3, 2)


def used(options: TrainOptions, known: Mapping[str, NodeFacts] | None = None) -> TrainOptions:
    known = known or with_units(facts(QUAD, QUAD), "amx_bf16")
    return with_kept(options, cluster(len(known)), known, Backend())


@pytest.fixture
def kept(state: Path) -> Key:
    """BEST, for TUNED on two nodes of four cores."""
    _, key = space_and_key(TUNED, cluster(2), with_units(facts(QUAD, QUAD), "amx_bf16"), Backend())
    keep(key, Kept(BEST, 1.314, "2026-11-21"))
    return key


def test_the_next_run_uses_what_was_kept_and_says_so(kept: Key, capsys: pytest.CaptureFixture[str]) -> None:
    found = used(TUNED)

    assert (found.ppn, found.script_args) == (2, (*TUNED.script_args, *BEST.args))
    assert capsys.readouterr().out == (
        "tuned: 2 ranks a node, float32, 3 x 2 a rank (1.31 times the default, 2026-11-21); "
        "--no-tuned for the default\n"
    )
    used(replace(TUNED, as_json=True))
    assert json.loads(capsys.readouterr().out) == {
        "event": "tuned",
        "ppn": 2,
        "bf16": "false",
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 2,
        "times": 1.314,
        "day": "2026-11-21",
    }
    used(replace(TUNED, dry_run=True))
    assert capsys.readouterr().out.startswith("# tuned: ")


OTHER = {
    "--no-tuned": replace(TUNED, use_tuned=False),
    "a run that is gone on with": replace(TUNED, resume="r1"),
    "another launcher": replace(TUNED, launcher="docker"),
    "an elastic run": replace(TUNED, launcher="torchrun", nodes="1:2"),
    "somebody's own script": replace(TUNED, program="train.py"),
    "another recipe": replace(TUNED, program="run_pretraining"),
    "another global batch": replace(TUNED, script_args=MINE),
    "another model": replace(TUNED, script_args=(*TUNED.script_args, "--model_name_or_path", "bert-base")),
    "another length": replace(TUNED, script_args=(*TUNED.script_args, "--max_seq_length", "128")),
    "a batch that is none": replace(TUNED, script_args=("--per_device_train_batch_size", "x")),
}


@pytest.mark.parametrize("case", OTHER)
def test_a_run_of_another_kind_does_not_use_it(
    kept: Key, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert used(OTHER[case]) is OTHER[case]
    assert capsys.readouterr().out == ""


def test_other_machines_do_not_use_it(kept: Key) -> None:
    known = with_units(facts(QUAD, QUAD), "amx_bf16")
    another = CpuInfo("AuthenticAMD", "EPYC", frozenset({"avx512_bf16"}))
    for others in (
        {"node1": known["node1"]},
        {**known, "node2": replace(known["node2"], cpu=another)},
        with_units(facts(QUAD, topology(2, 2)), "amx_bf16"),
        with_units(facts(QUAD, topology(8)), "amx_bf16"),
        with_units(facts(QUAD, topology(4, quota_cpus=2.0)), "amx_bf16"),
    ):
        assert used(TUNED, others) is TUNED
    assert used(TUNED, known) is not TUNED
    same_global_batch = replace(TUNED, script_args=(*MINE, "--per_device_train_batch_size", "24"))
    assert used(same_global_batch, {"node1": known["node1"]}) is same_global_batch


def test_the_same_length_said_or_not_is_the_same_script(kept: Key) -> None:
    said = replace(TUNED, script_args=(*TUNED.script_args, "--max_seq_length=384", "--seed", "7"))
    assert used(said).ppn == 2


@pytest.mark.parametrize(
    ("pins", "found"),
    [
        ({"args": ("--bf16", "auto")}, Candidate(2, None, 3, 2)),
        ({"args": ("--gradient_accumulation_steps", "1")}, Candidate(2, "false", 6, 1)),
        ({"ppn": 2, "per_device": 6}, Candidate(2, "false", 3, 2)),
        ({"ppn": 1}, Candidate(1, "false", 12, 1)),
        ({"threads": 4}, Candidate(None, "false", 12, 1)),  # no cores for two such ranks
        ({"threads": 2}, Candidate(2, "false", 3, 2)),
        ({"ppn": 1, "args": ("--bf16", "true")}, None),
    ],
)
def test_what_the_user_gives_wins_over_what_was_kept(pins: dict, found: Candidate | None) -> None:
    args = (*MINE, "--per_device_train_batch_size", str(pins.get("per_device", 12)), *pins.get("args", ()))
    here = space(QUAD, QUAD, args=args, limits=LayoutSettings(pins.get("ppn"), pins.get("threads")))

    chosen = choose(here, Kept(BEST, 1.31, "2026-11-21"))

    assert (chosen.candidate if chosen else None) == found
    assert found is None or here.ranks(found.ppn) * found.per_device * found.accumulation == 24
    assert chosen is None or chosen.is_whole == (found == BEST)
    assert chosen is None or chosen.is_whole or "in part" in str(chosen)


def test_a_default_that_was_the_best_changes_nothing(kept: Key, capsys: pytest.CaptureFixture[str]) -> None:
    keep(kept, Kept(Candidate(1, None, 12, 1), 1.0, "2026-11-21"))
    assert used(TUNED) is TUNED
    assert capsys.readouterr().out == ""


def test_a_run_that_is_gone_on_with_has_the_ranks_and_batches_that_it_began_with(
    kept: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1/request.json").write_text(json.dumps(dict(_job(used(TUNED)).request)))
    asked = read_request(tmp_path, "r1")
    assert (asked.ppn, asked.script_args) == (2, (*TUNED.script_args, *BEST.args))
    keep(kept, Kept(Candidate(4, None, 3, 1), 1.5, "2026-11-22"))
    launched: list[TrainOptions] = []
    monkeypatch.setattr(train_command, "launch", lambda options: launched.append(used(options)))

    train(TrainOptions("run_qa", resume="r1", runs_folder=tmp_path))

    assert (launched[0].ppn, launched[0].script_args) == (2, (*TUNED.script_args, *BEST.args))


def test_on_new_nodes_too_a_run_goes_on_as_it_began(kept: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[TrainOptions] = []

    def launch(options: TrainOptions) -> RunOutcome:
        launched.append(used(options))
        notices = (Notice("node2", "spot interruption", 0.0),) if len(launched) == 1 else ()
        gone = Interruption(notices, Checkpoint(5, "output/checkpoint-5"), is_fresh=True) if notices else None
        request = _job(launched[-1]).request
        told = RunSummary("r1", ("node1", "node2"), 4, (2,), 5.0, interruption=gone)
        return RunOutcome("r1", 75 if gone else 0, Path("runs/r1"), told, request=request)

    monkeypatch.setattr(train_command, "launch", launch)
    monkeypatch.setattr(train_command, "_replace_nodes", lambda options, done: None)
    train(replace(TUNED, replace_nodes=True))

    first, second = launched
    assert (second.resume, second.ppn, second.script_args) == ("r1", first.ppn, first.script_args)


# --- the command -------------------------------------------------------------------------------

REFUSED = {
    "a script": ({"program": "./train.py"}, "--tune: only recipes tell how fast they are"),
    "with --smoke": ({"smoke": True}, "--tune and --smoke: one of them at a time"),
    "with --resume": ({"resume": "last"}, "--tune and --resume: a run keeps the ranks it began with"),
    "with --replace": ({"replace_nodes": True}, "--tune and --replace"),
    "on Kubernetes": ({"launcher": "kubernetes"}, "--tune: not with kubernetes"),
    "in containers": ({"launcher": "docker"}, "--tune: not with docker"),
    "an elastic run": ({"launcher": "torchrun", "nodes": "2:4"}, "--tune --nodes 2:4: for how many nodes?"),
    "after --": ({"tune": False, "script_args": ("--tune",)}, "--tune is clusterctl's own option"),
    "no launcher": ({"launcher": "slurm"}, "no launcher 'slurm'"),
    "no cluster": ({"name": "none"}, "no cluster 'none'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_tuned_is_refused_before_anything_is_asked(case: str) -> None:
    options, said = REFUSED[case]
    program = str(options.pop("program", "run_qa"))
    with pytest.raises(SettingsError) as caught:
        train(TrainOptions(**{"program": program, "tune": True, **options}))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


KEY = Key("1 x Xeon", "run_qa")


class Trials:
    """Stands in for launch(): each trial is as fast as `speed` says, or fails with what it returns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.launched: list[TrainOptions] = []
        self.speed: Callable[[TrainOptions], float | str] = lambda options: 10.0
        self.global_batch = 16
        self.interrupt_at = 0
        self.runs = folder / "runs"
        self._now_s = 0.0
        monkeypatch.setattr(tune_command, "launch", self._launch)
        monkeypatch.setattr(tune_command, "_look", lambda options: (space(TWO_CORES), KEY, True))
        monkeypatch.setattr(tune_command.time, "monotonic", lambda: self._now_s)

    def _launch(self, options: TrainOptions, onlooker: Onlooker, trial: Trial) -> RunOutcome:
        self.launched.append(options)
        folder = options.runs_folder / f"r{len(self.launched)}"
        folder.mkdir(parents=True)
        speed = self.speed(options)
        if len(self.launched) == self.interrupt_at:
            trial.interrupts.append(2)
        elif isinstance(speed, str):
            raise LaunchError(f"{speed}; logs are in {folder}/logs")
        else:
            dtype = "fp32" if "--bf16 false" in " ".join(options.script_args) else "bf16"
            self._train(onlooker, trial, speed, dtype)
        return RunOutcome("r", 130, folder, RunSummary("r", ("node1",), 1, (1,), 5.0, "stopped"))

    def _train(self, onlooker: Onlooker, trial: Trial, speed: float, dtype: str) -> None:
        about = {"dtype": dtype, "global_batch": self.global_batch}
        events = [Event("setup", data=about), Event("phase", data={"name": "train"})]
        for event in (*events, *(Event("progress", data={"step": step}) for step in range(1, 999))):
            with trial.display as shown:
                shown.show(event)
            onlooker.feed(event)
            if onlooker.is_over:
                return
            self._now_s += 16 / speed if event.name == "progress" else 0

    def tune(self, **options: object) -> int:
        return train(TrainOptions("run_qa", tune=True, runs_folder=self.runs, **options))  # type: ignore[arg-type]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trials:
    return Trials(monkeypatch, tmp_path)


def test_a_tuning_shows_a_table_and_keeps_the_best(
    trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    def speed(options: TrainOptions) -> float | str:
        if "--bf16 false" in " ".join(options.script_args):
            return 4.0
        if "--gradient_accumulation_steps 4" in " ".join(options.script_args):
            return "rank 1 on node1 was killed by signal 9: out of memory? see `dmesg` there; last output: x"
        return 13.1 if options.ppn == 2 else 10.0

    trials.speed = speed
    assert trials.tune() == 0

    out = capsys.readouterr().out
    assert out.splitlines() == [
        "tuning run_qa on 1 node, global batch 16 in all trials",
        "at most 7 trials, some 3 min 30 s; Ctrl-C keeps the best so far",
        "RANKS  THREADS  PRECISION  BATCH    SAMPLES/S  TIMES  ROUNDING",
        "    1        2  bf16       16 x 1        10.0   1.00  same      the default",
        "    2        1  bf16       8 x 1         13.1   1.31  same",
        "    2        1  float32    8 x 1          4.0   0.40  finer",
        "    2        1  bf16       4 x 2         13.1   1.31  same",
        "    2        1  bf16       2 x 4    out of memory? rank 1 on node1 was killed",
        "    1        2  bf16       16 x 1        10.0   1.00  same      once more",
        "    2        1  bf16       8 x 1         13.1   1.31  same      once more",
        f"logs of what failed: {trials.runs}/.tune",
        "These nodes share one machine's cores: on machines of their own it may differ.",
        "the best: 2 ranks a node, 8 x 1 a rank, 1.31 times the default",
        "kept: the next `clusterctl train run_qa` like this uses it; --no-tuned does not",
    ]
    assert max(map(len, out.replace(str(trials.runs), "runs").splitlines())) <= 80
    kept = find_kept(KEY)
    assert kept is not None
    assert (kept.best, kept.times) == (Candidate(2, None, 8, 1), 1.31)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", kept.day)
    assert [path.name for path in (trials.runs / ".tune").iterdir()] == ["r5"]  # of the one that failed
    assert not list(trials.runs.glob("[!.]*")), "no trial is a run to go on with"


def test_trials_train_only_and_the_default_is_the_users_own(trials: Trials) -> None:
    trials.tune(script_args=("--max_steps", "5", "--save_strategy", "steps"), prove_amx=True)

    default, other = trials.launched[0], trials.launched[1]
    last = ("--do_train", "true", "--do_eval", "false", "--save_strategy", "no", "--max_steps", "1000000")
    assert default.script_args == ("--max_steps", "5", "--save_strategy", "steps", *last)
    assert other.script_args[4:] == (*Candidate(2, None, 8, 1).args, *last)
    assert (default.use_tuned, default.prove_amx, default.ppn) == (False, False, None)
    assert not trials.runs.exists() or not list(trials.runs.iterdir())


def test_json_is_an_object_a_trial_and_one_for_the_result(
    trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    trials.speed = lambda options: 20.0 if options.ppn == 2 else 10.0
    assert trials.tune(as_json=True) == 0

    *told, result = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["event"] for each in told} == {"trial"}
    assert told[1] == {
        "event": "trial",
        "ppn": 2,
        "bf16": None,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "ranks": 2,
        "dtype": "bf16",
        "rounding": "same",
        "samples_per_s": 20.0,
        "times": 2.0,
        "again": False,
        "problem": None,
    }
    assert result["kept"] == {
        "ppn": 2,
        "bf16": None,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "times": 2.0,
        "file": str(kept_file()),
    }


def test_a_default_that_fails_ends_the_tuning(trials: Trials) -> None:
    trials.speed = lambda options: "rank 0 on node1 ended with exit code 2: unknown argument --learning_rat"
    with pytest.raises(LaunchError) as caught:
        trials.tune()
    assert str(trials.runs / ".tune/r1/logs") in str(caught.value)
    assert (trials.runs / ".tune/r1").is_dir()
    assert len(trials.launched) == 1
    assert find_kept(KEY) is None


def test_another_global_batch_than_was_computed_does_not_count(trials: Trials) -> None:
    trials.global_batch = 24
    with pytest.raises(LaunchError, match="the ranks' global batch is 24, not 16"):
        trials.tune()


def test_ctrl_c_keeps_the_best_so_far(trials: Trials, capsys: pytest.CaptureFixture[str]) -> None:
    trials.speed = lambda options: 13.1 if options.ppn == 2 else 10.0
    trials.interrupt_at = 3
    assert trials.tune() == 130

    out = capsys.readouterr().out
    assert "interrupted after 2 trials\n" in out
    assert "the best: 2 ranks a node, 8 x 1 a rank, 1.31 times the default" in out
    kept = find_kept(KEY)
    assert kept is not None
    assert kept.best.ppn == 2
    assert len(trials.launched) == 3
    assert not list(trials.runs.iterdir())


def test_ctrl_c_before_anything_can_be_compared_keeps_nothing(
    trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    for interrupt_at in (1, 2):
        trials.launched, trials.interrupt_at = [], interrupt_at
        assert trials.tune() == 130
        assert "nothing is kept: for that the default and another one" in capsys.readouterr().out
    assert find_kept(KEY) is None


def test_ctrl_c_leaves_what_an_earlier_tuning_found(
    trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(KEY, KEPT)
    trials.interrupt_at = 3
    assert trials.tune() == 130
    assert "the default is the best so far, and stays" in capsys.readouterr().out
    assert find_kept(KEY) == KEPT


def test_a_whole_tuning_takes_the_place_of_an_earlier_one(
    trials: Trials, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(KEY, KEPT)
    assert trials.tune() == 0
    assert find_kept(KEY) == Kept(Candidate(1, None, 16, 1), 1.0, find_kept(KEY).day)  # type: ignore[union-attr]
    kept_file().write_text("{")
    assert trials.tune() == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("what is found now takes its place")
    assert find_kept(KEY) is not None


def test_a_dry_run_shows_the_candidates_and_starts_nothing(
    trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trials.tune(dry_run=True) == 0
    assert capsys.readouterr().out.splitlines() == [
        "global batch 16 in all; precision and batch go on from the best so far",
        "RANKS  THREADS  PRECISION  BATCH",
        "    1        2  as it is   16 x 1   the default",
        "    2        1  as it is   8 x 1",
        "    1        2  float32    16 x 1",
        "    1        2  as it is   8 x 2",
        "    1        2  as it is   4 x 4",
    ]
    assert trials.tune(dry_run=True, as_json=True) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert trials.launched == []


def test_a_node_that_is_lost_in_a_trial_is_told_in_its_row(
    trials: Trials, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "node1: " + "its training stack differs from the head's " * 3
    trials.speed = lambda options: 10.0 if options.ppn is None else f"{long}; run `clusterctl up` again"
    assert trials.tune() == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "node1: its" in line)
    assert len(row) == 80
    assert row.endswith("…")

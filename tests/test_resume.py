"""Going on with a run: which run, which checkpoint, and what `train --replace` does again and again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import run.commands.train as command
import run.commands.up as up_command
from provision.errors import LaunchError, ProviderError, SettingsError
from run.commands.launch import TrainOptions
from run.commands.train import train
from run.commands.up import UpOptions
from run.execute import RunOutcome
from run.interruption import INTERRUPTED_CODE, TIME_IS_OVER, Checkpoint, Interruption, Notice
from run.job import from_anywhere, make_job
from run.preflight import NodesEnding
from run.program import recipe_program
from run.resume import Found, Request, choose_run, find_checkpoint, go_on_from, read_request, rescue
from run.summary import RunSummary
from tests.run_cases import RUN_ID, job, node
from tests.test_execute import LocalHost

OTHER = "20261121-101600-run_qa-cd34"


def keep(runs: Path, run_id: str, request: Request) -> Path:
    (runs / run_id).mkdir(parents=True)
    (runs / run_id / "request.json").write_text(json.dumps(request.to_json()))
    return runs / run_id


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """RUN_ID, and OTHER that went on from it."""
    keep(tmp_path / "runs", RUN_ID, Request("run_qa", ("--seed", "7"), ppn=2))
    keep(tmp_path / "runs", OTHER, Request("run_qa", ("--seed", "7"), resumed_from=RUN_ID))
    return tmp_path / "runs"


@pytest.fixture
def hosts(tmp_path: Path) -> list[LocalHost]:
    return [LocalHost(node(number), tmp_path / f"node{number}") for number in (1, 2)]


def checkpoint(run_folder: Path, step: int, state: str = "{\n}\n") -> Path:
    folder = run_folder / "output" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(state)
    return folder


def on(host: LocalHost, run_id: str = RUN_ID) -> Path:
    return host.home / ".clusterctl/runs" / run_id


# --- which run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "found"), [(RUN_ID, RUN_ID), ("ab12", RUN_ID), ("last", OTHER)])
def test_a_run_is_named_by_what_tells_it_apart(runs: Path, wanted: str, found: str) -> None:
    assert choose_run(runs, wanted) == found


@pytest.mark.parametrize(
    ("wanted", "said"), [("run_qa", "fit; say which"), ("zz", f"the last one is {OTHER}")]
)
def test_a_run_that_is_not_told_apart_is_refused(runs: Path, wanted: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        choose_run(runs, wanted)


def test_without_any_run_the_folder_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--runs"):
        choose_run(tmp_path, "last")


def test_a_request_comes_back_as_it_was(runs: Path) -> None:
    assert read_request(runs, RUN_ID) == Request("run_qa", ("--seed", "7"), ppn=2)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"recipe": "run_qa", "script_args": [], "more": 1}'])
def test_a_request_that_cannot_be_read_is_told(runs: Path, text: str) -> None:
    (runs / RUN_ID / "request.json").write_text(text)
    with pytest.raises(SettingsError, match="give the run's arguments again"):
        read_request(runs, RUN_ID)


def test_files_of_this_machine_mean_the_same_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    args = ("--train_file=mine.json", "--model_name_or_path", "model", "--tokenizer_name", "model")
    assert from_anywhere(args) == (
        *("--train_file", f"{tmp_path}/mine.json", "--model_name_or_path", f"{tmp_path}/model"),
        *("--tokenizer_name", "model"),
    )


# --- which checkpoint --------------------------------------------------------------------------


def test_the_last_whole_checkpoint_is_found_and_a_nodes_own_needs_no_journey(
    runs: Path, hosts: list[LocalHost]
) -> None:
    assert find_checkpoint(hosts, runs, RUN_ID) is None
    here = checkpoint(runs / RUN_ID, 20)
    assert find_checkpoint(hosts, runs, RUN_ID) == Found(RUN_ID, 20, folder=here)
    checkpoint(on(hosts[1]), 20)
    checkpoint(on(hosts[0]), 5)
    checkpoint(on(hosts[0]), 30, state='{"cut off')
    assert find_checkpoint(hosts, runs, RUN_ID) == Found(RUN_ID, 20, node="node2")


def test_a_run_without_a_checkpoint_goes_on_where_it_began_itself(runs: Path, hosts: list[LocalHost]) -> None:
    checkpoint(on(hosts[0]), 8)
    assert find_checkpoint(hosts, runs, OTHER) == Found(RUN_ID, 8, node="node1")
    checkpoint(on(hosts[0], OTHER), 9)
    assert find_checkpoint(hosts, runs, OTHER) == Found(OTHER, 9, node="node1")


def test_a_node_that_does_not_answer_has_none(runs: Path, hosts: list[LocalHost]) -> None:
    checkpoint(on(hosts[0]), 8)
    hosts[0].is_dead = True
    assert find_checkpoint(hosts, runs, RUN_ID) is None


def test_no_node_leaves_with_the_only_checkpoint(runs: Path, hosts: list[LocalHost]) -> None:
    checkpoint(on(hosts[0]), 5)
    checkpoint(on(hosts[0]), 20)
    rescue(hosts, runs, OTHER, {"node2"})
    assert not (runs / RUN_ID / "output").exists()
    rescue(hosts, runs, OTHER, {"node1"})
    here = runs / RUN_ID / "output/checkpoint-20"
    assert find_checkpoint([], runs, OTHER) == Found(RUN_ID, 20, folder=here)
    rescue(hosts, runs, OTHER, {"node1", "node2"})


def test_a_checkpoint_of_a_node_is_named_beside_the_new_run_folder() -> None:
    made = go_on_from(job(), Found(RUN_ID, 20, node="node2"))
    assert made.script_args[-2:] == ("--resume_from_checkpoint", f"../{RUN_ID}/output/checkpoint-20")
    assert made.head_uploads == {}


def test_a_checkpoint_of_this_machine_travels_to_the_head(tmp_path: Path) -> None:
    made = go_on_from(job(), Found(RUN_ID, 20, folder=tmp_path))
    path = "data/resume_from_checkpoint/checkpoint-20"
    assert made.script_args[-2:] == ("--resume_from_checkpoint", path)
    assert made.head_uploads == {path: tmp_path}


def test_a_checkpoint_that_the_user_names_here_travels_too(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 20)
    made = make_job(recipe_program("run_qa"), ("--resume_from_checkpoint", str(folder)))
    path = "data/resume_from_checkpoint/checkpoint-20"
    assert made.script_args[:2] == ("--resume_from_checkpoint", path)
    assert made.head_uploads == {path: folder}


# --- again and again ---------------------------------------------------------------------------

SPOT = Notice("node2", "spot interruption", 1795269790.0)
OPTIONS = TrainOptions("run_qa", ("--seed", "7"), name="demo", replace_nodes=True)


def ended(run_id: str, *notices: Notice, step: int | None = None) -> RunOutcome:
    """How a run ended; well where there are no notices."""
    saved = None if step is None else Checkpoint(step, f"output/checkpoint-{step}")
    interruption = Interruption(notices, saved, is_fresh=step is not None) if notices else None
    summary = RunSummary(run_id, ("node1", "node2"), 2, (1, 1), 5.0, interruption=interruption)
    return RunOutcome(run_id, INTERRUPTED_CODE if notices else 0, Path("runs") / run_id, summary)


class Launches:
    """Plays these outcomes in turn; remembers what was launched and which nodes were replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcomes: Sequence[RunOutcome | Exception] = ()
        self.launched: list[TrainOptions] = []
        self.replaced: list[UpOptions] = []
        self.up: Callable[[], int] = lambda: 0
        monkeypatch.setattr(command, "launch", self._launch)
        monkeypatch.setattr(command, "_rescue", lambda options, run_id, leaving: None)
        monkeypatch.setattr(up_command, "up", self._up)

    def _launch(self, options: TrainOptions) -> RunOutcome:
        self.launched.append(options)
        outcome = self.outcomes[len(self.launched) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _up(self, options: UpOptions) -> int:
        self.replaced.append(options)
        return self.up()

    def play(self, *outcomes: RunOutcome | Exception, options: TrainOptions = OPTIONS) -> int:
        self.outcomes = outcomes
        return train(options)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def test_nodes_are_replaced_and_the_run_goes_on_until_it_ends(launches: Launches) -> None:
    code = launches.play(
        ended("r1", SPOT, step=8), ended("r2", replace(SPOT, node="node1"), step=20), ended("r3")
    )
    assert code == 0
    assert [options.resume for options in launches.launched] == [None, "r1", "r2"]
    assert launches.replaced == [
        UpOptions(name="demo", replace=("node2",), yes=True),
        UpOptions(name="demo", replace=("node1",), yes=True),
    ]


def test_a_run_that_saved_nothing_goes_on_where_the_one_before_did(launches: Launches) -> None:
    assert launches.play(ended("r1", SPOT, step=8), ended("r2", SPOT), ended("r3")) == 0
    assert [options.resume for options in launches.launched] == [None, "r1", "r1"]


def test_a_node_that_is_about_to_end_before_the_launch_is_replaced_too(launches: Launches) -> None:
    assert launches.play(NodesEnding("node2: will end", (SPOT,)), ended("r1")) == 0
    assert [options.replace for options in launches.replaced] == [("node2",)]


def test_nodes_that_never_last_are_not_paid_for_for_ever(launches: Launches) -> None:
    with pytest.raises(LaunchError, match="3 times in a row"):
        launches.play(*[ended("r", SPOT)] * 9)
    assert len(launches.replaced) == 2


def test_a_time_to_live_that_is_over_is_respected(
    launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launches.play(ended("r1", SPOT, replace(SPOT, reason=TIME_IS_OVER), step=8)) == 75
    assert launches.replaced == []
    assert "clusterctl train run_qa --name demo --resume r1" in capsys.readouterr().out


def test_without_replace_the_two_commands_that_go_on_are_told(
    launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = replace(OPTIONS, replace_nodes=False)
    assert launches.play(ended("r1", SPOT, step=8), options=plain) == 75
    out = capsys.readouterr().out
    assert "node2 will end at 14:03:10 UTC (spot interruption): checkpointed at step 8" in out
    assert out.splitlines()[-2:] == [
        "  clusterctl up --name demo --replace node2",
        "  clusterctl train run_qa --name demo --resume r1",
    ]
    assert max(map(len, out.splitlines())) <= 80


def test_a_run_that_saved_nothing_at_all_is_begun_anew(
    launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = replace(OPTIONS, replace_nodes=False)
    assert launches.play(ended("r1", SPOT), options=plain) == 75
    assert capsys.readouterr().out.splitlines()[-1] == "  clusterctl train run_qa --name demo -- --seed 7"


def test_json_says_how_to_go_on(launches: Launches, capsys: pytest.CaptureFixture[str]) -> None:
    plain = replace(OPTIONS, replace_nodes=False, as_json=True)
    launches.play(ended("r1", SPOT, step=8), options=plain)
    told = json.loads(capsys.readouterr().out)
    assert told["interruption"]["checkpoint"] == {"step": 8, "path": "output/checkpoint-8"}
    assert told["go_on"][1] == "clusterctl train run_qa --name demo --resume r1"


def test_nodes_that_cannot_be_replaced_leave_the_way_to_go_on(launches: Launches) -> None:
    def no_capacity() -> int:
        raise ProviderError("no capacity")

    launches.up = no_capacity
    with pytest.raises(LaunchError) as caught:
        launches.play(ended("r1", SPOT, step=8))
    assert str(caught.value).splitlines() == [
        "no capacity; to go on:",
        "  clusterctl up --name demo --replace node2",
        "  clusterctl train run_qa --name demo --resume r1",
    ]


def test_a_resumed_run_keeps_what_it_was_asked_for_and_takes_what_is_new(
    runs: Path, launches: Launches
) -> None:
    options = TrainOptions("run_qa", ("--seed", "8"), runs_folder=runs, resume="ab12", threads=3)
    launches.play(ended("r1"), options=options)
    (launched,) = launches.launched
    assert launched.script_args == ("--seed", "7", "--seed", "8")
    assert (launched.ppn, launched.threads, launched.resume) == (2, 3, RUN_ID)

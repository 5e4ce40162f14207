"""What --tune tries, what is the best of it, and how a trial is timed."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given as holds_for
from hypothesis import settings
from hypothesis import strategies as st

from provision.errors import SettingsError
from provision.facts import CpuInfo, NodeFacts, Topology
from run.events import Event
from run.job import RECIPES_FOLDER
from run.layout import LayoutSettings
from run.timing import GIVE_UP_S, LEAST_S, SLOWEST, STEADY_S, Timing, Window
from run.tune import (
    DEFAULTS,
    PER_DEVICE,
    SAMPLE_GLOBAL_BATCH,
    WORTH,
    Candidate,
    Row,
    Space,
    Verdict,
    judge,
    search,
    survey,
)
from tests.run_cases import TWO_CORES, facts
from tests.test_layout import SPR, topology

QUAD = topology(4)
MINE = ("--train_file", "node:/data/mine.json")
Speed = Callable[[Candidate], float]


def with_units(known: Mapping[str, NodeFacts], *flags: str) -> dict[str, NodeFacts]:
    cpu = CpuInfo("GenuineIntel", "Xeon", frozenset(flags))
    return {name: replace(each, cpu=cpu) for name, each in known.items()}


def space(
    *topologies: Topology,
    args: Sequence[str] = (),
    limits: LayoutSettings | None = None,
    flags: Sequence[str] = ("avx512_bf16",),
    recipe: str = "run_qa",
) -> Space:
    return survey(recipe, args, limits or LayoutSettings(), with_units(facts(*topologies), *flags))


def play(space: Space, speed: Speed, dtype: str = "bf16", again: Speed | None = None) -> list[Row]:
    """The rows of a whole search where each candidate is as fast as `speed` says; 0 or less fails."""
    trials, rows = search(space), []
    wanted = next(trials)
    try:
        while True:
            candidate = wanted.candidate
            fast = (again if wanted.again and again else speed)(candidate)
            took = {"true": "bf16", "false": "fp32"}.get(candidate.bf16 or "", dtype)
            row = Row(candidate, fast, took, again=wanted.again)
            rows.append(row if fast > 0 else replace(row, samples_per_s=None, problem="out of memory?"))
            wanted = trials.send(rows[-1])
    except StopIteration:
        return rows


# --- what is tried -----------------------------------------------------------------------------

NODE = st.builds(
    lambda sizes, hyperthreads, quota: topology(*sizes, threads_per_core=hyperthreads, quota_cpus=quota),
    st.lists(st.integers(1, 24), min_size=1, max_size=4),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 3.5, 16.0]),
)


@settings(deadline=None, max_examples=300)
@holds_for(
    st.lists(NODE, min_size=1, max_size=3),
    st.sampled_from([(), MINE]),
    st.none() | st.integers(1, 24),
    st.none() | st.integers(1, 4),
    st.none() | st.sampled_from(["true", "false", "auto"]),
    st.none() | st.integers(1, 2),
    st.none() | st.integers(1, 2),
    st.sampled_from([1.0, 0.5]),
    st.randoms(use_true_random=False),
)
def test_whatever_is_tried_has_the_same_global_batch_and_leaves_what_is_pinned(
    nodes, data, per_device, accumulation, bf16, ppn, threads, share, random
):
    args = list(data)
    args += [] if per_device is None else [f"--per_device_train_batch_size={per_device}"]
    args += [] if accumulation is None else ["--gradient-accumulation-steps", str(accumulation)]
    args += [] if bf16 is None else ["--bf16", bf16]
    shares = {f"node{number}": share for number in range(1, len(nodes) + 1)}
    try:
        found = space(*nodes, args=args, limits=LayoutSettings(ppn, threads, None, shares))
    except SettingsError:  # more ranks or threads than cores: `train` itself refuses them
        return

    rows = play(found, lambda candidate: random.uniform(-1, 10) if candidate != found.default else 5.0)

    assert len(rows) <= found.most_trials()
    for candidate in (row.candidate for row in rows):
        assert (
            found.ranks(candidate.ppn) * candidate.per_device * candidate.accumulation == found.global_batch
        )
        assert ppn is None or candidate.ppn == ppn
        assert accumulation is None or candidate.accumulation == accumulation
        assert bf16 is None or candidate.bf16 is None
        for layout in found.layouts(candidate.ppn).values():
            busy = sum(rank.threads for rank in layout.ranks)
            assert candidate.ppn == found.default.ppn or busy <= layout.budget
    tried = [row.candidate for row in rows if not row.again]
    assert len(set(tried)) == len(tried)


def test_ranks_follow_the_hardware_and_divide_the_global_batch() -> None:
    found = space(SPR, SPR, args=MINE)

    assert (found.global_batch, found.default) == (32, Candidate(None, None, 8, 1))
    assert [(each.ppn, each.per_device) for each in found.ppns(found.default)] == [
        (1, 16),
        (4, 4),
        (8, 2),
        (16, 1),
    ]
    assert [(each.per_device, each.accumulation) for each in found.batches(found.default)] == [(4, 2), (2, 4)]


def test_a_count_that_does_not_divide_is_left_out() -> None:
    found = space(topology(8), topology(8), topology(8), args=("--per_device_train_batch_size", "3"))

    assert found.global_batch == 9
    assert found.ppns(found.default) == ()
    pinned = ("--per_device_train_batch_size", "6", "--gradient_accumulation_steps", "2")
    found = space(QUAD, args=pinned)
    assert [(each.ppn, each.per_device) for each in found.ppns(found.default)] == [(2, 3)]  # 4 would be 3 x 1


def test_only_the_counts_nearest_to_the_default_are_tried() -> None:
    many = space(topology(64, 64), args=(*MINE, "--per_device_train_batch_size", "64"))
    assert [each.ppn for each in many.ppns(many.default)] == [1, 4, 8, 16, 32]


def test_ranks_that_would_share_cores_are_left_out() -> None:
    """Half of 18 cores, 4 and 14 of them in a NUMA node: 8 ranks of at least a thread want 10."""
    found = space(topology(4, 14), limits=LayoutSettings(core_share={"node1": 0.5}))
    assert [each.ppn for each in found.ppns(found.default)] == [1, 4]
    pinned = space(QUAD, args=MINE, limits=LayoutSettings(threads=2))
    assert [each.ppn for each in pinned.ppns(pinned.default)] == [2]


def test_nodes_that_share_a_machine_get_no_more_ranks_than_their_share() -> None:
    shares = {"node1": 0.5, "node2": 0.5}
    found = space(TWO_CORES, TWO_CORES, limits=LayoutSettings(core_share=shares))
    assert found.ppns(found.default) == ()


@pytest.mark.parametrize(
    ("flags", "took", "args", "tried"),
    [
        (("amx_bf16",), "bf16", (), ["false"]),
        (("avx512_bf16",), "fp32", (), ["true"]),  # auto measured that bf16 is slow
        (("avx2",), "fp32", (), []),  # the recipe would warn: many times slower
        (("amx_bf16",), "bf16", ("--bf16", "auto"), []),
        (("amx_bf16",), "bf16", ("--bf16",), []),
    ],
)
def test_the_other_precision_is_tried_where_the_cpus_have_it_and_it_is_not_given(
    flags: tuple[str, ...], took: str, args: tuple[str, ...], tried: list[str]
) -> None:
    found = space(TWO_CORES, flags=flags, args=args)
    assert [each.bf16 for each in found.precisions(found.default, took)] == tried


@pytest.mark.parametrize("text", ["0", "-4", "eight", ""])
def test_a_batch_that_is_no_number_is_told(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--per_device_train_batch_size .*: give a number above 0"):
        space(TWO_CORES, args=("--per_device_train_batch_size", text))


def constants(file: str, kind: str) -> dict[str, object]:
    """Numbers that a module of the recipes, which needs torch, gives to names and to fields of a class."""
    found: dict[str, object] = {}
    for node in ast.walk(ast.parse((RECIPES_FOLDER / file).read_text())):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found[ast.unparse(node.targets[0])] = node.value.value
        if isinstance(node, ast.ClassDef) and node.name == kind:
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Call):
                    defaults = [each.value for each in line.value.keywords if each.arg == "default"]
                    found |= {ast.unparse(line.target): ast.literal_eval(each) for each in defaults}
    return found


@pytest.mark.parametrize(
    ("recipe", "file"), [("run_qa", "arguments.py"), ("run_pretraining", "pretraining_arguments.py")]
)
def test_the_defaults_are_those_of_the_recipes(recipe: str, file: str) -> None:
    found = constants(file, "DataArguments")
    assert found["SAMPLE_GLOBAL_BATCH"] == SAMPLE_GLOBAL_BATCH
    assert found["max_seq_length"] == DEFAULTS[recipe].max_seq_length
    assert set(DEFAULTS[recipe].data) <= set(found)


@pytest.mark.stack
def test_a_batch_that_is_not_given_is_as_large_as_transformers_has_it(stack: Path) -> None:
    ask = "from transformers import TrainingArguments as T; print(T.per_device_train_batch_size)"
    done = subprocess.run([stack / "bin/python", "-c", ask], capture_output=True, text=True, check=True)
    assert int(done.stdout) == PER_DEVICE


# --- the search --------------------------------------------------------------------------------


def test_each_step_goes_on_from_the_best_so_far() -> None:
    def speed(candidate: Candidate) -> float:
        ranks = {None: 10.0, 2: 15.0, 4: 12.0}[candidate.ppn]
        return ranks * (1.2 if candidate.bf16 == "false" else 1) * (1.1 if candidate.accumulation == 2 else 1)

    rows = play(space(QUAD, args=MINE), speed)

    assert [(row.candidate.ppn, row.candidate.bf16, row.candidate.accumulation) for row in rows] == [
        (None, None, 1),
        (2, None, 1),
        (4, None, 1),
        (2, "false", 1),
        (2, "false", 2),
        (2, "false", 4),
        (None, None, 1),  # and once more
        (2, "false", 2),
    ]
    assert judge(rows) == Verdict(Candidate(2, "false", 2, 2), pytest.approx(1.98))


@pytest.mark.parametrize(("gain", "wins"), [(WORTH - 0.001, False), (WORTH + 0.001, True)])
def test_what_is_faster_by_less_than_noise_does_not_replace_the_best(gain: float, wins: bool) -> None:
    found = space(QUAD, args=MINE)
    rows = play(found, lambda candidate: 10 * gain if candidate.ppn == 2 else 10.0)

    verdict = judge(rows)
    assert verdict is not None
    assert (verdict.best.ppn == 2) == wins
    assert [row.again for row in rows][-2:] == ([True, True] if wins else [False, True])


def test_a_failure_is_a_row_and_the_search_goes_on() -> None:
    found = space(QUAD, args=MINE)
    rows = play(found, lambda candidate: 0 if candidate.ppn == 4 else 20 if candidate.bf16 else 10)

    assert [row.problem for row in rows if row.candidate.ppn == 4] == ["out of memory?"]
    assert judge(rows) == Verdict(Candidate(None, "false", 8, 1), 2.0)


def test_without_the_default_there_is_nothing_to_compare_with() -> None:
    rows = play(space(QUAD), lambda candidate: 0)
    assert (len(rows), judge(rows)) == (1, None)
    assert judge([Row(Candidate(None, None, 8, 1), 10.0)]) is None


def test_what_was_fast_by_chance_falls_when_measured_once_more() -> None:
    found = space(QUAD, args=MINE)
    rows = play(found, lambda each: 30 if each.ppn == 2 else 10, again=lambda each: 10)

    assert judge(rows) == Verdict(found.default, 1.0, fell=True)


def test_how_much_faster_is_what_the_second_look_says() -> None:
    found = space(QUAD, args=MINE)
    rows = play(found, lambda each: 160 if each.ppn == 2 else 10, again=lambda each: 45 if each.ppn else 40)

    assert judge(rows) == Verdict(Candidate(2, None, 4, 1), 1.125, is_busy=True)


def test_when_the_second_look_fails_the_first_counts() -> None:
    found = space(QUAD, args=MINE)
    rows = play(found, lambda each: 20 if each.ppn == 2 else 10, again=lambda each: 0 if each.ppn else 10)

    assert judge(rows) == Verdict(Candidate(2, None, 4, 1), 2.0)


# --- how fast a trial is -----------------------------------------------------------------------


def timed(*steps: tuple[float, int], like: Window | None = None, began_s: float = 0.0) -> Timing:
    """A trial whose steps ended at these moments, in seconds; it is looked at until it is over."""
    clock = [began_s]
    timing = Timing(lambda: clock[0], like)
    timing.feed(Event("setup", data={"dtype": "bf16", "global_batch": 16}))
    timing.feed(Event("phase", data={"name": "train on 9 lines"}))
    for moment, step in steps:
        clock[0] = moment
        timing.feed(Event("heartbeat", 0))
        timing.feed(Event("progress", data={"step": step}))
    return timing


def test_the_default_is_timed_for_some_seconds_without_its_first_steps() -> None:
    slow_first = [(20.0, 1), (30.0, 2), (31.0, 3)]
    timing = timed(*slow_first, *[(31.0 + step, 3 + 2 * step) for step in range(1, 30)])

    assert timing.is_over
    assert timing.steps_per_s == pytest.approx(2)
    assert timing.window == Window(3, 3 + 2 * int(STEADY_S), 31 + STEADY_S)
    assert (timing.dtype, timing.global_batch) == ("bf16", 16)
    assert not timed(*slow_first, (40.0, 5)).is_over
    assert not timed(*slow_first, (61.0, 4)).is_over  # one step is none to go by


def test_others_are_timed_over_the_same_steps() -> None:
    like = Window(3, 23, 40.0)
    timing = timed((2, 1), (3, 2), (4, 4), (9, 14), (14, 24), (100, 25), like=like)

    assert timing.is_over
    assert timing.window == Window(4, 24, 14)
    assert timing.steps_per_s == pytest.approx(2)
    assert not timed((2, 1), (4, 4), (9, 14), like=like).is_over


def test_few_steps_of_a_slow_default_are_not_over_in_a_moment() -> None:
    like = Window(3, 5, 60.0)
    assert not timed((1, 3), (1.5, 5), like=like).is_over
    assert timed((1, 3), (1.5, 5), (1 + LEAST_S, 20), like=like).is_over


def test_what_is_many_times_slower_is_cut_off() -> None:
    like = Window(3, 23, 40.0)
    timing = timed((100, 3), (110, 4), (SLOWEST * 40, 5), like=like)
    assert timing.is_over
    assert timing.steps_per_s == pytest.approx(0.1)
    assert timed((SLOWEST * 40, 1), like=like).steps_per_s is None
    assert timed((GIVE_UP_S, 1)).is_over


def test_a_run_that_goes_on_from_a_checkpoint_is_timed_from_there() -> None:
    timing = timed((1, 101), (2, 102), (3, 103), (3 + STEADY_S, 130))
    assert timing.window == Window(103, 130, 3 + STEADY_S)

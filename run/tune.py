"""--tune: what may be tried for a recipe on these nodes, in which order, and which is the best. Pure.

What is learned must not depend on it, so everything tried has the same global batch: a rank's batch x the
ranks x gradient accumulation. For the same global batch the recipes train on the same batches.

The search goes coordinate by coordinate, each from the best so far: ranks a node, precision, then how a
rank's share of a step is cut into micro-batches. A whole grid would take an hour, and these hardly depend on
each other. At the end the best has to beat the default once more: of many noisy measurements the largest is
too large.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2

from provision.errors import SettingsError
from provision.facts import NodeFacts
from run.job import given
from run.layout import LayoutSettings, NodeLayout, lay_out_all

WORTH = 1.03
"""By how much a candidate must be faster to replace the best. For less nobody's layout should change: fifteen
seconds are hardly surer on the quietest node. On busy ones the last comparison decides.
"""
BUSY = 1.15
"""By how much the default may differ from itself, at the beginning and the end, before it is told that the
nodes had something else to do.
"""
MOST_PPN = 5
"""Other counts of ranks a node that are tried, those nearest to the default: each costs half a minute."""
FP32, BF16 = "fp32", "bf16"
"""Precisions as the recipes name them."""


@dataclass(frozen=True)
class RecipeDefaults:
    """What the recipe takes where nothing is given; `data` names its data, else it has the samples."""

    max_seq_length: int
    data: tuple[str, ...]


DEFAULTS: Mapping[str, RecipeDefaults] = {
    "run_qa": RecipeDefaults(384, ("dataset_name", "train_file", "validation_file")),
    "run_pretraining": RecipeDefaults(128, ("train_file", "validation_file")),
}
SAMPLE_GLOBAL_BATCH = 16
PER_DEVICE = 8
"""As in run/recipes and in transformers' TrainingArguments, which is not installed here. The ranks say what
their global batch is; a trial with another one than was computed here does not count.
"""


@dataclass(frozen=True)
class Candidate:
    """One way to train. `ppn` None: as each node's own layout has it; `bf16` None: as the user has it."""

    ppn: int | None
    bf16: str | None
    per_device: int
    accumulation: int

    @property
    def args(self) -> tuple[str, ...]:
        """For the recipe, after the user's own: the last one counts."""
        precision = ("--bf16", self.bf16) if self.bf16 else ()
        batch = ("--per_device_train_batch_size", str(self.per_device))
        return (*precision, *batch, "--gradient_accumulation_steps", str(self.accumulation))

    def to_json(self) -> dict[str, int | str | None]:
        """In the words of the arguments."""
        return {
            "ppn": self.ppn,
            "bf16": self.bf16,
            "per_device_train_batch_size": self.per_device,
            "gradient_accumulation_steps": self.accumulation,
        }

    def __str__(self) -> str:
        """
        >>> str(Candidate(2, "false", 4, 3)), str(Candidate(None, None, 8, 1))
        ('2 ranks a node, float32, 4 x 3 a rank', '8 x 1 a rank')
        """
        ranks = "" if self.ppn is None else f"{self.ppn} rank{'' if self.ppn == 1 else 's'} a node"
        precision = {"true": "bf16", "false": "float32"}.get(self.bf16 or "", "")
        batch = f"{self.per_device} x {self.accumulation} a rank"
        return ", ".join(part for part in (ranks, precision, batch) if part)


@dataclass(frozen=True)
class Pins:
    """What the user has given and nobody may vary."""

    ppn: bool = False
    bf16: bool = False
    accumulation: bool = False


@dataclass(frozen=True)
class Space:
    """What can be tried on these nodes: all with `global_batch`, and without what is pinned."""

    facts: Mapping[str, NodeFacts]
    settings: LayoutSettings
    pins: Pins
    default: Candidate
    global_batch: int

    def layouts(self, ppn: int | None) -> dict[str, NodeLayout]:
        """Raises SettingsError for more ranks than a node has cores."""
        return lay_out_all(self.facts, replace(self.settings, ppn=ppn))

    def ranks(self, ppn: int | None) -> int:
        """Of all nodes. Raises SettingsError as layouts() does."""
        return sum(layout.ppn for layout in self.layouts(ppn).values())

    def ppns(self, best: Candidate) -> tuple[Candidate, ...]:
        """The best with other ranks on each node, of equal numbers."""
        if self.pins.ppn:
            return ()
        usual = {layout.ppn for layout in self.layouts(self.default.ppn).values()}
        counts = [count for count in self._counts() if usual != {count} and self._fits(count)]
        found = [made for count in counts if (made := self.with_ppn(best, count))]
        # Of equally near ones the fewer ranks: they need less memory.
        found.sort(key=lambda each: (abs(log2((each.ppn or 1) / max(usual))), each.ppn))
        return tuple(sorted(found[:MOST_PPN], key=lambda each: each.ppn or 0))

    def _counts(self) -> Iterable[int]:
        """Numbers of ranks a node that go with the hardware of the nodes."""
        most = min(layout.budget for layout in self.layouts(self.default.ppn).values())
        cpus = [cpu for facts in self.facts.values() for cpu in facts.topology.cpus]
        parts = {len({cpu.socket for cpu in cpus}), len({cpu.numa for cpu in cpus})}
        powers = {2**power for power in range(most.bit_length())}
        return (count for count in sorted(powers | parts) if count <= most)

    def _fits(self, ppn: int) -> bool:
        """Whether every thread has a core: of uneven NUMA nodes one may have more ranks than cores to use."""
        try:
            layouts = self.layouts(ppn).values()
        except SettingsError:
            return False
        return all(sum(rank.threads for rank in layout.ranks) <= layout.budget for layout in layouts)

    def with_ppn(self, base: Candidate, ppn: int | None) -> Candidate | None:
        """The candidate with so many ranks, in micro-batches as like the default's as the global batch lets;
        None where it does not divide, or the nodes have no cores for the ranks and --threads.
        """
        try:
            share, rest = divmod(self.global_batch, self.ranks(ppn))
        except SettingsError:
            return None
        wanted = self.default.accumulation
        fitting = [count for count in range(wanted, 0, -1) if share and share % count == 0]
        if rest or not fitting or (self.pins.accumulation and fitting[0] != wanted):
            return None
        return replace(base, ppn=ppn, per_device=share // fitting[0], accumulation=fitting[0])

    def precisions(self, best: Candidate, dtype: str | None = None) -> tuple[Candidate, ...]:
        """The best in the precision that the default did not take. `dtype` is what it took, None: not known.

        bf16 only where every CPU has units for it: elsewhere the recipe warns, and takes many times longer.
        """
        has_units = all(facts.cpu.flags & {"amx_bf16", "avx512_bf16"} for facts in self.facts.values())
        if self.pins.bf16 or not has_units:
            return ()
        return (replace(best, bf16="true" if dtype == FP32 else "false"),)

    def batches(self, best: Candidate) -> tuple[Candidate, ...]:
        """The best with a rank's share of a step cut otherwise: whole, and twice and half as often or so."""
        if self.pins.accumulation:
            return ()
        share, now = best.per_device * best.accumulation, best.accumulation
        counts = sorted({1, now // 2, now * 2, now * 4} - {0, now})
        fitting = [count for count in counts if share % count == 0]
        return tuple(replace(best, per_device=share // count, accumulation=count) for count in fitting)

    def most_trials(self) -> int:
        """An upper limit, the default and the last comparison included."""
        first = self.default
        batches = max(len(self.batches(each)) for each in (first, *self.ppns(first)))
        others = len(self.ppns(first)) + len(self.precisions(first)) + batches
        return 1 + others + (2 if others else 0)  # 2: the default and the best once more


def survey(
    program: str, args: Sequence[str], settings: LayoutSettings, facts: Mapping[str, NodeFacts]
) -> Space:
    """What can be tried for these arguments of a recipe. Raises SettingsError for wrong numbers."""
    ranks = sum(layout.ppn for layout in lay_out_all(facts, settings).values())
    is_sample = not any(given(args, name) for name in DEFAULTS[program].data)
    usual = max(1, SAMPLE_GLOBAL_BATCH // ranks) if is_sample else PER_DEVICE
    per_device = _number(args, "per_device_train_batch_size", usual)
    accumulation = _number(args, "gradient_accumulation_steps", 1)
    pins = Pins(
        settings.ppn is not None,
        given(args, "bf16") is not None,
        given(args, "gradient_accumulation_steps") is not None,
    )
    default = Candidate(settings.ppn, None, per_device, accumulation)
    return Space(facts, settings, pins, default, ranks * per_device * accumulation)


def _number(args: Sequence[str], name: str, usual: int) -> int:
    text = given(args, name)
    if text is None:
        return usual
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"--{name} {text}: give a number above 0")
    return int(text)


# --- the search --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What came of a trial: samples a second over all ranks in `dtype`, or the problem. `again`: of the last
    comparison.
    """

    candidate: Candidate
    samples_per_s: float | None = None
    dtype: str | None = None
    problem: str = ""
    again: bool = False


@dataclass(frozen=True)
class Wanted:
    """A trial that is to be made."""

    candidate: Candidate
    again: bool = False


def search(space: Space) -> Generator[Wanted, Row, None]:
    """Yields what to try next, and is sent what came of it. Ends at once when the default fails."""
    default = best = yield Wanted(space.default)
    if default.samples_per_s is None:
        return
    coordinates: tuple[Callable[[Candidate], Iterable[Candidate]], ...] = (
        space.ppns,
        lambda start: space.precisions(start, default.dtype),
        space.batches,
    )
    has_others = False
    for step in coordinates:
        for candidate in step(best.candidate):
            has_others = True
            best = better(best, (yield Wanted(candidate)))
    if has_others:
        yield Wanted(space.default, again=True)
    if best is not default:
        yield Wanted(best.candidate, again=True)


def better(best: Row, row: Row) -> Row:
    """The row if it is faster by more than noise."""
    if best.samples_per_s is None or row.samples_per_s is None:
        return best
    return row if row.samples_per_s > WORTH * best.samples_per_s else best


@dataclass(frozen=True)
class Verdict:
    """The best, and how many times as fast as the default it is.

    `fell`: another one was faster at first, and was not when both were measured once more. `is_busy`: the
    default itself was much faster or slower the second time. `is_whole`: all that there is was tried.
    """

    best: Candidate
    times: float
    fell: bool = False
    is_busy: bool = False
    is_whole: bool = True

    @property
    def is_kept(self) -> bool:
        """A default that is the best of a few trials is no news, and what an earlier tuning found stays."""
        return self.is_whole or self.times > 1


def judge(rows: Sequence[Row]) -> Verdict | None:
    """The best of what was measured so far; None until the default and another one are.

    Where the last comparison was made, it alone says how much faster: it was not chosen for being large.
    """
    default, *others = rows
    first = [row for row in others if not row.again]
    if default.samples_per_s is None or not any(row.samples_per_s for row in first):
        return None
    best = default
    for row in first:
        best = better(best, row)
    speeds = [row.samples_per_s for row in others if row.again and row.samples_per_s]
    is_busy = bool(speeds) and not 1 / BUSY < speeds[0] / default.samples_per_s < BUSY
    if best is default:
        return Verdict(default.candidate, 1.0, is_busy=is_busy)
    assert best.samples_per_s is not None
    then, now = speeds if len(speeds) == 2 else (default.samples_per_s, best.samples_per_s)
    if now <= WORTH * then:
        return Verdict(default.candidate, 1.0, fell=True, is_busy=is_busy)
    return Verdict(best.candidate, now / then, is_busy=is_busy)

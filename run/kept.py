"""What --tune found and keeps for later runs, by machine type and script.

    $XDG_STATE_HOME/clusterctl/tuned.json      {machines: {script: {what was the best, ...}}}

beside the records of the clusters (provision/state.py), since it outlives them: the next cluster of the same
machines has the use of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.errors import SettingsError
from provision.facts import NodeFacts
from provision.state import replace_file, state_root
from run.job import from_anywhere, given
from run.layout import LayoutSettings, lay_out_all
from run.tune import DEFAULTS, Candidate, Space


@dataclass(frozen=True)
class Kept:
    """The best of a tuning, how many times as fast as the default it was, and the day (UTC)."""

    best: Candidate
    times: float
    day: str


@dataclass(frozen=True)
class Key:
    """What decides which candidate is fast: these machines, and what they are to train."""

    machines: str
    script: str


def key_of(space: Space, program: str, args: Sequence[str], *, stack: str, backend: str) -> Key:
    """`stack` is the kind of it: torch 2.8 with IPEX is fast at other things than the native one."""
    length = given(args, "max_seq_length") or DEFAULTS[program].max_seq_length
    about = (program, _model(args), f"{length} tokens", f"global batch {space.global_batch}", stack, backend)
    return Key(machines(space.facts, space.settings.core_share), ", ".join(about))


def _model(args: Sequence[str]) -> str:
    whole = from_anywhere(args)
    names = ("model_name_or_path", "config_name", "model_type", "config_overrides")
    return " ".join(value for name in names if (value := given(whole, name))) or "its own model"


def machines(facts: Mapping[str, NodeFacts], core_share: Mapping[str, float]) -> str:
    """The nodes by what they are, not by name: "2 x Xeon 8488C (2 sockets, NUMA 48 48, 96 cores to use)"."""
    layouts = lay_out_all(facts, LayoutSettings(core_share=core_share))
    kinds = Counter(_machine(known, layouts[node].budget) for node, known in facts.items())
    return " + ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))


def _machine(facts: NodeFacts, usable: int) -> str:
    cpus = facts.topology.cpus
    numa = Counter(numa for _, numa in {(cpu.core, cpu.numa) for cpu in cpus})
    sizes = " ".join(str(numa[node]) for node in sorted(numa))
    sockets = len({cpu.socket for cpu in cpus})
    plural = "" if sockets == 1 else "s"
    return f"{facts.cpu.model_name} ({sockets} socket{plural}, NUMA {sizes}, {usable} cores to use)"


# --- what of it is used ------------------------------------------------------------------------


@dataclass(frozen=True)
class Used:
    """What a run takes of what was kept; `is_whole` unless the user had given some of it."""

    candidate: Candidate
    kept: Kept
    is_whole: bool

    def __str__(self) -> str:
        worth = f"{self.kept.times:.2f} times the default" if self.is_whole else "in part: you gave the rest"
        return f"tuned: {self.candidate} ({worth}, {self.kept.day}); --no-tuned for the default"

    def to_json(self) -> dict[str, Any]:
        return {**self.candidate.to_json(), "times": self.kept.times, "day": self.kept.day}


def choose(space: Space, kept: Kept) -> Used | None:
    """What of it a run takes: nothing that the user has given, and never another global batch.

    None where nothing is left but the default.
    """
    pins, best = space.pins, kept.best
    found = _batches(space, best) or space.default
    found = replace(found, bf16=None if pins.bf16 else best.bf16)
    return None if found == _explicit(space) or found == space.default else Used(found, kept, found == best)


def _batches(space: Space, best: Candidate) -> Candidate | None:
    """Ranks and micro-batches, which go together; None where they do not go with what the user has given."""
    ppn = space.default.ppn if space.pins.ppn else best.ppn
    like_default = space.with_ppn(best, ppn)
    if like_default is None or (space.pins.accumulation and best.accumulation != space.default.accumulation):
        return like_default
    is_same = space.ranks(ppn) * best.per_device * best.accumulation == space.global_batch
    return replace(best, ppn=ppn) if is_same else None


def _explicit(space: Space) -> Candidate:
    """The default with its ranks as a number, where that is the same on all nodes."""
    return replace(space.default, ppn=even_ppn(space, space.default.ppn))


def even_ppn(space: Space, ppn: int | None) -> int | None:
    """Ranks on each node; None where nodes differ."""
    counts = {layout.ppn for layout in space.layouts(ppn).values()}
    return counts.pop() if len(counts) == 1 else None


# --- the file ----------------------------------------------------------------------------------


def kept_file() -> Path:
    return state_root() / "tuned.json"


def read_kept() -> dict[str, dict[str, Kept]]:
    """By machines and script; empty without a file. Raises SettingsError when it cannot be read."""
    path = kept_file()
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = " ".join(str(error).split())
        raise SettingsError(
            f"{path}: not what --tune wrote ({type(error).__name__}: {why}); remove it, and tune again"
        ) from error


def find_kept(key: Key) -> Kept | None:
    """Raises SettingsError as read_kept() does."""
    return read_kept().get(key.machines, {}).get(key.script)


def keep(key: Key, kept: Kept) -> None:
    """In the place of what was kept for the same. A file that cannot be read is replaced."""
    try:
        all_kept = read_kept()
    except SettingsError:
        all_kept = {}
    all_kept.setdefault(key.machines, {})[key.script] = kept
    kept_file().parent.mkdir(parents=True, exist_ok=True)
    replace_file(kept_file(), dump(all_kept))


def dump(all_kept: Mapping[str, Mapping[str, Kept]]) -> str:
    stored = {
        machine: {
            script: {**kept.best.to_json(), "times": kept.times, "day": kept.day}
            for script, kept in scripts.items()
        }
        for machine, scripts in all_kept.items()
    }
    return json.dumps(stored, indent=2) + "\n"


def parse(text: str) -> dict[str, dict[str, Kept]]:
    """What dump() wrote. Raises ValueError, TypeError, KeyError or AttributeError for anything else."""
    stored = json.loads(text)
    return {
        machine: {script: _parse_kept(about) for script, about in scripts.items()}
        for machine, scripts in stored.items()
    }


def _parse_kept(about: Mapping[str, Any]) -> Kept:
    best = Candidate(*(about[name] for name in Candidate(None, None, 1, 1).to_json()))
    counts = [best.per_device, best.accumulation, *([] if best.ppn is None else [best.ppn])]
    if not all(type(count) is int and count > 0 for count in counts):
        raise ValueError(f"counts from 1 are wanted, not {counts}")
    if best.bf16 not in (None, "true", "false"):
        raise ValueError(f"bf16: {best.bf16!r}")
    return Kept(best, float(about["times"]), str(about["day"]))

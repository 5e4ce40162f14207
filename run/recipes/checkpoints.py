"""Checkpoints: whole where they lie, brought to the nodes that lack them, made when a node is about to end.

Rank 0's node alone keeps them: `--save_on_each_node` would write three models' bytes on every node, and since
transformers 5 no weights among them (save_pretrained writes on one rank of all).
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from ranks import Place, UserError, gather, together
from transformers import TrainerCallback, TrainingArguments

STATE = "trainer_state.json"
"""Trainer writes it last: without it a checkpoint was cut off."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
BATCHES = "batches.json"
REQUEST = "CLUSTERCTL_CHECKPOINT_REQUEST"
CHUNK_BYTES = 64 << 20


# --- where training begins ---------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """`checkpoint` is what to go on from, None at the first step; a step has `global_batch` rows, on however
    many ranks. `a_rank` is how many a rank was to have by the arguments.
    """

    checkpoint: str | None
    global_batch: int
    a_rank: int


def find_start(run: TrainingArguments, place: Place) -> Start:
    """Where to begin; the batch sizes of `run` become those of these ranks.

    The ranks may be fewer than were asked for: under torchrun when a node was lost, or when a run is gone on
    with on other nodes. They still train what was asked for: the global batch of all the ranks there were to
    be, or that of the checkpoint. Raises UserError, SilentExit.
    """
    a_rank = run.per_device_train_batch_size * run.gradient_accumulation_steps
    resumed = run.resume_from_checkpoint if run.do_train else "false"
    checkpoint = find_checkpoint(resumed, Path(run.output_dir), place)
    global_batch = a_rank * place.planned
    if checkpoint is not None:
        keep = partial(batch_to_keep, checkpoint, a_rank, place.planned)
        global_batch = gather(place, together(place, keep, only_rank_0=True))[0]
    if global_batch != a_rank * place.world_size:
        sizes = share_out(global_batch, place.world_size, run.per_device_train_batch_size)
        run.per_device_train_batch_size, run.gradient_accumulation_steps = sizes
        told = f"{sizes[0]} rows a rank" + (f" in each of {sizes[1]} micro-batches" if sizes[1] > 1 else "")
        place.emit(
            "warning", text=f"a step keeps its {global_batch} rows on {place.world_size} ranks: {told}"
        )
    return Start(checkpoint, global_batch, a_rank)


def share_out(global_batch: int, ranks: int, most: int) -> tuple[int, int]:
    """Rows of a micro-batch, never more than `most`, and micro-batches a step; the last may have room left.

    >>> share_out(48, 4, 12), share_out(48, 3, 12), share_out(48, 5, 12)
    ((12, 1), (8, 2), (10, 1))
    """
    micro_batches = -(-global_batch // (ranks * most))
    return -(-global_batch // (ranks * micro_batches)), micro_batches


# --- which -------------------------------------------------------------------------------------


def find_checkpoint(wanted: str | None, output: Path, place: Place) -> str | None:
    """The checkpoint to go on from, on every node; None to begin anew. Raises UserError, SilentExit.

    Chosen by rank 0; nodes that lack it get it from the first rank that has it. Under torchrun, ranks that
    were started again go on from their own newest one, without being asked to.
    """
    if wanted is None and "TORCHELASTIC_RUN_ID" in os.environ:
        wanted = newest_anywhere(output, place)
    if wanted is None or wanted.lower() == "false":
        return None
    chosen = gather(place, together(place, partial(choose_checkpoint, wanted, output), only_rank_0=True))[0]
    holders = [rank for rank, whole in enumerate(gather(place, is_whole(Path(chosen)))) if whole]
    together(place, partial(require_holder, chosen, holders), only_rank_0=True)
    if len(holders) < place.world_size:
        place.emit("phase", name="bring the checkpoint to all nodes")
        spread(Path(chosen), holders, place)
    return chosen


def newest_anywhere(output: Path, place: Place) -> str | None:
    """The checkpoint of the highest step that any rank has whole: rank 0 may be on another node by now."""
    steps = [int(folder.name.split("-")[1]) for folder in output.glob("checkpoint-*") if is_whole(folder)]
    newest = max(gather(place, max(steps, default=0)))
    return str(output / f"checkpoint-{newest}") if newest else None


def choose_checkpoint(wanted: str, output: Path) -> str:
    """The folder named, or for "true" the newest one that was written to its end."""
    if wanted.lower() != "true":
        return wanted
    whole = [folder for folder in output.glob("checkpoint-*") if is_whole(folder)]
    if not whole:
        raise UserError(
            f"--resume_from_checkpoint: no whole checkpoint in {output}; leave it out to begin anew"
        )
    return str(max(whole, key=lambda folder: folder.stat().st_mtime))


def is_whole(folder: Path) -> bool:
    return (folder / STATE).is_file() and any((folder / name).is_file() for name in WEIGHTS)


def require_holder(folder: str, holders: Sequence[int]) -> None:
    if not holders:
        raise UserError(
            f"--resume_from_checkpoint {folder}: no node has a whole checkpoint there; name another, or "
            "leave it out to begin anew"
        )


def spread(folder: Path, holders: Sequence[int], place: Place) -> None:
    """The folder from the first holder to every node that lacks it, over the ranks' own network."""
    source = holders[0]
    lacks = place.rank not in holders and place.local_rank == 0
    lacking = [rank for rank, is_lacking in enumerate(gather(place, lacks)) if is_lacking]
    group = dist.new_group([source, *lacking], backend="gloo")
    files = gather(place, list_files(folder) if place.rank == source else [])[source]
    if place.rank == source:
        for name, size in files:
            send_file(folder / name, size, source, group)
    elif place.rank in lacking:
        aside = folder.with_name(f".{folder.name}.for-rank-{place.rank}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for name, size in files:
            receive_file(aside / name, size, source, group)
        settle(aside, folder)
    gather(place, None)  # a node's other ranks may look for it now


def settle(aside: Path, folder: Path) -> None:
    """The folder that came takes its place, in which another node that has the same home may be quicker."""
    if not is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)  # cut off
        try:
            aside.replace(folder)
        except OSError:
            if not is_whole(folder):
                raise
    shutil.rmtree(aside, ignore_errors=True)


def list_files(folder: Path) -> list[tuple[str, int]]:
    """Name and size of each."""
    return [(file.name, file.stat().st_size) for file in sorted(folder.iterdir()) if file.is_file()]


def send_file(path: Path, size: int, source: int, group: dist.ProcessGroup) -> None:
    with path.open("rb") as file:
        for count in chunks(size):
            dist.broadcast(torch.frombuffer(bytearray(file.read(count)), dtype=torch.uint8), source, group)


def receive_file(path: Path, size: int, source: int, group: dist.ProcessGroup) -> None:
    with path.open("wb") as file:
        for count in chunks(size):
            chunk = torch.empty(count, dtype=torch.uint8)
            dist.broadcast(chunk, source, group)
            file.write(chunk.numpy().tobytes())


def chunks(size: int) -> Iterator[int]:
    """Sizes of the pieces of a file of `size` bytes.

    >>> [count >> 20 for count in chunks(130 << 20)]
    [64, 64, 2]
    """
    for at in range(0, size, CHUNK_BYTES):
        yield min(CHUNK_BYTES, size - at)


# --- what --------------------------------------------------------------------------------------


def save_random_states(folder: Path, place: Place, writes: bool) -> None:
    """Every rank's random state, as Trainer names and reads it, into the checkpoint.

    Trainer itself leaves a rank's state on the rank's own node, and another node in its place has none.
    """
    mine = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    states = gather(place, mine)
    if not writes:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for rank, state in enumerate(states):
        name = "rng_state.pth" if len(states) == 1 else f"rng_state_{rank}.pth"
        torch.save(state, folder / name)


def save_batches(folder: Path, start: Start, features: int) -> None:
    about = {"global_batch": start.global_batch, "a_rank": start.a_rank, "features": features}
    (folder / BATCHES).write_text(json.dumps(about) + "\n")


def read_batches(folder: str) -> dict[str, int]:
    """Nothing of a checkpoint that does not say, and is taken as it is."""
    path = Path(folder) / BATCHES
    return json.loads(path.read_text()) if path.is_file() else {}


def batch_to_keep(folder: str, a_rank: int, ranks: int) -> int:
    """The global batch to go on with: a step of the checkpoint must be a step of this run.

    It is kept on other ranks than it was made on, where each was to have as many rows. Raises UserError where
    other batches are asked for.
    """
    before = read_batches(folder)
    wanted = before.get("global_batch", a_rank * ranks)
    if wanted != a_rank * ranks and before.get("a_rank") != a_rank:
        known = f" = {before['a_rank']}" if "a_rank" in before else ""  # earlier checkpoints do not say
        raise UserError(
            f"{folder} has a global batch of {wanted}, {ranks} ranks make one of {a_rank * ranks}: give "
            f"--per_device_train_batch_size times --gradient_accumulation_steps{known}, as it "
            "had; then any number of ranks keeps its global batch"
        )
    return wanted


def require_same_features(folder: str, features: int) -> None:
    """Else it would go on at another place in the data. Raises UserError."""
    before = read_batches(folder).get("features", features)
    if before != features:
        raise UserError(
            f"{folder} was made from {before} windows, there are {features} now: give the same questions and "
            "--max_seq_length, or begin anew"
        )


# --- when --------------------------------------------------------------------------------------


class Interruption(TrainerCallback):
    """Saves a whole checkpoint and ends the training once any rank is asked to.

    A rank is asked by a file, named by REQUEST (see rank.py). What one rank has seen all must act upon at the
    same step: the largest of their flags. It is asked for at the end of a step and looked at at the end of
    the next: by then it has long come, and no rank waits for it. Of a step it takes 0.14 ms with 2 ranks and
    0.20 ms with 4 (2 cores, median); waiting at once took 0.21 and 0.60 ms, and 4 ms in one step of ten.
    """

    def __init__(self, place: Place):
        self.place = place
        self.request = os.environ.get(REQUEST, "")
        self.happened = False
        self.flag = torch.zeros(1, dtype=torch.int32)
        self.answer: dist.Work | None = None

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step >= state.max_steps:
            self._agreed()  # nothing to save any more; but no answer may be left on the way
            return
        if self._agreed():
            self.happened = True
            args.save_only_model = False  # or nobody could go on from it
            control.should_log = control.should_save = control.should_training_stop = True
            return
        self._ask()

    def on_epoch_end(self, args, state, control, **kwargs) -> None:
        if self.happened:
            control.should_save = False  # --save_strategy epoch would save the same once more

    def on_save(self, args, state, control, **kwargs) -> None:
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.place.emit("checkpoint", path=str(path), step=state.global_step)

    def _ask(self) -> None:
        self.flag.fill_(int(bool(self.request) and os.path.exists(self.request)))  # noqa: PTH110
        if self.place.world_size > 1:
            self.answer = dist.all_reduce(self.flag, dist.ReduceOp.MAX, async_op=True)

    def _agreed(self) -> bool:
        if self.answer is not None:
            self.answer.wait()
            self.answer = None
        return bool(self.flag.item())

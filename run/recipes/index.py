"""A text made ready by all ranks together: the same on every node, unpacked, and its rows counted once.

The count needs the tokens, a hundredth or less of the work of training on them. Each rank counts its share of
the blocks; every node keeps the result, under the files' names, sizes and times of change and the tokenizer.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from ranks import Place, UserError, gather, together
from rows import Cutter
from text import (
    Block,
    Blocks,
    Rounds,
    TextError,
    beside,
    block_bytes,
    digest,
    find_files,
    identify,
    is_plain,
    lacking,
    plain_path,
    read_lines,
    require_text,
    unpack,
)

Result = TypeVar("Result")
TOLD_EVERY_S = 10.0
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Text:
    """A text in blocks. `name` is the same wherever the same text is, `key` where it has not been touched."""

    blocks: Sequence[Block]
    name: str
    key: str


@dataclass(frozen=True)
class Index:
    """How many lines that are not blank, tokens and rows each block has, three int64 arrays."""

    lines: np.ndarray
    tokens: np.ndarray
    rows: np.ndarray


def cache_folder(named: str | None) -> Path:
    """Where index and unpacked text are kept."""
    kept = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named).expanduser() if named else Path(kept) / "clusterctl" / "text"


# --- the text ----------------------------------------------------------------------------------


def prepare_text(named: Sequence[str], folder: Path, place: Place) -> Text:
    """The text in files and folders, ready to be read on every node. Raises UserError, SilentExit."""
    files, name = together(place, partial(mendable, partial(look, named)))
    together(place, partial(require_same_text, named, gather(place, name)), only_rank_0=True)
    packed = lacking(files, folder) if place.local_rank == 0 else []
    if any(gather(place, bool(packed))):
        place.emit("phase", name="unpack the text")
        in_rounds(place, unpack(packed, folder))
    plain = [path if is_plain(path) else plain_path(path, folder) for path in files]
    together(place, partial(mendable, partial(require_texts, plain)), only_rank_0=True)
    size = block_bytes(sum(path.stat().st_size for path in plain))
    key = digest(str(size), *(identify(path, with_time=True) for path in files))
    return Text(Blocks(plain, size), name, key)


def look(named: Sequence[str]) -> tuple[list[Path], str]:
    """The files, and a name that they have on every node."""
    files = find_files(named)
    return files, digest(*(identify(path, with_time=False) for path in files))


def require_texts(files: Sequence[Path]) -> None:
    for path in files:
        require_text(path)


def mendable(action: Callable[[], Result]) -> Result:
    """The action's result. Raises UserError for a text that cannot be used."""
    try:
        return action()
    except TextError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None


def require_same_text(named: Sequence[str], names: Sequence[str]) -> None:
    others = [str(rank) for rank, name in enumerate(names) if name != names[0]]
    if others:
        raise UserError(
            f"{' '.join(named)}: other files at rank {', '.join(others)} than at rank 0; "
            "every node needs the same text"
        )


def in_rounds(place: Place, work: Iterator[float]) -> None:
    """Every rank does its work, of which it yields the share that is done every two seconds.

    The ranks wait for each other after each of them: in one go the slowest node would be waited for longer
    than a collective may take.
    """
    told_s = time.monotonic()
    while True:
        share = together(place, partial(mendable, partial(next, work, None)))
        shares = [part for part in gather(place, share) if part is not None]
        if not shares:
            return
        if time.monotonic() - told_s >= TOLD_EVERY_S:
            told_s = time.monotonic()
            place.emit("phase", name=f"{min(shares):.0%} done")


def sample_text(split: str, folder: Path, place: Place) -> Path:
    """The paragraphs of the sample questions as a text on this node. Raises UserError, SilentExit."""
    target = folder / f"sample-{split}.txt"
    together(place, partial(mendable, partial(write_sample, split, target, place)))
    return target


def write_sample(split: str, target: Path, place: Place) -> None:
    """By one rank of the node, and not anew: the index knows the file by its time."""
    if place.local_rank != 0:
        return
    document = json.loads((HERE / f"sample_qa_{split}.json").read_text(encoding="utf-8"))
    paragraphs = [part["context"] for article in document["data"] for part in article["paragraphs"]]
    text = "".join(f"{paragraph}\n\n" for paragraph in dict.fromkeys(paragraphs))
    if not (target.exists() and target.read_text(encoding="utf-8") == text):
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = beside(target)
        aside.write_text(text, encoding="utf-8")
        aside.replace(target)


# --- its index ---------------------------------------------------------------------------------


def index_text(text: Text, cutter: Cutter, tokenizer, folder: Path, place: Place) -> Index:
    """The text's index: from this node or another that has it, or else counted."""
    tokens = digest(tokenizer.backend_tokenizer.to_str())
    how = f"lines of {cutter.room}" if cutter.line_by_line else "joined"
    path = folder / f"index-{digest(text.key, tokens, how)}.npy"
    table = load_table(path, len(text.blocks))
    holders = [rank for rank, has in enumerate(gather(place, table is not None)) if has]
    if not holders:
        place.emit("phase", name="index the text")
        found = count_together(text.blocks, cutter, place)
    elif len(holders) < place.world_size:
        found = gather(place, table if place.rank == holders[0] else None)[holders[0]]
    else:
        found = table
    if table is None and place.local_rank == 0:
        with contextlib.suppress(OSError):  # no room: it is counted again next time
            save_table(path, found)
    lines, tokens, rows = found.T
    return Index(lines, tokens, rows if cutter.line_by_line else -(-tokens // cutter.room))


def count_together(blocks: Sequence[Block], cutter: Cutter, place: Place) -> np.ndarray:
    """Lines, tokens and rows of every block, int64 (n, 3), on every rank."""
    mine: list[tuple[int, int, int]] = []
    numbers = range(place.rank, len(blocks), place.world_size)
    in_rounds(place, count(blocks, numbers, cutter, mine))
    table = np.zeros((len(blocks), 3), np.int64)
    for rank, counts in enumerate(gather(place, np.array(mine, np.int64).reshape(-1, 3))):
        table[rank :: place.world_size] = counts
    return table


def count(
    blocks: Sequence[Block], numbers: Sequence[int], cutter: Cutter, into: list[tuple[int, int, int]]
) -> Iterator[float]:
    """Count the blocks with these numbers, as it is iterated; yields the share that is done."""
    clock = Rounds()
    for done, number in enumerate(numbers):
        into.append(cutter.count(read_lines(blocks[number])))
        if clock.over():
            yield done / len(numbers)


def load_table(path: Path, blocks: int) -> np.ndarray | None:
    try:
        table = np.load(path)
    except (OSError, ValueError, EOFError):
        return None
    return table if table.shape == (blocks, 3) else None


def save_table(path: Path, table: np.ndarray) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = beside(path)
    with aside.open("wb") as file:
        np.save(file, table)
    aside.replace(path)

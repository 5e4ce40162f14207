"""From lines to rows of token ids, and from rows to masked batches. Needs numpy, torch and a fast tokenizer.

A row is one input of the model: special tokens around at most `room` tokens of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

IGNORED = -100
"""torch's label for a token that nothing is asked about."""
MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1
LONGEST_ENCODED = 100_000
"""Characters given to the tokenizer at once; it needs some hundred bytes for each token."""


class Cutter:
    """Cuts the lines of a block into rows.

    As Hugging Face's run_mlm does: the tokens of all lines end to end, cut where a row is full; or with
    `line_by_line` each line by itself, cut where it is longer than a row. A separator stands where a blank
    line ends a document.
    """

    def __init__(self, tokenizer, length: int, line_by_line: bool):
        self.backend = tokenizer.backend_tokenizer
        self.backend.no_truncation()  # some tokenizer.json ask for both
        self.backend.no_padding()
        self.length, self.line_by_line = length, line_by_line
        self.before, self.after = special_tokens(tokenizer)
        self.separator = [] if tokenizer.sep_token_id is None else [tokenizer.sep_token_id]
        self.room = length - len(self.before) - len(self.after)

    def cut(self, lines: Sequence[str]) -> list[np.ndarray]:
        """All rows of a block, int32, special tokens included."""
        pieces = [
            ids[at : at + self.room] for ids in self._texts(lines) for at in range(0, len(ids), self.room)
        ]
        return [np.array([*self.before, *piece, *self.after], np.int32) for piece in pieces]

    def count(self, lines: Sequence[str]) -> tuple[int, int, int]:
        """Lines that are not blank, tokens, rows: what cut() comes to."""
        lengths = [len(ids) for ids in self._texts(lines)]
        rows = sum(-(-length // self.room) for length in lengths)
        return sum(bool(line.strip()) for line in lines), sum(lengths), rows

    def _texts(self, lines: Sequence[str]) -> list[list[int]]:
        """Token ids of what is cut by itself: each line, or the whole block."""
        parts = [(part, number) for number, line in enumerate(lines) for part in clip(line)]
        encoded = self.backend.encode_batch_fast([part for part, _ in parts], add_special_tokens=False)
        ids: list[list[int]] = [[] for _ in lines]
        for (_, number), one in zip(parts, encoded, strict=True):
            ids[number] += one.ids
        if self.line_by_line:
            return [line for line in ids if line]
        joined: list[int] = []
        is_new = False
        for line, text in zip(ids, lines, strict=True):
            joined += [*(self.separator if is_new and line and joined else ()), *line]
            is_new = (is_new and not line) or not text.strip()
        return [joined] if joined else []


def clip(line: str) -> Iterator[str]:
    """A line in parts that the tokenizer can take, cut at blanks.

    >>> list(clip("a line"))
    ['a line']
    """
    at = 0
    while len(line) - at > LONGEST_ENCODED:
        end = line.rfind(" ", at, at + LONGEST_ENCODED)
        end = end if end > at else at + LONGEST_ENCODED
        yield line[at:end]
        at = end
    yield line[at:]


def special_tokens(tokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text: [CLS] and [SEP] for BERT."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    at = next(at for at in range(len(whole)) if whole[at : at + len(plain)] == plain)
    return whole[:at], whole[at + len(plain) :]


# --- masks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masker:
    """Chooses what the model has to guess: of a row's tokens the share `probability`, at least one.

    Of the chosen 80 % become the mask, 10 % another token and 10 % stay. A function of the row and the seed,
    whoever calls it: DataCollatorForLanguageModeling draws from one stream for each process, so that a row's
    mask would depend on the number of ranks and workers, and a restart would draw others.
    """

    probability: float
    mask_id: int
    special_ids: np.ndarray
    ordinary_ids: np.ndarray

    @classmethod
    def of(cls, tokenizer, probability: float) -> Masker:
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        ordinary = np.setdiff1d(np.arange(len(tokenizer)), sorted(special | {tokenizer.unk_token_id}))
        return cls(probability, tokenizer.mask_token_id, np.array(sorted(special)), ordinary)

    def mask(self, ids: np.ndarray, seed: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The row as the model sees it, and what it has to guess (IGNORED elsewhere)."""
        random = np.random.default_rng(list(seed))
        places = np.flatnonzero(~np.isin(ids, self.special_ids))
        count = min(len(places), max(1, round(self.probability * len(places))))
        chosen = np.sort(random.permutation(places)[:count])
        fate = random.random(count)
        seen, labels = ids.copy(), np.full(len(ids), IGNORED, np.int32)
        labels[chosen] = ids[chosen]
        seen[chosen[fate < MASKED_SHARE]] = self.mask_id
        others = chosen[(fate >= MASKED_SHARE) & (fate < MASKED_SHARE + RANDOM_SHARE)]
        seen[others] = random.choice(self.ordinary_ids, len(others))
        return seen, labels


MaskedRow = tuple[np.ndarray, np.ndarray]
"""A row as the model sees it, and its labels."""


def empty_row(cutter: Cutter) -> MaskedRow:
    """Fills up a batch and counts for nothing."""
    ids = np.array([*cutter.before, *cutter.after], np.int32)
    return ids, np.full(len(ids), IGNORED, np.int32)


def collate(rows: Sequence[MaskedRow], pad_id: int) -> dict[str, torch.Tensor]:
    """A padded batch: B rows as long as the longest, rounded up to a multiple of 8. All int64 (B, L)."""
    lengths = np.array([len(ids) for ids, _ in rows])
    mask = np.arange(-(-int(lengths.max()) // 8) * 8) < lengths[:, None]
    ids, labels = np.full(mask.shape, pad_id, np.int64), np.full(mask.shape, IGNORED, np.int64)
    ids[mask] = np.concatenate([seen for seen, _ in rows])
    labels[mask] = np.concatenate([wanted for _, wanted in rows])
    arrays = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "labels": labels}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}

"""From questions to batches of token ids, and from scores back to text.

A feature is one window over a context: [CLS] question [SEP] part of the context [SEP]. Long contexts
give several, overlapping by doc_stride tokens. Needs numpy, torch and a fast tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from parts import speed
from squad import Example

Key = tuple[int, float]
"""A feature's number and its weight in the loss of its batch."""


@dataclass(frozen=True)
class Features:
    """n windows as flat arrays: quick to send between ranks, no Python object for each.

    `ids`, `char_starts`, `char_ends` (int32) hold all windows' tokens end to end; the characters are
    offsets into the context, 0 outside it. The others (int32) have one entry a window: `lengths` in
    tokens, `examples` = number of the question, [`context_starts`, `context_ends`) = tokens of the
    context, `starts` and `ends` = first and last token of the answer, both 0 ([CLS]) where the
    window does not hold the whole answer.
    """

    ids: np.ndarray
    char_starts: np.ndarray
    char_ends: np.ndarray
    lengths: np.ndarray
    examples: np.ndarray
    context_starts: np.ndarray
    context_ends: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def offsets(self) -> np.ndarray:
        """Where each window's tokens begin in the flat arrays, shape (n + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])


def join_features(parts: Sequence[Features]) -> Features:
    """All parts' windows, in the order given."""
    return Features(
        *(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Features))
    )


# --- tokens ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Sizes in tokens: a whole window, and the overlap of two neighbours."""

    max_seq_length: int
    doc_stride: int


def tokenise(rows: Sequence[Example], first: int, tokenizer, windows: Windows) -> Features:
    """Windows of `rows`, whose first one is question number `first` of all."""
    batches = [rows[at : at + 1000] for at in range(0, len(rows), 1000)]
    numbers = range(first, first + len(rows), 1000)
    parts = [
        tokenise_batch(batch, number, tokenizer, windows)
        for batch, number in zip(batches, numbers, strict=True)
    ]
    return join_features([EMPTY, *parts])


EMPTY = Features(*(np.zeros(0, np.int32) for _ in fields(Features)))


def tokenise_batch(rows: Sequence[Example], first: int, tokenizer, windows: Windows) -> Features:
    encoded = tokenizer(
        clip_questions([row.question for row in rows], tokenizer, windows),
        [row.context for row in rows],
        truncation="only_second",
        max_length=windows.max_seq_length,
        stride=windows.doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    of_row = encoded["overflow_to_sample_mapping"]
    parts = [
        one_window(encoding, rows[row], first + row)
        for encoding, row in zip(encoded.encodings, of_row, strict=True)
    ]
    return join_features(parts)


def clip_questions(questions: Sequence[str], tokenizer, windows: Windows) -> list[str]:
    """Questions without leading blanks, cut so that each window moves on by 8 tokens at least.

    The tokenizer panics where the question leaves no more than doc_stride tokens for the context.
    """
    special = tokenizer.num_special_tokens_to_add(pair=True)
    limit = windows.max_seq_length - windows.doc_stride - special - 8
    stripped = [question.lstrip() for question in questions]
    encoded = tokenizer(stripped, add_special_tokens=False, return_offsets_mapping=True)
    return [
        text if len(spans) <= limit else text[: spans[limit - 1][1]]
        for text, spans in zip(stripped, encoded["offset_mapping"], strict=True)
    ]


def one_window(encoding, row: Example, number: int) -> Features:
    """One window; `encoding` is the fast tokenizer's, `number` the question's."""
    sides = np.array([-1 if side is None else side for side in encoding.sequence_ids])
    context = np.flatnonzero(sides == 1)
    begin, end = (int(context[0]), int(context[-1]) + 1) if len(context) else (len(sides), len(sides))
    chars = np.array(encoding.offsets, np.int32).reshape(-1, 2) * (sides == 1)[:, None]
    start_token, end_token = answer_tokens(chars[begin:end], row)
    found = start_token >= 0
    one = [
        len(sides),
        number,
        begin,
        end,
        begin + start_token if found else 0,
        begin + end_token if found else 0,
    ]
    return Features(
        np.array(encoding.ids, np.int32),
        chars[:, 0].astype(np.int32),
        chars[:, 1].astype(np.int32),
        *(np.array([value], np.int32) for value in one),
    )


def answer_tokens(chars: np.ndarray, row: Example) -> tuple[int, int]:
    """First and last token of the first answer among tokens with these (start, end) characters.

    (-1, -1) where they do not hold the whole answer, or there is none.
    """
    if not row.starts:
        return -1, -1
    start = row.starts[0]
    end = start + len(row.answers[0])
    if not len(chars) or chars[0, 0] > start or chars[-1, 1] < end:
        return -1, -1
    first = int(np.searchsorted(chars[:, 0], start, side="right")) - 1
    last = int(np.searchsorted(chars[:, 1], end, side="left"))
    return first, max(first, last)


# --- order of training -------------------------------------------------------------------------


def global_batches(
    lengths: np.ndarray, size: int, seed: Sequence[int], group_by_length: bool
) -> list[np.ndarray]:
    """Features of each step of an epoch: every feature once, `size` a step, the last step the rest.

    A function of its arguments only, so the same for any number of ranks; seed = (seed, epoch).
    Grouping sorts stretches of 50 batches by length, as Hugging Face's LengthGroupedSampler does,
    but then shuffles the batches: long first would be a curriculum and misleads timings.
    """
    random = np.random.default_rng(list(seed))
    order = random.permutation(len(lengths))
    if not group_by_length:
        return [order[at : at + size] for at in range(0, len(order), size)]
    stretch = 50 * size
    stretches = [order[at : at + stretch] for at in range(0, len(order), stretch)]
    order = np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in stretches])
    batches = [order[at : at + size] for at in range(0, len(order), size)]
    return [batches[index] for index in random.permutation(len(batches))]


def rank_share(
    batch: np.ndarray,
    lengths: np.ndarray,
    ranks: int,
    rank: int,
    per_device: int,
    accumulation: int,
    balance: bool = False,
) -> list[list[Key]]:
    """One rank's micro-batches of a step: `accumulation` lists of `per_device` keys.

    Features go to the ranks in turn from long to short, or where `balance` in shares of equal work, so
    that no rank waits for another. Where a batch of n features leaves room, it is filled up with its
    shortest at weight 0. The weight ranks / n makes DDP's mean over ranks of each rank's weighted sum
    the mean over the n features.
    """
    by_length = batch[np.argsort(-lengths[batch], kind="stable")]
    missing = ranks * per_device * accumulation - len(batch)
    weight = ranks / len(batch)
    keys = [(int(index), weight) for index in by_length] + [(int(by_length[-1]), 0.0)] * missing
    if balance:
        share = [keys[place] for place in speed.deal([int(lengths[index]) for index, _ in keys], ranks)[rank]]
        return [share[at : at + per_device] for at in range(0, len(share), per_device)]
    step = ranks * per_device
    return [keys[at : at + step][rank::ranks] for at in range(0, len(keys), step)]


class TrainBatches:
    """Batch sampler of one rank; `epoch` chooses the order."""

    def __init__(self, lengths: np.ndarray, plan: BatchPlan):
        self.lengths, self.plan, self.epoch = lengths, plan, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        """Micro-batches of an epoch."""
        return -(-len(self.lengths) // self.plan.global_batch) * self.plan.accumulation

    def __iter__(self) -> Iterator[list[Key]]:
        plan = self.plan
        seed = (plan.seed, self.epoch)
        for batch in global_batches(self.lengths, plan.global_batch, seed, plan.group_by_length):
            yield from rank_share(
                batch,
                self.lengths,
                plan.ranks,
                plan.rank,
                plan.per_device,
                plan.accumulation,
                plan.balance,
            )


@dataclass(frozen=True)
class BatchPlan:
    """How `global_batch` features a step are dealt: `per_device` a rank and micro-batch, `accumulation`
    micro-batches a step. Ranks may have room for more.
    """

    global_batch: int
    ranks: int
    rank: int
    per_device: int
    accumulation: int
    seed: int
    group_by_length: bool
    balance: bool = False


# --- batches -----------------------------------------------------------------------------------


class FeatureSet(torch.utils.data.Dataset):
    """Features by key, one dict of arrays each, for torch's DataLoader."""

    def __init__(self, features: Features):
        self.features, self.offsets = features, features.offsets()

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, key: Key) -> dict[str, object]:
        index, weight = key
        features = self.features
        return {
            "ids": features.ids[self.offsets[index] : self.offsets[index + 1]],
            "context_start": features.context_starts[index],
            "start": features.starts[index],
            "end": features.ends[index],
            "weight": weight,
        }


def collate(
    items: Sequence[dict[str, object]], pad_id: int, token_types: bool, least: int = 0
) -> dict[str, torch.Tensor]:
    """A padded batch: B rows as long as the longest, rounded up to a multiple of 8, and `least` at least.

    input_ids, attention_mask and, where the model knows them, token_type_ids: int64 (B, L);
    start_positions, end_positions: int64 (B,); weights: float32 (B,).
    """
    lengths = np.array([len(item["ids"]) for item in items])
    width = max(-(-int(lengths.max()) // 8) * 8, least)
    places = np.arange(width)
    mask = places < lengths[:, None]
    ids = np.full(mask.shape, pad_id, np.int64)
    ids[mask] = np.concatenate([item["ids"] for item in items])
    batch = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
    if token_types:
        contexts = np.array([item["context_start"] for item in items])
        batch["token_type_ids"] = (mask & (places >= contexts[:, None])).astype(np.int64)
    batch["start_positions"] = np.array([item["start"] for item in items], np.int64)
    batch["end_positions"] = np.array([item["end"] for item in items], np.int64)
    batch["weights"] = np.array([item["weight"] for item in items], np.float32)
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def prediction_batches(lengths: np.ndarray, size: int) -> list[np.ndarray]:
    """Features in batches of near equal length; the same on every rank, whatever their number."""
    order = np.argsort(-lengths, kind="stable")
    return [order[at : at + size] for at in range(0, len(order), size)]


# --- answers -----------------------------------------------------------------------------------


def best_spans(
    start_logits: torch.Tensor, end_logits: torch.Tensor, allowed: torch.Tensor, n_best: int, longest: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Score, first token and last token of each row's best span, three tensors (B,).

    logits (B, L); `allowed` (B, L) marks tokens of the context. As in run_qa the best `n_best`
    starts meet the best `n_best` ends; spans hold 1 to `longest` tokens. A row without a span
    scores -inf.
    """
    count = min(n_best, start_logits.shape[1])
    start_scores, starts = start_logits.masked_fill(~allowed, -torch.inf).topk(count)
    end_scores, ends = end_logits.masked_fill(~allowed, -torch.inf).topk(count)
    size = ends[:, None, :] - starts[:, :, None] + 1
    scores = start_scores[:, :, None] + end_scores[:, None, :]
    scores = scores.masked_fill((size < 1) | (size > longest), -torch.inf).flatten(1)
    score, place = scores.max(dim=1)
    rows = torch.arange(len(place))
    return score, starts[rows, place // count], ends[rows, place % count]


@dataclass(frozen=True)
class Spans:
    """Best span of each of m features: number of the feature, score, characters in the context.

    `nulls` is the score of no answer, which is that of the first token, [CLS].
    """

    features: np.ndarray
    scores: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    nulls: np.ndarray


def choose_answers(
    rows: Sequence[Example], spans: Spans, features: Features, null_threshold: float = np.inf
) -> list[str]:
    """For each question the text of the best span of all its windows; "" where there is none.

    Also "" where the least score of no answer, over all windows, is more than `null_threshold` above the best
    span's, as in Hugging Face's run_qa.
    """
    texts = [""] * len(rows)
    best, nulls = np.full(len(rows), -np.inf), np.full(len(rows), np.inf)
    for at in np.argsort(spans.features, kind="stable"):
        number = features.examples[spans.features[at]]
        nulls[number] = min(nulls[number], spans.nulls[at])
        if spans.scores[at] > best[number]:
            best[number] = spans.scores[at]
            texts[number] = rows[number].context[spans.starts[at] : spans.ends[at]]
    return [
        "" if null - score > null_threshold else text
        for text, score, null in zip(texts, best, nulls, strict=True)
    ]

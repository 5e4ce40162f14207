"""Checks of the recipe's parts that need torch: run by a stack's Python, in the recipe's folder.

PYTHONPATH=run/recipes STACK/bin/python tests/recipe_checks.py CHECK [ARGUMENT ...]
"""

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from arguments import ArgumentsError, ModelArguments, parse
from checkpoints import (
    BATCHES,
    Start,
    batch_to_keep,
    chunks,
    require_same_features,
    save_batches,
    settle,
    share_out,
)
from features import Spans, Windows, best_spans, choose_answers, global_batches, rank_share, tokenise
from ranks import Place, UserError
from squad import Example
from trainer import load_tokenizer, span_loss
from transformers import AutoModelForQuestionAnswering, AutoTokenizer


def windows() -> None:
    """An answer far down a long context is found in every window that holds it, and only there."""
    context = " ".join(f"Town {number} has {number * 7} people, été, naïve café." for number in range(60))
    answer = "287 people"
    row = Example("q", "  How many people has town 41?", context, (answer,), (context.index(answer),))
    features = tokenise([row] * 3, 5, load_tokenizer(ModelArguments()), Windows(96, 32))
    offsets = features.offsets()
    assert set(features.examples) == {5, 6, 7}
    assert features.lengths.max() == 96
    holding = np.flatnonzero(features.starts)
    assert 3 <= len(holding) < len(features)
    for index in holding:
        tokens = slice(offsets[index], offsets[index + 1])
        first = features.char_starts[tokens][features.starts[index]]
        last = features.char_ends[tokens][features.ends[index]]
        assert context[first:last] == answer
    covered = np.zeros(len(context), bool)
    for first, last in zip(features.char_starts, features.char_ends, strict=True):
        covered[first:last] = True
    assert all(covered[at] or context[at] == " " for at in range(len(context)))


def long_question() -> None:
    """A question longer than a window leaves room for the context."""
    row = Example("q", "why " * 500, "Because the sky is blue. " * 30, ("blue",), (19,))
    features = tokenise([row], 0, load_tokenizer(ModelArguments()), Windows(128, 32))
    assert features.starts[0] > 0
    assert len(features) > 1


def batches() -> None:
    """The global batch is the same set however ranks share it, and every feature comes once."""
    lengths = np.random.default_rng(0).integers(20, 300, 101)
    for grouped in (True, False):
        steps = global_batches(lengths, 12, (42, 1), grouped)
        assert sorted(np.concatenate(steps)) == list(range(101))
        deals = (
            (1, 12, 1),
            (2, 6, 1),
            (2, 3, 2),
            (4, 1, 3),
            (5, *share_out(12, 5, 3)),
            (7, *share_out(12, 7, 1)),
        )
        for (ranks, per_device, accumulation), balance in product(deals, (True, False)):
            for step in steps:
                sizes = (per_device, accumulation, balance)
                shares = [rank_share(step, lengths, ranks, rank, *sizes) for rank in range(ranks)]
                micro_batches = [keys for share in shares for keys in share]
                assert {len(keys) for keys in micro_batches} == {per_device}
                kept = [index for keys in micro_batches for index, weight in keys if weight]
                assert sorted(kept) == sorted(step)
                weights = sum(weight for keys in micro_batches for _, weight in keys)
                assert abs(weights - ranks) < 1e-9
    assert not np.array_equal(global_batches(lengths, 12, (42, 2), True)[0], steps[0])


def spans() -> None:
    """The best span lies in the context, is in order and short; the best window's answer wins."""
    start = torch.tensor([[9.0, 1, 5, 0, 0, 0], [0.0, 0, 0, 0, 0, 2]])
    end = torch.tensor([[9.0, 7, 0, 4, 0, 6], [0.0, 0, 0, 0, 0, 2]])
    allowed = torch.tensor([[False, True, True, True, True, True]] * 2)
    score, first, last = best_spans(start, end, allowed, 6, 3)
    assert (score.tolist(), first.tolist(), last.tolist()) == ([9.0, 4.0], [2, 5], [3, 5])
    row = Example("q", "?", "red fox", ("fox",), (4,))
    features = type("Two", (), {"examples": np.array([0, 0])})
    found = Spans(
        np.array([1, 0]), np.array([3.0, 2.0]), np.array([4, 0]), np.array([7, 3]), np.array([1.0, 5.0])
    )
    assert choose_answers([row, row], found, features) == ["fox", ""]


def no_answer() -> None:
    """A question without an answer is learnt at [CLS]; none is given where that is likelier."""
    row = Example("q", "Who?", "A red fox ran over the hill. " * 20, (), ())
    features = tokenise([row], 0, load_tokenizer(ModelArguments()), Windows(64, 16))
    assert len(features) > 1
    assert not features.starts.any()
    assert not features.ends.any()
    texts = [Example(str(number), "?", "red fox", ("fox",), (4,)) for number in range(3)]
    two_each = type("Six", (), {"examples": np.array([0, 0, 1, 1, 2, 2])})
    scores, nulls = np.array([5.0, 4, 5, 4, 5, 4]), np.array([9.0, 4, 9, 8, 3, 9])
    found = Spans(np.arange(6), scores, np.full(6, 4), np.full(6, 7), nulls)
    # The least of a question's nulls counts: 4, 8 and 3 beside its best span's 5.
    assert choose_answers(texts, found, two_each, 0.0) == ["fox", "", "fox"]
    assert choose_answers(texts, found, two_each, 3.0) == ["fox", "fox", "fox"]
    assert choose_answers(texts, found, two_each, -1.5) == ["", "", "fox"]


def loss() -> None:
    """The loss of a row depends neither on its padding nor on a row of weight 0."""

    def of(width: int, rows: int) -> float:
        logits = torch.arange(4.0).repeat(rows, 1)
        outputs = SimpleNamespace(start_logits=pad(logits, width), end_logits=pad(-logits, width))
        labels = torch.tensor([1] * rows)
        inputs = {"attention_mask": pad(torch.ones(rows, 4), width), "weights": torch.eye(rows)[0]}
        return float(span_loss(outputs, {**inputs, "start_positions": labels, "end_positions": labels}))

    def pad(rows: torch.Tensor, width: int) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, width - 4))

    expected = torch.logsumexp(torch.arange(4.0), 0) + torch.logsumexp(-torch.arange(4.0), 0)
    for shape in ((4, 1), (16, 1), (16, 3)):
        assert abs(of(*shape) - float(expected) / 2) < 1e-6, shape


def old_spellings() -> None:
    """What people have in their scripts is taken, with a word on what it means now."""
    old = ["--no_cuda", "--use_ipex", "--warmup_ratio", "0.1", "--group_by_length", "False"]
    typed, warnings = parse([*old, "--xpu_backend", "ccl", "--train_file", "t", "--bf16"], Place())
    assert (typed.warmup_steps, typed.train_sampling_strategy) == (0.1, "random")
    assert (typed.ddp_backend, typed.bf16, len(warnings)) == ("ccl", "true", 4)
    assert (typed.do_train, typed.do_eval, typed.learning_rate) == (True, False, 5e-5)


def defaults() -> None:
    """Without arguments: the sample questions, and the same global batch on any number of ranks."""
    for ranks in (1, 2, 4):
        typed, warnings = parse([], Place(0, ranks, planned=ranks))
        assert typed.per_device_train_batch_size * ranks == 16
        assert (typed.do_train, typed.do_eval, warnings) == (True, True, [])


def wrong_arguments() -> None:
    """Each is refused in one line."""
    wrong = (
        "--num_train_epochs many",
        "--fp16",
        "--doc_stride 380",
        "--max_train_samples 0",
        "--dropout 1",
        "--bf16 maybe",
        "--ddp_backend nccl",
        "--do_eval --train_file t",
        "--dataset_name squad --train_file t",
        "--eval_strategy epoch",
        "stray",
    )
    for line in wrong:
        said = refusal(line.split())
        assert "\n" not in said
        assert any(word in said for word in line.split()), line


def refusal(argv: list[str]) -> str:
    """What is wrong with these arguments; "" where they are taken."""
    try:
        parse(argv, Place())
    except ArgumentsError as error:
        return str(error)
    return ""


def other_batches() -> None:
    """A checkpoint of another global batch or other data is refused, with what would do."""
    with tempfile.TemporaryDirectory() as folder:
        assert batch_to_keep(folder, 8, 2) == 16
        save_batches(Path(folder), Start(None, 16, 4), 60)
        assert batch_to_keep(folder, 8, 2) == 16
        assert batch_to_keep(folder, 4, 3) == 16  # the same arguments on other ranks
        require_same_features(folder, 60)
        assert "gradient_accumulation_steps = 4, as it had" in refused(partial(batch_to_keep, folder, 3, 2))
        assert "60 windows" in refused(partial(require_same_features, folder, 61))
        (Path(folder) / BATCHES).write_text('{"global_batch": 16}')  # as checkpoints of earlier versions
        assert "gradient_accumulation_steps, as it had" in refused(partial(batch_to_keep, folder, 3, 2))
    assert [size >> 20 for size in chunks(130 << 20)] == [64, 64, 2]


def a_checkpoint_comes_twice() -> None:
    """Two nodes that share a home are brought the same one, each beside its place."""
    with tempfile.TemporaryDirectory() as home:
        place, asides = Path(home) / "checkpoint-2", [Path(home) / name for name in ("a", "b")]
        for folder in (place, *asides):
            folder.mkdir()
            (folder / "model.safetensors").write_text(folder.name)
        for folder in asides:
            (folder / "trainer_state.json").write_text("{}")
            settle(folder, place)
            assert (place / "model.safetensors").read_text() == "a"
            assert [path.name for path in Path(home).iterdir() if path.name == folder.name] == []


def refused(require: Callable[[], object]) -> str:
    try:
        require()
    except UserError as error:
        return str(error)
    return ""


def parts() -> None:
    """All checks that need no trained model."""
    checks = (
        windows,
        long_question,
        batches,
        spans,
        no_answer,
        loss,
        old_spellings,
        defaults,
        wrong_arguments,
    )
    for check in (*checks, other_batches, a_checkpoint_comes_twice):
        check()


def answer(folder: str) -> None:
    """Print a loaded model's answer to the question on standard input, as a user would get it."""
    asked = json.load(sys.stdin)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    inputs = tokenizer(asked["question"], asked["context"], return_offsets_mapping=True, return_tensors="pt")
    chars = inputs.pop("offset_mapping")[0]
    with torch.inference_mode():
        outputs = model(**inputs)
    context = torch.tensor([[side == 1 for side in inputs.sequence_ids(0)]])
    _, first, last = best_spans(outputs.start_logits, outputs.end_logits, context, 20, 30)
    print(asked["context"][chars[first[0]][0] : chars[last[0]][1]])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

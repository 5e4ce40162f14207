"""Checks of the recipe run_pretraining that need torch: run by a stack's Python.

PYTHONPATH=run/recipes STACK/bin/python tests/pretraining_checks.py CHECK [ARGUMENT ...]
"""

import contextlib
import gzip
import io
import itertools
import json
import os
import random
import resource
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from checkpoints import share_out
from index import Index, index_text, prepare_text
from lanes import Deal, Order
from mask_trainer import MaskedLoss, load_mask_tokenizer
from parts import speed
from pretrain import pretrain
from pretraining_arguments import ArgumentsError, ModelArguments, parse
from ranks import Place, SilentExit, UserError, report_error
from rows import IGNORED, Cutter, Masker, collate, empty_row
from stream import Source, Stream
from text import Blocks, read_lines
from torch.nn.functional import cross_entropy
from torch.utils.data import get_worker_info
from transformers import (
    AlbertConfig,
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    RobertaConfig,
)

torch.set_num_threads(1)
warnings.filterwarnings("ignore")

TOKENIZER = load_mask_tokenizer(ModelArguments())
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def write_lines(folder: Path, counts: tuple[int, ...] = (61, 0, 1, 137, 8)) -> list[Path]:
    """Files of uneven sizes; each line has a number of its own, and 1 to 20 words more."""
    words, number, files = random.Random(5), 0, []
    for count in counts:
        lines = []
        for _ in range(count):
            lines.append(
                " ".join([f"{number}", *["tree"] * words.randint(1, 20)]) + words.choice(["\n", "\n\n"])
            )
            number += 1
        files.append(folder / f"{len(files)}.txt")
        files[-1].write_text("".join(lines).removesuffix("\n"))
    return files


def prepared(blocks: Blocks, line_by_line: bool, length: int = 32) -> tuple[Source, Index]:
    cutter = Cutter(TOKENIZER, length, line_by_line)
    lines, tokens, rows = np.array([cutter.count(read_lines(block)) for block in blocks]).T
    source = Source(blocks, cutter, Masker.of(TOKENIZER, 0.15))
    return source, Index(lines, tokens, rows)


def streams(source: Source, index: Index, ranks: int, workers: int, batch: int = 16, seed: int = 1):
    """One for each rank, that make up a global batch of `batch` rows in micro-batches of 2 at most."""
    sizes = share_out(batch, ranks, 2)
    for rank in range(ranks):
        deal = Deal(batch, ranks, rank, *sizes)
        yield Stream(source, deal, index.rows, seed, TOKENIZER.pad_token_id, workers)


def unmasked(batch) -> list[tuple[int, ...]]:
    """The rows' own tokens; empty rows left out."""
    ids = torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])
    rows = [ids[row][batch["attention_mask"][row] == 1].tolist() for row in range(len(ids))]
    return [tuple(row) for row in rows if len(row) > 2]


# --- each line once ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Witness(Masker):
    """A masker that notes who read which row: a file for each rank and worker."""

    folder: Path = Path()
    rank: int = 0

    def mask(self, ids, seed):
        worker = get_worker_info()
        name = f"{seed[2]}-{self.rank}-{worker.id if worker else 0}"
        with (self.folder / name).open("a") as file:
            file.write(TOKENIZER.decode(ids[1:-1]) + "\n")
        return super().mask(ids, seed)


def lines_once() -> None:
    """Each line once an epoch by one worker, on any number of ranks and workers, restarted on others."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_lines(Path(folder))
        wanted = Counter(line for file in files for line in file.read_text().split("\n") if line)
        source, index = prepared(Blocks(files, 300), line_by_line=True)
        assert sum(wanted.values()) == index.lines.sum() == index.rows.sum() == 207
        assert set(wanted.values()) == {1}
        first_steps = None
        shapes = list(itertools.product((1, 2, 3, 4), (0, 1, 3)))
        for (ranks, workers), (later_ranks, later_workers) in zip(shapes, reversed(shapes), strict=True):
            log = Path(folder) / f"{ranks}-{workers}"
            log.mkdir()
            epochs = train_and_restart(source, index, log, (ranks, workers), (later_ranks, later_workers))
            for epoch in range(2):
                assert Counter(itertools.chain(*epochs[epoch])) == wanted, (ranks, workers, epoch)
            first_steps = first_steps or epochs
            assert epochs == first_steps, "the same lines in each step, whoever reads them"
            assert epochs[0] != epochs[1], "another order in each epoch"
            readers = {tuple(path.name.split("-")[1:]) for path in log.glob("0-*")}
            assert len(readers) == ranks * max(1, workers), "every worker has its share"
            noted = Counter(line for path in log.glob("0-*") for line in path.read_text().splitlines())
            assert noted == wanted, "no row is made twice, nor in vain"


def train_and_restart(source, index, log: Path, shape, later_shape) -> list[list[list[str]]]:
    """Sorted lines of each step of two epochs; the second goes on in its middle, on another shape."""
    epochs = []
    for epoch in range(2):
        steps: list[list[str]] = []
        parts = [(shape, 0, 99)] if epoch == 0 else [(shape, 0, 6), (later_shape, 6, 99)]
        for (ranks, workers), first, last in parts:
            steps += run_steps(source, index, log, ranks, workers, epoch, first, last)
        epochs.append(steps)
    return epochs


def run_steps(source, index, log, ranks, workers, epoch: int, first: int, last: int) -> list[list[str]]:
    found: dict[int, list[str]] = {}
    for rank, stream in enumerate(streams(source, index, ranks, workers)):
        stream.source = replace(source, masker=Witness(**vars(source.masker), folder=log, rank=rank))
        assert (stream.steps, len(stream), stream.empty_rows) == (13, 13 * stream.deal.accumulation, 1)
        stream.begin_at(epoch * stream.steps + first)
        for number, batch in enumerate(itertools.islice(stream, last * stream.deal.accumulation)):
            step = number // stream.deal.accumulation
            assert (batch is None) == (step < first)
            if batch is not None:
                assert len(batch["input_ids"]) == stream.deal.per_device
                found.setdefault(step, []).extend(TOKENIZER.decode(row[1:-1]) for row in unmasked(batch))
    return [sorted(found[step]) for step in sorted(found)]


def tokens_once() -> None:
    """Joined lines: each token of the text once an epoch, the separators between documents too."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_lines(Path(folder))
        blocks = Blocks(files, 700)
        source, index = prepared(blocks, line_by_line=False)
        assert index.rows.sum() == sum(-(-int(count) // source.cutter.room) for count in index.tokens)
        texts = [tuple(row) for block in blocks for row in source.cutter.cut(read_lines(block))]
        inner = [token for row in texts for token in row[1:-1]]
        words = [token for file in files for token in TOKENIZER(file.read_text())["input_ids"][1:-1]]
        assert [token for token in inner if token != TOKENIZER.sep_token_id] == words
        assert len(inner) == index.tokens.sum()
        assert 100 < inner.count(TOKENIZER.sep_token_id) < 207
        assert {len(row) for row in texts[:5]} == {32}, "full rows"
        for ranks, workers in ((1, 0), (2, 3)):
            found = [
                row
                for stream in streams(source, index, ranks, workers)
                for b in stream
                for row in unmasked(b)
            ]
            assert Counter(found) == Counter(texts)


def new_masks_in_each_epoch() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, index = prepared(Blocks(write_lines(Path(folder), (20,)), 4096), line_by_line=True)
        (stream,) = streams(source, index, 1, 0)
        asked = []
        for epoch in (0, 1, 1):
            stream.begin_at(epoch * stream.steps)
            rows = [row.tolist() for batch in stream for row in batch["labels"]]
            asked.append(sorted([pair for pair in enumerate(row) if pair[1] != IGNORED] for row in rows))
        assert asked[0] != asked[1] == asked[2]


def few_rows() -> None:
    """Fewer rows than a step takes: one step, and ranks whose rows are all empty have batches too."""
    with tempfile.TemporaryDirectory() as folder:
        source, index = prepared(Blocks(write_lines(Path(folder), (3,)), 4096), line_by_line=True)
        for workers in (0, 3):
            for stream in streams(source, index, 4, workers):
                assert (stream.steps, stream.empty_rows) == (1, 13)
                assert [len(batch["input_ids"]) for batch in stream] == [2, 2]


def masks() -> None:
    """15 % are asked about, 80, 10 and 10 in 100 of them masked, exchanged and kept; new in each epoch."""
    masker = Masker.of(TOKENIZER, 0.15)
    ids = np.array([101, *range(1000, 41000, 10)] * 5 + [102], np.int32)
    seen, labels = masker.mask(ids, (3, 1, 0, 0, 0))
    asked = labels != IGNORED
    assert np.array_equal(labels[asked], ids[asked])
    assert np.array_equal(seen[~asked], ids[~asked])
    assert asked.sum() == round(0.15 * 20000)
    assert not asked[ids == 101].any()
    masked, kept = (seen[asked] == TOKENIZER.mask_token_id).mean(), (seen[asked] == ids[asked]).mean()
    assert abs(masked - 0.8) < 0.03, masked
    assert abs(kept - 0.1) < 0.03, kept
    exchanged = seen[asked & (seen != TOKENIZER.mask_token_id) & (seen != ids)]
    assert not np.isin(exchanged, TOKENIZER.all_special_ids).any()
    assert np.array_equal(seen, masker.mask(ids, (3, 1, 0, 0, 0))[0])
    for other in ((3, 2, 0, 0, 0), (3, 1, 1, 0, 0), (3, 1, 0, 1, 0), (3, 1, 0, 0, 1)):
        assert not np.array_equal(labels, masker.mask(ids, other)[1]), other
    assert (masker.mask(np.array([101, 2000, 102], np.int32), (0,))[1] != IGNORED).tolist() == [
        False,
        True,
        False,
    ]
    order, later = (Order(np.full(50, 4), 7, epoch) for epoch in (0, 1))
    assert not np.array_equal(order.blocks, later.blocks)
    assert sorted(order.blocks) == list(range(50))


def batches() -> None:
    """Padding to a multiple of 8, seen by no model and asked about by no label."""
    cutter = Cutter(TOKENIZER, 32, True)
    rows = [Masker.of(TOKENIZER, 0.15).mask(row, (1,)) for row in cutter.cut(["a tree", "one " * 40])]
    batch = collate([*rows, empty_row(cutter)], TOKENIZER.pad_token_id)
    assert [len(ids) for ids, _ in rows] == [4, 32, 12]
    assert batch["input_ids"].shape == (4, 32)
    assert batch["attention_mask"].sum(1).tolist() == [4, 32, 12, 2]
    assert (batch["input_ids"][batch["attention_mask"] == 0] == TOKENIZER.pad_token_id).all()
    assert (batch["labels"][batch["attention_mask"] == 0] == IGNORED).all()
    assert (batch["labels"][3] == IGNORED).all()
    assert collate([rows[0]], 0)["input_ids"].shape == (1, 8)


def long_line() -> None:
    """A line longer than the tokenizer is given at once has the tokens that it would have whole."""
    line = "a small red fox " * 20_000
    rows = Cutter(TOKENIZER, 128, True).cut([line])
    assert [token for row in rows for token in row[1:-1]] == TOKENIZER(line)["input_ids"][1:-1]


# --- the index ---------------------------------------------------------------------------------


def index_kept() -> None:
    """Counted once for a text: not for another length or run, but when a file has changed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, cache = [str(path) for path in write_lines(folder)], folder / "cache"

        _, true = prepared(Blocks([Path(file) for file in files], 1 << 14), line_by_line=False)

        def index(length: int = 32, line_by_line: bool = False) -> tuple[int, int]:
            text = prepare_text(files, cache, Place())
            cutter = Counting(TOKENIZER, length, line_by_line)
            found = index_text(text, cutter, TOKENIZER, cache, Place())
            assert length != 32 or line_by_line or np.array_equal(found.rows, true.rows)
            return cutter.counted, int(found.rows.sum())

        blocks, rows = index()
        assert blocks == 4, "a file each, none for the empty one"
        assert index() == (0, rows)
        assert index(64)[0] == 0, "its rows follow from the tokens"
        assert index(64)[1] < rows
        assert index(32, line_by_line=True)[0] == 4, "its rows are others"
        for path in cache.glob("index-*"):
            path.write_bytes(path.read_bytes()[:-50])
        assert index() == (4, rows), "cut off"
        with Path(files[0]).open("a") as file:
            file.write("one line more\n")
        assert index(32, line_by_line=True) == (4, 208)


class Counting(Cutter):
    counted = 0

    def count(self, lines):
        self.counted += 1
        return super().count(lines)


class Equal(Cutter):
    """Takes the same number of rows of every block: counting them all would take minutes."""

    rows = 200

    def cut(self, lines):
        return super().cut(lines)[: self.rows]


def memory() -> None:
    """Steps from 400 MB of text take a few MB of memory."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "large.txt"
        line = "a small red fox jumps over the lazy old dog that sleeps in the warm sun of june\n"
        with path.open("w") as file:
            for _ in range(400):
                file.write(line * (1_000_000 // len(line)))
        blocks = Blocks([path], 128 << 10)
        cutter = Equal(TOKENIZER, 128, False)
        rows = np.full(len(blocks), cutter.rows)
        source = Source(blocks, cutter, Masker.of(TOKENIZER, 0.15))
        (stream,) = streams(source, Index(rows, rows, rows), 1, 0)
        next(iter(stream))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        stream.begin_at(100)
        assert sum(batch is not None for batch in itertools.islice(stream, 1200)) == 400
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown_mb < 60, grown_mb


# --- the model ---------------------------------------------------------------------------------


def loss() -> None:
    """The head on masked tokens alone: the loss of the whole logits, its gradients too."""
    vocabulary = {"vocab_size": 200, "max_position_embeddings": 40}
    for config in (
        BertConfig(**SMALL, **vocabulary),
        RobertaConfig(**SMALL, **vocabulary, pad_token_id=1),
        AlbertConfig(**SMALL, **vocabulary, embedding_size=8),
        ElectraConfig(**SMALL, **vocabulary, embedding_size=8),
        DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=16, **vocabulary),
    ):
        torch.manual_seed(3)
        model = AutoModelForMaskedLM.from_config(config).eval()
        ids = torch.randint(2, 200, (3, 16))
        labels = torch.where(torch.rand(3, 16) < 0.2, ids, IGNORED)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        expected = cross_entropy(model(**batch).logits.flatten(0, 1), labels.flatten(), reduction="sum")
        true = torch.autograd.grad(expected, list(used(model, expected)))
        masked_loss = MaskedLoss(model)
        assert masked_loss.has_head, config.model_type
        found = masked_loss(model, {**batch, "labels": labels})
        assert torch.allclose(found, expected, rtol=1e-5), config.model_type
        ours = torch.autograd.grad(found, list(used(model, found)))
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, true, strict=True))
        nothing = masked_loss(model, {**batch, "labels": torch.full_like(labels, IGNORED)})
        assert nothing.item() == 0.0
        assert model(**batch).logits.shape == (3, 16, 200), "whole for who asks without labels"
        speed.unpadded(speed.cheap_dropout(model), lambda _: None)
        found = masked_loss(model, {**batch, "labels": labels})
        assert torch.allclose(found, expected, rtol=1e-5), config.model_type


def used(model, value):
    """Parameters that the value depends on."""
    for parameter in model.parameters():
        (grad,) = torch.autograd.grad(value, parameter, retain_graph=True, allow_unused=True)
        if grad is not None:
            yield parameter


# --- arguments ---------------------------------------------------------------------------------


def arguments() -> None:
    """Several files, old spellings, and what cannot work: refused in one line that names it."""
    typed, said = parse(["--train_file", "a", "b", "--no_cuda", "--validation_file", "c"], Place())
    assert (typed.train_file, typed.validation_file, len(said)) == (["a", "b"], ["c"], 1)
    assert (typed.do_train, typed.do_eval) == (True, True)
    typed, _ = parse([], Place(0, 4, planned=4))
    assert (typed.per_device_train_batch_size, typed.do_train, typed.do_eval) == (4, True, True)
    wrong = (
        "--train_file",
        "--do_eval --train_file t",
        "--mlm_probability 1",
        "--max_seq_length 0",
        "--model_name_or_path a --config_name b",
        "--model_name_or_path a --config_overrides hidden_size=8",
        "--model_type bert",
        "--group_by_length",
        "--ignore_data_skip",
        "--fp16",
        "--bf16 maybe",
        "--eval_strategy epoch",
        "--traln_file t",
        "stray",
    )
    for line in wrong:
        said = refusal(line.split())
        assert "\n" not in said
        assert any(word in said for word in line.split()), (line, said)


def refusal(argv: list[str]) -> str:
    """What is wrong with these arguments; "" where they are taken."""
    try:
        parse(argv, Place())
    except ArgumentsError as error:
        return str(error)
    return ""


def bad_input() -> None:
    """One line each, in the recipe itself: no traceback, and nothing is trained."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in (
            ("empty.txt", b""),
            ("blank.txt", b"\n  \n\r\n"),
            ("binary.txt", b"\x7fELF\x00\x01"),
            ("utf16.txt", "a tree".encode("utf-16")),
            ("latin.txt", "caf\u00e9 noir".encode("latin-1")),
            ("bad.jsonl", b'{"text": "a tree"}\n\n{"text": 3}\n'),
            ("list.json", b'[{"text": "a tree"}]'),
            ("cut.gz", gzip.compress(b"a tree " * 99)[:-9]),
            ("packed.txt.gz", gzip.compress(b"\x00\x01")),
        ):
            (folder / file).write_bytes(content)
        (folder / "nothing").mkdir()
        for argv, parts in (
            ("--train_file {}/absent.txt", ("absent.txt", "No such file")),
            ("--train_file {}/nothing", ("nothing", "no file in this folder")),
            ("--train_file {}/empty.txt", ("empty.txt", "no text in it")),
            ("--train_file {0}/blank.txt {0}/empty.txt", ("blank.txt", "no text in it")),
            ("--train_file {}/binary.txt", ("binary.txt", "binary")),
            ("--train_file {}/utf16.txt", ("utf16.txt", "binary")),
            ("--train_file {}/latin.txt", ("latin.txt", "not UTF-8 (byte 3)")),
            ("--train_file {}/bad.jsonl", ("bad.jsonl, line 3", '"text"')),
            ("--train_file {}/list.json", ("list.json, line 1", '"text"')),
            ("--train_file {}/cut.gz", ("cut.gz", "cannot be unpacked")),
            ("--train_file {}/packed.txt.gz", ("packed", "binary")),
            ("--model_name_or_path no-such/model", ("no-such/model", "cannot be loaded")),
            ("--model_name_or_path /no/folder", ("/no/folder", "no such folder")),
            ("--tokenizer_name no-such/tokenizer", ("no-such/tokenizer", "cannot be loaded")),
            ("--max_seq_length 8", ("--max_seq_length 8", "room for 6 tokens")),
            ("--config_overrides hidden_layers=2", ("hidden_layers", "config")),
            ("--text_cache {}/empty.txt", ("empty.txt", "File exists")),
        ):
            line = (
                argv.format(name) if "--text_cache" in argv else f"{argv.format(name)} --text_cache {name}/c"
            )
            line += f" --config_overrides {OVERRIDES}" * ("_overrides" not in argv and "--model" not in argv)
            said = error_of([*line.split(), *BRIEF, "--output_dir", f"{name}/out"])
            assert all(part in said for part in parts), (argv, said)
        assert not (folder / "out/config.json").exists()


OVERRIDES = ",".join(f"{name}={value}" for name, value in SMALL.items())
BRIEF = ("--max_steps", "1", "--save_strategy", "no", "--bf16", "false")


def error_of(argv: list[str]) -> str:
    """The one line with which the recipe refuses these arguments."""
    errors = [event["text"] for event in run(argv) if event["event"] == "error"]
    assert len(errors) == 1, errors
    assert "\n" not in errors[0]
    return errors[0]


def run(argv: list[str]) -> list[dict]:
    """Events of the recipe in this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            pretrain(argv, Place())
        except UserError as error:
            report_error(0, str(error))
        except SilentExit:
            pass
    return [json.loads(line.removeprefix("@clusterctl ")) for line in printed.getvalue().splitlines()]


def phases() -> None:
    """With dropout: what goes on from a checkpoint ends byte for byte as if it had not stopped.

    Then longer rows from a checkpoint; and with another seed nothing goes on.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts").mkdir()
        write_lines(folder / "texts")
        files = ["--train_file", f"{folder}/texts", "--text_cache", f"{folder}/cache", "--bf16", "false"]
        rates = ["--learning_rate", "0.02", "--logging_steps", "1", "--max_seq_length", "32"]
        often = ["--save_strategy", "steps", "--save_steps", "1", "--save_total_limit", "20"]
        args = [*files, *rates, "--max_steps", "14", "--config_overrides", OVERRIDES, "--dropout", "0.2"]
        args += ["--per_device_train_batch_size", "12", *often]
        begun = []
        Stream.begin_at = lambda self, step: (begun.append(step), setattr(self, "step", step))
        (result,) = results(run([*args, "--output_dir", f"{folder}/whole"]))
        assert (result["train_rows"], result["steps_per_epoch"]) == (85, 8), result
        for step in (8, 11):
            checkpoint = ["--resume_from_checkpoint", f"{folder}/whole/checkpoint-{step}"]
            results(run([*args, "--output_dir", f"{folder}/{step}", *checkpoint]))
            assert losses(folder / str(step)) == losses(folder / "whole")
            ours, theirs = (folder / at / "model.safetensors" for at in (str(step), "whole"))
            assert ours.read_bytes() == theirs.read_bytes()
        assert begun == [0, 8, 8, 11], "each epoch is another, and begins where it was left"
        again = [*args, "--output_dir", f"{folder}/again", *checkpoint]
        assert "seed 42 (now 7)" in error_of([*again, "--seed", "7"])
        assert "mlm_probability 0.15 (now 0.2)" in error_of([*again, "--mlm_probability", "0.2"])
        assert "global batch of 12" in error_of([*again, "--gradient_accumulation_steps", "2"])

        phase_2 = [*files, "--model_name_or_path", f"{folder}/whole/checkpoint-14", "--max_seq_length", "64"]
        (longer,) = results(run([*phase_2, *BRIEF, "--output_dir", f"{folder}/two"]))
        assert longer["train_rows"] < result["train_rows"]
        assert longer["train_loss"] < losses(folder / "whole")[0] - 1
        write_lines(folder / "texts", (3,))
        assert "made with text" in error_of(again)


def changed_text() -> None:
    """A file that is changed while it is trained on ends the run: its rows are not those that were dealt."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_lines(Path(folder))
        source, index = prepared(Blocks(files, 4096), line_by_line=True)
        files[3].write_text("one\ntwo\n")
        (stream,) = streams(source, index, 1, 0)
        try:
            list(stream)
        except RuntimeError as error:
            changed = str(error)
        assert changed == f"{files[3]} has changed since its rows were counted"


def results(events: list[dict]) -> list[dict]:
    assert events[-1]["event"] == "result", events
    return events[-1:]


def losses(output: Path) -> list[float]:
    history = json.loads((output / "log_history.json").read_text())
    return [entry["loss"] for entry in history if "loss" in entry]


def parts() -> None:
    """All checks that take no second."""
    checks = (
        tokens_once,
        new_masks_in_each_epoch,
        few_rows,
        masks,
        batches,
        long_line,
        index_kept,
        memory,
        loss,
        arguments,
        changed_text,
    )
    for check in checks:
        check()


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    globals()[sys.argv[1]](*sys.argv[2:])

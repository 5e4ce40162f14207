"""The run from questions to metrics: read, tokenise, train, save, evaluate."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from arguments import DataArguments, RunArguments, SpeedArguments, make_arguments, parse
from checkpoints import Start, find_start, require_same_features
from features import (
    Features,
    FeatureSet,
    Spans,
    Windows,
    best_spans,
    choose_answers,
    collate,
    join_features,
    prediction_batches,
    tokenise,
)
from parts import Arithmetic, allocator, choose_arithmetic, quicken, where_time_went
from ranks import (
    Place,
    SilentExit,
    UserError,
    backend_in_use,
    first_line,
    gather,
    join_group,
    scatter,
    together,
)
from squad import DataError, Example, Examples, read_examples, score_predictions, select_examples
from trainer import (
    AnswerTrainer,
    TimedTrainer,
    freeze_unused,
    has_bf16,
    load_model,
    load_tokenizer,
    seed_dropout,
)
from transformers import PrinterCallback
from transformers.utils import logging as hf_logging

HERE = Path(__file__).resolve().parent
SAMPLE_FILES = {"train": HERE / "sample_qa_train.json", "validation": HERE / "sample_qa_validation.json"}


class Interrupted(SilentExit):
    """A node is about to end: a checkpoint lies there, and others will go on from it."""

    exit_code = 0


def fine_tune(argv: Sequence[str], place: Place) -> None:
    """The whole recipe on one rank. Raises UserError, or SilentExit where another rank has said why."""
    quieten()
    arithmetic, (model_arguments, data, run, parts) = begin(parse(argv, place), make_arguments, place)
    train = read_examples_once("train", data, place) if run.do_train else None
    validation = read_examples_once("validation", data, place) if run.do_eval else None
    tokenizer = together(place, partial(load_tokenizer, model_arguments))
    model = together(place, partial(load_model, model_arguments, run.seed))
    used = quicken(model, parts.unpad, parts.cheap_dropout, place)
    place.emit("phase", name="tokenise")
    windows = choose_windows(data, tokenizer, place)
    start = find_start(run, place)
    metrics = describe(place, run, start) | {"matmul": arithmetic.name, "allocator": allocator(os.environ)}
    place.emit("setup", **metrics)
    if train is not None:
        features = tokenise_together(train, tokenizer, windows, place)
        trainer = make_trainer(model, run, parts, features, tokenizer, windows, arithmetic, place, start)
        metrics |= train_model(trainer, features, place)
        metrics["parts"] = used + ["balance"] * parts.balance + trainer.parts
        metrics["parts"] += ["ipex"] * getattr(run, "use_ipex", False)
        save_model(model, tokenizer, Path(run.output_dir), place)
    if validation is not None:
        features = tokenise_together(validation, tokenizer, windows, place)
        metrics |= evaluate(model, run, data, validation, features, tokenizer, place)
    if place.leads:
        write_json(Path(run.output_dir) / "metrics.json", metrics)
    place.emit("result", **metrics)


def begin(
    parsed: tuple[Namespace, list[str]], make: Callable[..., tuple[object, ...]], place: Place
) -> tuple[Arithmetic, tuple[object, ...]]:
    """Meet the others, choose the precision, `make` the arguments of what was parsed, prepare the output."""
    typed, notes = parsed
    join_group(place, typed.ddp_backend, os.environ)
    for note in notes:
        place.emit("warning", text=note)
    arithmetic = choose_arithmetic(
        place, choose_bf16(place, typed.bf16), typed.bf16.lower() != "auto", typed.measure_precision
    )
    made = make(typed, bf16=arithmetic.bf16)
    _, data, run, _ = made
    together(place, partial(prepare_output, run, data), only_rank_0=True)
    return arithmetic, made


def quieten() -> None:
    """No bars, no advice: the launcher shows progress from events."""
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def choose_bf16(place: Place, wanted: str) -> bool:
    """Whether to train in bf16: as told, or where the CPU of every rank is fast at it.

    The ranks must agree: in a mixture the fp32 ones would make the others wait.
    """
    capable = gather(place, has_bf16())
    if wanted.lower() == "true" and not all(capable):
        slow = ", ".join(str(rank) for rank, capability in enumerate(capable) if not capability)
        place.emit("warning", text=f"--bf16: no avx512_bf16 or amx_bf16 at rank {slow}: bf16 is slow there")
    return wanted.lower() == "true" or (wanted.lower() == "auto" and all(capable))


def describe(place: Place, run: RunArguments, start: Start) -> dict[str, object]:
    """What must be known to compare this run with others."""
    return {
        "world_size": place.world_size,
        "global_batch": start.global_batch,
        "dtype": "bf16" if run.bf16 else "fp32",
        "seed": run.seed,
        "threads": torch.get_num_threads(),
        "backend": backend_in_use(),
        "torch": torch.__version__,
    }


# --- data --------------------------------------------------------------------------------------


def choose_windows(data: DataArguments, tokenizer, place: Place) -> Windows:
    """The windows asked for, no longer than the model can take."""
    longest = min(data.max_seq_length, tokenizer.model_max_length)
    if longest < data.max_seq_length:
        place.emit(
            "warning", text=f"--max_seq_length {data.max_seq_length}: the model takes {longest} at most"
        )
    if longest - data.doc_stride < 32:
        raise UserError(f"--doc_stride {data.doc_stride} is too long for windows of {longest} tokens")
    return Windows(longest, data.doc_stride)


def read_examples_once(split: str, data: DataArguments, place: Place) -> Sequence[Example]:
    """Questions on rank 0, which alone reads: workers need no copy of the file. Others get none."""
    examples = together(place, partial(load_examples, split, data), only_rank_0=True)
    if examples is None:
        return ()
    for line in examples.warnings(split):
        place.emit("warning", text=line)
    return examples.rows[: data.max_train_samples if split == "train" else data.max_eval_samples]


def tokenise_together(rows: Sequence[Example], tokenizer, windows: Windows, place: Place) -> Features:
    """All windows of rank 0's `rows`, on every rank; each rank tokenises one share."""
    shares = split_evenly(rows, place.world_size) if place.leads else None
    first, share = scatter(place, shares)
    return join_features(gather(place, tokenise(share, first, tokenizer, windows)))


def split_evenly(rows: Sequence[Example], parts: int) -> list[tuple[int, Sequence[Example]]]:
    """Contiguous shares that differ by one row at most, each with the number of its first row."""
    bounds = [len(rows) * part // parts for part in range(parts + 1)]
    return [(begin, rows[begin:end]) for begin, end in pairwise(bounds)]


def load_examples(split: str, data: DataArguments) -> Examples:
    """Questions of one split, from the file, the data set, or the samples. Raises UserError."""
    try:
        if data.dataset_name:
            return load_hub_examples(split, data)
        named = data.train_file if split == "train" else data.validation_file
        path = SAMPLE_FILES[split] if data.sample else Path(named).expanduser()
        return read_examples(path, data.version_2_with_negative)
    except DataError as error:
        raise UserError(str(error)) from None


def load_hub_examples(split: str, data: DataArguments) -> Examples:
    """Questions of a split that `datasets` finds, on the Hub or in a folder. Raises UserError."""
    try:
        import datasets
    except ImportError:
        raise UserError("--dataset_name needs the package datasets here; or give --train_file") from None
    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(data.dataset_name, data.dataset_config_name, split=split)
        return select_examples(map(hub_example, rows), data.dataset_name, data.version_2_with_negative)
    except DataError:
        raise
    except KeyError as error:
        raise UserError(
            f"{data.dataset_name}: rows have no column {error}; give a data set like squad"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"--dataset_name {data.dataset_name}: cannot be loaded ({first_line(error)}); check the name and "
            "that this node reaches the Hub, or give --train_file"
        ) from None


def hub_example(row: dict) -> Example:
    """One row of the Hub's squad."""
    answers = row["answers"]
    texts, starts = tuple(answers["text"]), tuple(answers["answer_start"])
    return Example(str(row["id"]), row["question"], row["context"], texts, starts)


# --- train -------------------------------------------------------------------------------------


def make_trainer(
    model,
    run: RunArguments,
    parts: SpeedArguments,
    features: Features,
    tokenizer,
    windows: Windows,
    arithmetic: Arithmetic,
    place: Place,
    start: Start,
) -> AnswerTrainer:
    freeze_unused(model, tokenizer.pad_token_id or 0)
    trainer = AnswerTrainer(model, run, parts, features, tokenizer, place, windows.max_seq_length, start)
    trainer.peaks = arithmetic.peaks
    trainer.remove_callback(PrinterCallback)
    return trainer


def train_model(trainer: AnswerTrainer, features: Features, place: Place) -> dict[str, object]:
    """Train in place; what it took. Writes log_history.json.

    Raises Interrupted once a checkpoint was asked for and is whole.
    """
    run, output_dir = trainer.args, Path(trainer.args.output_dir)
    checkpoint = trainer.start.checkpoint
    if checkpoint is not None:
        together(place, partial(require_same_features, checkpoint, len(features)), only_rank_0=True)
    place.emit("phase", name="train")
    seed_dropout(run.seed, place.rank)
    output = trainer.train(resume_from_checkpoint=checkpoint)
    if place.leads:
        write_json(output_dir / "log_history.json", trainer.state.log_history)
    rates = report_rates(trainer, len(features), place)
    if trainer.interruption.happened:
        path = output_dir / f"checkpoint-{output.global_step}"
        place.emit("interrupted", path=str(path), step=output.global_step)
        raise Interrupted
    return {
        "train_features": len(features),
        "steps": output.global_step,
        "epochs": round(trainer.state.epoch, 3),
        "train_loss": output.training_loss,
        **rates,
    }


def report_rates(trainer: TimedTrainer, features: int, place: Place) -> dict[str, object]:
    """This rank's summary as an event; the rates of all ranks together, and where the time went."""
    clock = trainer.clock
    mine = {
        "train_s": round(clock.train_s, 3),
        "samples_per_s": round(clock.samples_per_s, 3),
        "forward_s": round(clock.forward_s, 3),
        "samples_per_cpu_s": round(clock.samples_per_cpu_s, 3),
    }
    from_all = gather(place, mine)
    for rank, values in enumerate(from_all):
        place.emit("rank_summary", rank=rank, **values)
    together_per_s = sum(values["samples_per_s"] for values in from_all)
    return {
        "train_s": max(values["train_s"] for values in from_all),
        "samples_per_s": round(together_per_s, 2),
        "epoch_s": round(features / max(together_per_s, 1e-9), 2),
        **where_time_went(clock.times, trainer.peaks, place),
    }


# --- evaluate ----------------------------------------------------------------------------------


def evaluate(
    model,
    run: RunArguments,
    data: DataArguments,
    rows: list[Example],
    features: Features,
    tokenizer,
    place: Place,
) -> dict[str, object]:
    """EM and F1 over all ranks' answers (meaningful on rank 0). Writes predictions.json."""
    place.emit("phase", name="evaluate")
    spans = join_spans(gather(place, predict(model, run, data, features, tokenizer, place)))
    if not place.leads:
        return {}
    threshold = data.null_score_diff_threshold if data.version_2_with_negative else np.inf
    answers = choose_answers(rows, spans, features, threshold)
    predictions = {row.id: answer for row, answer in zip(rows, answers, strict=True)}
    write_json(Path(run.output_dir) / "predictions.json", predictions)
    scores = asdict(score_predictions(rows, answers))
    return {
        **{name: round(value, 3) for name, value in scores.items() if value is not None},
        "eval_questions": len(rows),
        "eval_features": len(features),
    }


@torch.inference_mode()
def predict(
    model, run: RunArguments, data: DataArguments, features: Features, tokenizer, place: Place
) -> Spans:
    """Best span of each feature in this rank's batches.

    Which features share a batch does not depend on the number of ranks, and so neither do the answers.
    """
    model.eval()
    dataset = FeatureSet(features)
    token_types = "token_type_ids" in tokenizer.model_input_names
    parts = [EMPTY_SPANS]
    for numbers in prediction_batches(features.lengths, run.per_device_eval_batch_size)[
        place.rank :: place.world_size
    ]:
        items = [dataset[int(number), 1.0] for number in numbers]
        batch = collate(items, tokenizer.pad_token_id or 0, token_types)
        inputs = {name: batch[name] for name in tokenizer.model_input_names if name in batch}
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(run.bf16)):
            outputs = model(**inputs)
        parts.append(find_spans(outputs, numbers, features, dataset.offsets, data))
    return join_spans(parts)


EMPTY_SPANS = Spans(
    np.zeros(0, np.int64),
    np.zeros(0, np.float32),
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros(0, np.float32),
)


def find_spans(
    outputs, numbers: np.ndarray, features: Features, offsets: np.ndarray, data: DataArguments
) -> Spans:
    """Best span of each row of one batch, its tokens turned into characters."""
    places = np.arange(outputs.start_logits.shape[1])
    allowed = (places >= features.context_starts[numbers, None]) & (
        places < features.context_ends[numbers, None]
    )
    scores, first, last = best_spans(
        outputs.start_logits.float(),
        outputs.end_logits.float(),
        torch.from_numpy(allowed),
        data.n_best_size,
        data.max_answer_length,
    )
    found = scores.numpy() > -np.inf
    first_char = features.char_starts[offsets[numbers[found]] + first.numpy()[found]]
    last_char = features.char_ends[offsets[numbers[found]] + last.numpy()[found]]
    nulls = (outputs.start_logits[:, 0].float() + outputs.end_logits[:, 0].float()).numpy()
    return Spans(numbers[found], scores.numpy()[found], first_char, last_char, nulls[found])


def join_spans(parts: Sequence[Spans]) -> Spans:
    return Spans(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.ends for part in parts]),
        np.concatenate([part.nulls for part in parts]),
    )


# --- output ------------------------------------------------------------------------------------


def prepare_output(run: RunArguments, data: DataArguments) -> None:
    """Make output_dir; refuse to train over a model nobody said to replace. Raises UserError."""
    output = Path(run.output_dir)
    may_replace = not run.do_train or data.overwrite_output_dir or run.resume_from_checkpoint
    if (output / "config.json").exists() and not may_replace:
        raise UserError(
            f"--output_dir {output} holds a model; add --overwrite_output_dir to replace it, "
            "--resume_from_checkpoint to go on, or choose another folder"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "metrics.json").unlink(missing_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise UserError(
            f"--output_dir {output}: {error.strerror}; choose a folder that can be written"
        ) from None


def save_model(model, tokenizer, output: Path, place: Place) -> None:
    """Model and tokenizer into output_dir, by rank 0.

    Written aside and then renamed, config.json last: without it no half model can be loaded.
    """
    place.emit("phase", name="save")
    if not place.leads:
        return
    (output / "config.json").unlink(missing_ok=True)
    aside = output / ".saving"
    shutil.rmtree(aside, ignore_errors=True)  # of a run that was cut off here
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    for file in sorted(aside.iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(output / file.name)
    aside.rmdir()


def write_json(path: Path, content: object) -> None:
    """Whole or not at all."""
    aside = path.with_name(f".{path.name}.saving")
    aside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(path)

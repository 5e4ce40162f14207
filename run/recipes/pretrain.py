"""The run from text to perplexity: index, train, save, evaluate."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from arguments import ModelSpeedArguments
from checkpoints import Start, find_start, require_same_features
from fine_tune import (
    Interrupted,
    begin,
    describe,
    quieten,
    report_rates,
    save_model,
    write_json,
)
from index import Index, Text, cache_folder, index_text, prepare_text, sample_text
from lanes import Deal
from mask_trainer import (
    MaskedLoss,
    MaskTrainer,
    freeze_idle,
    load_mask_model,
    load_mask_tokenizer,
    require_same_stream,
)
from parts import allocator, quicken
from pretraining_arguments import DataArguments, RunArguments, make_arguments, parse
from ranks import Place, UserError, gather, together
from rows import IGNORED, Cutter, MaskedRow, Masker, collate
from stream import Source, Stream
from trainer import seed_dropout
from transformers import PrinterCallback

LEAST_ROOM = 8


def pretrain(argv: Sequence[str], place: Place) -> None:
    """The whole recipe on one rank. Raises UserError, or SilentExit where another rank has said why."""
    quieten()
    arithmetic, (model_arguments, data, run, parts) = begin(parse(argv, place), make_arguments, place)
    tokenizer = together(place, partial(load_mask_tokenizer, model_arguments))
    model = together(place, partial(load_mask_model, model_arguments, tokenizer, run.seed))
    cutter = together(place, partial(make_cutter, data, tokenizer, model, place))
    masker = Masker.of(tokenizer, data.mlm_probability)
    used = quicken(model, parts.unpad, parts.cheap_dropout, place)
    start = find_start(run, place)
    metrics = describe(place, run, start) | {"matmul": arithmetic.name, "allocator": allocator(os.environ)}
    place.emit("setup", **metrics)
    if run.do_train:
        text = find_text("train", data, place)
        index = index_text(text, cutter, tokenizer, cache_folder(data.text_cache), place)
        together(place, partial(require_rows, index, data), only_rank_0=True)
        source = Source(text.blocks, cutter, masker)
        trainer = make_trainer(model, data, run, parts, source, text, index, tokenizer, place, start)
        trainer.peaks = arithmetic.peaks
        metrics |= train_model(trainer, source.cutter, index, place)
        metrics["parts"] = used + trainer.parts + ["ipex"] * getattr(run, "use_ipex", False)
        save_model(model, tokenizer, Path(run.output_dir), place)
    if run.do_eval:
        source = Source(find_text("validation", data, place).blocks, cutter, masker)
        metrics |= evaluate(model, run, source, tokenizer, place)
    if place.leads:
        write_json(Path(run.output_dir) / "metrics.json", metrics)
    place.emit("result", **metrics)


def make_cutter(data: DataArguments, tokenizer, model, place: Place) -> Cutter:
    """Rows as long as asked for, and as the model takes. Raises UserError where no text would fit."""
    takes = getattr(model.config, "max_position_embeddings", None) or data.max_seq_length
    if model.config.model_type in OFFSET_POSITIONS:
        takes -= 2
    length = min(data.max_seq_length, takes)
    if length < data.max_seq_length:
        place.emit(
            "warning", text=f"--max_seq_length {data.max_seq_length}: the model takes {takes} tokens at most"
        )
    cutter = Cutter(tokenizer, length, data.line_by_line)
    if cutter.room < LEAST_ROOM:
        raise UserError(f"--max_seq_length {length} leaves room for {cutter.room} tokens; give 128 or 512")
    return cutter


OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Models that count positions from 2, after the padding token's number."""


def find_text(split: str, data: DataArguments, place: Place) -> Text:
    folder = cache_folder(data.text_cache)
    named = data.train_file if split == "train" else data.validation_file
    return prepare_text([str(sample_text(split, folder, place))] if data.sample else named, folder, place)


def require_rows(index: Index, data: DataArguments) -> None:
    if not index.rows.sum():
        raise UserError(f"--train_file {' '.join(data.train_file)}: no text in it, or blank lines alone")


# --- train -------------------------------------------------------------------------------------


def make_trainer(
    model,
    data: DataArguments,
    run: RunArguments,
    parts: ModelSpeedArguments,
    source: Source,
    text: Text,
    index: Index,
    tokenizer,
    place: Place,
    start: Start,
) -> MaskTrainer:
    freeze_idle(model, tokenizer.mask_token_id)
    stream = make_stream(run, source, index, tokenizer, place, start)
    about = {
        "text": text.name,
        "seed": stream.seed,
        "max_seq_length": source.cutter.length,
        "line_by_line": data.line_by_line,
        "mlm_probability": data.mlm_probability,
    }
    trainer = MaskTrainer(model, tokenizer, run, parts, stream, about, place, start)
    trainer.remove_callback(PrinterCallback)
    return trainer


def train_model(trainer: MaskTrainer, cutter: Cutter, index: Index, place: Place) -> dict[str, object]:
    """Train in place; what it took. Writes log_history.json.

    Raises Interrupted once a checkpoint was asked for and is whole.
    """
    run, stream = trainer.args, trainer.train_dataset
    checkpoint = trainer.start.checkpoint
    if checkpoint is not None:
        together(place, partial(require_same_stream, checkpoint, trainer.about), only_rank_0=True)
        together(place, partial(require_same_features, checkpoint, stream.total), only_rank_0=True)
    place.emit("phase", name=f"train on {tell(stream, index)}")
    seed_dropout(run.seed, place.rank)
    output = trainer.train(resume_from_checkpoint=checkpoint)
    if place.leads:
        write_json(Path(run.output_dir) / "log_history.json", trainer.state.log_history)
    rates = report_rates(trainer, stream.total, place)
    if trainer.interruption.happened:
        path = Path(run.output_dir) / f"checkpoint-{output.global_step}"
        place.emit("interrupted", path=str(path), step=output.global_step)
        raise Interrupted
    return {
        "train_lines": int(index.lines.sum()),
        "train_tokens": int(index.tokens.sum()),
        "train_rows": stream.total,
        "max_seq_length": cutter.length,
        "fill": round(float(index.tokens.sum()) / (stream.total * cutter.room), 4),
        "steps_per_epoch": stream.steps,
        "empty_rows_per_epoch": stream.empty_rows,
        "steps": output.global_step,
        "epochs": round(trainer.state.epoch, 3),
        "train_loss": output.training_loss,
        **rates,
    }


def make_stream(
    run: RunArguments, source: Source, index: Index, tokenizer, place: Place, start: Start
) -> Stream:
    """This rank's share of the text."""
    deal = Deal(
        global_batch=start.global_batch,
        ranks=place.world_size,
        rank=place.rank,
        per_device=run.per_device_train_batch_size,
        accumulation=run.gradient_accumulation_steps,
    )
    return Stream(
        source,
        deal,
        index.rows,
        seed=run.seed if run.data_seed is None else run.data_seed,
        pad_id=tokenizer.pad_token_id or 0,
        workers=run.dataloader_num_workers,
    )


def tell(stream: Stream, index: Index) -> str:
    """What an epoch is, in numbers: nothing is left out, and what fills up the last step is counted."""
    told = f"{index.lines.sum():,} lines: {stream.total:,} rows in {stream.steps:,} steps an epoch"
    return told + (f", the last filled up with {stream.empty_rows:,} empty rows" if stream.empty_rows else "")


# --- evaluate ----------------------------------------------------------------------------------


def evaluate(model, run: RunArguments, source: Source, tokenizer, place: Place) -> dict[str, object]:
    """Loss and perplexity of the masked tokens of all ranks' blocks.

    Rows and masks depend on the text and the seed alone, so every model is asked the same, on any number of
    ranks.
    """
    place.emit("phase", name="evaluate")
    found = gather(place, measure(model, run, source, tokenizer.pad_token_id or 0, place))
    loss, masked, rows = (sum(part) for part in zip(*found, strict=True))
    if not masked:
        place.emit("warning", text="--validation_file: no text in it, so there is no perplexity")
        return {}
    mean = loss / masked
    return {
        "eval_loss": round(mean, 4),
        "perplexity": round(math.exp(min(mean, 700)), 3),
        "eval_rows": rows,
    }


@torch.inference_mode()
def measure(model, run: RunArguments, source: Source, pad_id: int, place: Place) -> tuple[float, int, int]:
    """Sum of the losses, masked tokens and rows of this rank's share."""
    model.eval()
    masked_loss, rows = MaskedLoss(model), own_rows(source, run.seed, place)
    loss, masked, seen = 0.0, 0, 0
    while some := list(islice(rows, run.per_device_eval_batch_size)):
        batch = collate(some, pad_id)
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(run.bf16)):
            loss += float(masked_loss(model, batch))
        masked, seen = masked + int((batch["labels"] != IGNORED).sum()), seen + len(some)
    return loss, masked, seen


def own_rows(source: Source, seed: int, place: Place) -> Iterator[MaskedRow]:
    for block in range(place.rank, len(source.blocks), place.world_size):
        yield from source.all_rows(block, seed)

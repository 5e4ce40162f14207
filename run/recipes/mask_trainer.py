"""The model that guesses masked tokens, and Hugging Face's Trainer with this project's stream and reports."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from amx_proof import proof_callbacks
from arguments import ModelSpeedArguments
from checkpoints import Interruption, Start
from parts import speed
from pretraining_arguments import ModelArguments, RunArguments
from ranks import Place, UserError
from rows import IGNORED
from stream import Stream, keep
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from trainer import (
    Clock,
    Progress,
    TimedTrainer,
    load_failed,
    load_options,
    load_tokenizer,
    model_source,
    set_dropout,
)
from transformers import AutoConfig, AutoModelForMaskedLM, TrainerCallback

STREAM = "stream.json"

# --- model -------------------------------------------------------------------------------------


def load_mask_tokenizer(arguments: ModelArguments):
    """The tokenizer named, or else the model's or the configuration's. Raises UserError."""
    named = arguments.tokenizer_name or arguments.model_name_or_path or arguments.config_name
    tokenizer = load_tokenizer(dataclasses.replace(arguments, tokenizer_name=named))
    if tokenizer.mask_token_id is None:
        raise UserError(f"{named}: its tokenizer has no mask token; choose one of a BERT or RoBERTa")
    return tokenizer


def load_mask_model(arguments: ModelArguments, tokenizer, seed: int) -> torch.nn.Module:
    """Weights to go on with, or fresh ones that are a function of `seed`, fp32. Raises UserError."""
    torch.manual_seed(seed)
    fresh = arguments.model_type or arguments.config_name or model_source(arguments)
    source = arguments.model_name_or_path or fresh
    try:
        config = load_config(arguments, source)
        if arguments.dropout is not None:
            set_dropout(config, arguments.dropout)
        if arguments.model_name_or_path:
            options = load_options(source, arguments)
            model = AutoModelForMaskedLM.from_pretrained(source, config=config, **options)
            if len(tokenizer) > config.vocab_size:
                model.resize_token_embeddings(len(tokenizer))
        else:
            config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
            model = AutoModelForMaskedLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise load_failed(source, error) from None
    return model.float()


def load_config(arguments: ModelArguments, source: str):
    if arguments.model_type:
        config = AutoConfig.for_model(arguments.model_type)
    else:
        config = AutoConfig.from_pretrained(source, **load_options(source, arguments))
    if arguments.config_overrides:
        config.update_from_string(arguments.config_overrides)
    return config


def freeze_idle(model: torch.nn.Module, mask_id: int) -> None:
    """Take parameters that no guess depends on out of training: DDP waits for every parameter's gradient."""
    ids = torch.full((1, 8), mask_id)
    model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum().backward()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None


HEADS = ("cls", "lm_head", "vocab_transform", "predictions", "generator_predictions")
"""What BERT, RoBERTa, DistilBERT, ALBERT and ELECTRA call the layer that the guessing begins with."""


class MaskedLoss:
    """The loss of masked tokens, for which the head works on these tokens alone.

    The head multiplies each token with the whole vocabulary, for a small BERT as much work as all layers
    before it; six tokens of seven are not asked about. Without a head of a known name it does it for all.
    """

    def __init__(self, model: torch.nn.Module):
        self.places: torch.Tensor | None = None
        head = next((getattr(model, name) for name in HEADS if hasattr(model, name)), None)
        self.has_head = head is not None
        if head is not None:
            head.register_forward_pre_hook(self._select)

    def _select(self, _head, inputs):
        if self.places is None:
            return None
        hidden, *rest = inputs
        return (hidden.flatten(0, 1)[self.places], *rest)

    def __call__(self, model, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Sum of the cross entropies, a scalar; `model` may be wrapped by DDP."""
        labels = batch["labels"].flatten()
        places = torch.nonzero(labels != IGNORED).flatten()
        self.places = places
        try:
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            logits = model(**inputs).logits
        finally:
            self.places = None
        if not self.has_head:
            logits = logits.flatten(0, 1)[places]
        return cross_entropy(logits.float(), labels[places], reduction="sum")


# --- training ----------------------------------------------------------------------------------


class Bookmark(TrainerCallback):
    """Tells the stream where an epoch begins or goes on."""

    def __init__(self, stream: Stream):
        self.stream = stream

    def on_epoch_begin(self, args, state, control, **kwargs) -> None:
        self.stream.begin_at(state.global_step)


class MaskTrainer(TimedTrainer):
    """Trainer whose step is the mean over the masked tokens of the global batch, however ranks share it."""

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model,
        tokenizer,
        run: RunArguments,
        parts: ModelSpeedArguments,
        stream: Stream,
        about: Mapping[str, object],
        place: Place,
        start: Start,
    ):
        self.clock, self.compress = Clock(), parts.compress_gradients
        self.place, self.interruption = place, Interruption(place)
        self.about, self.start, self.rows = about, start, stream.total
        self.work = speed.work_of(model.base_model)
        self.head_work = speed.Work(speed.work_of(model).weights - self.work.weights, 0)
        callbacks = [Bookmark(stream), Progress(place, self.clock), self.interruption]
        callbacks += proof_callbacks(place)
        super().__init__(
            model=model, args=run, train_dataset=stream, processing_class=tokenizer, callbacks=callbacks
        )
        self.model_accepts_loss_kwargs = True  # else it does not count the masked tokens of all ranks
        self.masked_loss = MaskedLoss(model)

    def get_train_dataloader(self) -> DataLoader:
        """The stream as it is; not prepared by accelerate, which would read on rank 0 for all."""
        return DataLoader(
            self.train_dataset, batch_size=None, collate_fn=keep, generator=torch.Generator().manual_seed(0)
        )

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        begun = time.perf_counter()
        loss = self.masked_loss(model, inputs)
        masked = (inputs["labels"] != IGNORED).sum(1)
        self.clock.add(int((masked > 0).sum()), time.perf_counter() - begun)
        self.clock.times.worked(
            self.work.training(inputs["attention_mask"].sum(1).tolist())
            + self.head_work.training(masked.tolist())
        )
        # DDP takes the mean over ranks. Nothing may be asked at all: of a text "[SEP]", in a batch of one.
        return loss * self.place.world_size / num_items_in_batch.clamp(min=1)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self.args.should_save:
            (Path(output_dir) / STREAM).write_text(json.dumps(self.about) + "\n")


def require_same_stream(folder: str, about: Mapping[str, object]) -> None:
    """A checkpoint goes on with the text, the cut and the order that it was made with. Raises UserError."""
    path = Path(folder) / STREAM
    before = json.loads(path.read_text()) if path.is_file() else {}
    changed = [name for name, value in before.items() if about.get(name) != value]
    if changed:
        told = ", ".join(f"{name} {before[name]} (now {about.get(name)})" for name in changed)
        raise UserError(f"{folder} was made with {told}: give the same, or begin anew")

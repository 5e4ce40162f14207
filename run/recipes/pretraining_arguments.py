"""Arguments of run_pretraining: those of Hugging Face's run_mlm, and what became of old ones."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field

import arguments
from arguments import (
    REFUSED,
    ArgumentsError,
    ModelSpeedArguments,
    explain_unknown,
    make_parser,
    replace_old,
    yield_to_ipex,
)
from ranks import Place


@dataclass
class ModelArguments(arguments.ModelArguments):
    """Which model: the weights of one, or a configuration to begin with."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Folder or Hub name whose weights are trained on, phase 1's say."}
    )
    config_name: str | None = field(
        default=None,
        metadata={"help": "Folder or Hub name of a configuration to begin from; default: MiniLM's."},
    )
    model_type: str | None = field(
        default=None, metadata={"help": "Begin from this type's own configuration: bert is bert-base."}
    )
    config_overrides: str | None = field(
        default=None, metadata={"help": "Changes of the configuration: num_hidden_layers=4,hidden_size=256."}
    )


@dataclass
class DataArguments:
    """Which text, and how it is cut and masked."""

    train_file: list[str] | None = field(default=None, metadata={"help": "Text: files, and folders of them."})
    validation_file: list[str] | None = field(default=None, metadata={"help": "Text for the perplexity."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of a row, special ones included."})
    line_by_line: bool = field(
        default=False,
        metadata={"help": "A row for each line; else the lines are joined and cut into full rows."},
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of a row's tokens to guess."})
    text_cache: str | None = field(
        default=None,
        metadata={"help": "Keeps the text's index and unpacked text; default ~/.cache/clusterctl/text."},
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace a model in output_dir."})

    @property
    def sample(self) -> bool:
        """Whether the texts of the sample questions are meant."""
        return not (self.train_file or self.validation_file)


@dataclass
class RunArguments(arguments.RunArguments):
    output_dir: str | None = field(
        default=None, metadata={"help": "Default: run_pretraining-output, replaced."}
    )
    train_sampling_strategy: str = field(default="random", metadata={"choices": ["random"]})


SAMPLE_DEFAULTS = {
    "num_train_epochs": 20.0,
    "learning_rate": 1e-3,
    "warmup_steps": 0.1,
    "save_strategy": "no",
}
"""For the sample texts, which are few: they show that all works, and teach little."""

SAMPLE_GLOBAL_BATCH = 16
"""The same on 1, 2, 4, 8 and 16 ranks, so that their runs can be compared."""

KINDS = (ModelArguments, DataArguments, RunArguments, ModelSpeedArguments)
POSITIVE = (
    "max_seq_length",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
)


def parse(argv: Sequence[str], place: Place) -> tuple[Namespace, list[str]]:
    """What was typed, checked, and warnings about old spellings. Raises ArgumentsError."""
    parser = make_parser(KINDS, "run_pretraining")
    typed, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise ArgumentsError(explain_unknown(unknown[0], parser))
    if not (typed.train_file or typed.validation_file):
        each = max(1, SAMPLE_GLOBAL_BATCH // place.planned)
        parser.set_defaults(**SAMPLE_DEFAULTS, per_device_train_batch_size=each)
        typed = parser.parse_args(list(argv))
    warnings = [*replace_old(typed), *yield_to_ipex(typed)]
    check(typed)
    return typed, warnings


def check(typed: Namespace) -> None:
    """Settle do_train and do_eval, and raise ArgumentsError for values that cannot work."""
    for name, why in REFUSED.items():
        if getattr(typed, name, None):
            raise ArgumentsError(f"--{name}: {why}")
    if str(typed.eval_strategy) not in ("no", "IntervalStrategy.NO"):
        raise ArgumentsError("--eval_strategy: evaluation happens once, at the end; give --do_eval")
    if typed.bf16.lower() not in ("auto", "true", "false"):
        raise ArgumentsError(f"--bf16 {typed.bf16}: give true, false or auto")
    for name in ("dropout", "mlm_probability"):
        if (rate := getattr(typed, name)) is not None and not 0 <= rate < 1:
            raise ArgumentsError(f"--{name} {rate}: give a rate from 0 to below 1")
    for name in POSITIVE:
        if (value := getattr(typed, name)) <= 0:
            raise ArgumentsError(f"--{name} {value}: give a number above 0")
    if typed.train_sampling_strategy != "random":
        raise ArgumentsError("--group_by_length: the rows are of one length already, and shuffled")
    if typed.ignore_data_skip:
        raise ArgumentsError("--ignore_data_skip: going on reads nothing twice as it is; leave it out")
    check_model(typed)
    check_tasks(typed)


def check_model(typed: Namespace) -> None:
    origins = ("model_name_or_path", "config_name", "model_type")
    given = [f"--{name}" for name in origins if getattr(typed, name)]
    if len(given) > 1:
        raise ArgumentsError(f"{' and '.join(given)}: give one; weights bring their own configuration")
    if typed.model_name_or_path and typed.config_overrides:
        raise ArgumentsError("--config_overrides: the weights of --model_name_or_path fit their own alone")
    if typed.model_type and not typed.tokenizer_name:
        raise ArgumentsError("--model_type has no tokenizer; give --tokenizer_name bert-base-uncased, say")


def check_tasks(typed: Namespace) -> None:
    sample = not (typed.train_file or typed.validation_file)
    if not (typed.do_train or typed.do_eval):
        typed.do_train, typed.do_eval = (
            sample or bool(typed.train_file),
            sample or bool(typed.validation_file),
        )
    for task, name in (("do_train", "train_file"), ("do_eval", "validation_file")):
        if getattr(typed, task) and not (sample or getattr(typed, name)):
            raise ArgumentsError(f"--{task} needs --{name}")
    if typed.output_dir is None:
        # A name of our own may be replaced; a folder that the user named is protected.
        typed.output_dir, typed.overwrite_output_dir = "run_pretraining-output", True


def make_arguments(
    typed: Namespace, bf16: bool
) -> tuple[ModelArguments, DataArguments, RunArguments, ModelSpeedArguments]:
    """The dataclasses. Raises ArgumentsError for what TrainingArguments refuses."""
    return arguments.make_arguments(typed, bf16, make_parser(KINDS, "run_pretraining"))

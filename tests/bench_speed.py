"""Samples a second of run_qa on this machine, against the stock script or the recipe with every part off.

    python -m tests.bench_speed [--laps 3] [--batch 12] [--stock FOLDER] [--quality SEED ...]

Two ranks of one thread each, pinned to a core each, windows of 384 tokens; 12 questions a rank and step as
Hugging Face's own documents have it, or 32 as in its article on Sapphire Rapids. The sides take turns, so
that what else runs on the machine slows all of them; ratios are lap by lap. A second ratio is of the CPU
seconds used, which other load changes less. The first 3 steps count in neither.

`--stock` is a folder with run_qa.py, trainer_qa.py and utils_qa.py of transformers v5.23.0
(examples/pytorch/question-answering), and needs `datasets` and `evaluate` in the stack or in that folder (of
`evaluate` only load() is called, so a file evaluate.py whose load() returns None does). Its arguments are
STOCK; METER measures it as the recipe measures itself. Without it the other side is the recipe with OFF:
padding to 384, nn.Dropout, fp32 by MKL, DDP's own gradients, glibc's malloc, as the stock script has it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from run.rank import TCMALLOC_SETTINGS
from tests.command import built_stack

RECIPE = Path(__file__).parents[1] / "run" / "recipes" / "question_answering.py"
XQUAD = Path(__file__).parents[2] / "shared" / "data" / "xquad.en.json"
BATCH = 12
PLAIN_DDP = ("--compress_gradients", "false", "--ddp_bucket_cap_mb", "25")
"""As torch's DDP sends gradients by default."""
OFF = (
    *("--no_unpad", "--no_trim", "--no_cheap_dropout", "--no_balance", "--no_measure_precision"),
    *(*PLAIN_DDP, "--bf16", "false", "--train_sampling_strategy", "random"),
)
INEXACT = (
    *("--no_cheap_dropout", "--compress_gradients", "false", "--bf16", "false"),
    *("--train_sampling_strategy", "random"),
)
"""Without the parts that change more than rounding in fp32; the others change no figure, and save hours."""
STOCK = (
    *("--do_train", "--max_seq_length", "384", "--doc_stride", "128", "--use_cpu", "--ddp_backend", "gloo"),
    *("--save_strategy", "no", "--report_to", "none", "--overwrite_cache"),
)
METER = """
import json, runpy, sys, time
from pathlib import Path
from transformers import TrainerCallback, trainer

class Meter(TrainerCallback):
    def on_step_end(self, args, state, control, **named):
        if state.global_step == 3:
            self.cpu, self.warm = time.process_time(), time.perf_counter()
        if state.global_step == state.max_steps and args.process_index == 0:
            size = args.per_device_train_batch_size * args.world_size
            rate = size * (state.max_steps - 3) / (time.perf_counter() - self.warm)
            cpu = size * (state.max_steps - 3) / (time.process_time() - self.cpu) / args.world_size
            print("@stock", json.dumps({"samples_per_s": rate, "samples_per_cpu_s": cpu}), flush=True)

trainer.DEFAULT_CALLBACKS.append(Meter)
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the stock script. CPU seconds are those of rank 0: all is padded, so the others have the same work."""
MINILM = """
import sys
sys.path.insert(0, sys.argv[1])
from arguments import ModelArguments
from trainer import model_source
print(model_source(ModelArguments()))
"""
DISTILBERT = """
import sys
from transformers import AutoTokenizer, DistilBertConfig, DistilBertForQuestionAnswering
sys.path.insert(0, sys.argv[1])
from arguments import ModelArguments
from trainer import load_tokenizer
import torch
torch.manual_seed(0)
DistilBertForQuestionAnswering(DistilBertConfig()).save_pretrained(sys.argv[2])
load_tokenizer(ModelArguments()).save_pretrained(sys.argv[2])
"""


@dataclass(frozen=True)
class Side:
    """One way to train. `cores`: one rank on each."""

    name: str
    arguments: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    steps: int = 25
    tcmalloc: bool = True
    stock: Path | None = None


@dataclass(frozen=True)
class Found:
    samples_per_s: float
    samples_per_cpu_s: float
    peak_gib: float
    result: Mapping[str, object]


@dataclass(frozen=True)
class Bench:
    python: str
    folder: Path
    model: str
    recipe: Path = RECIPE
    batch: int = BATCH

    def measure(self, side: Side, *more: str) -> Found:
        """One run of a side to its end."""
        output = Path(tempfile.mkdtemp(dir=self.folder))
        script = ("-c", METER, str(side.stock / "run_qa.py")) if side.stock else (str(self.recipe),)
        size = ("--per_device_train_batch_size", str(self.batch), "--max_steps", str(side.steps))
        model = ("--model_name_or_path", self.model)
        arguments = (*model, *size, *more, *side.arguments, "--output_dir", str(output))
        command = [self.python, *script, *arguments]
        ranks = [self._start(command, side, rank) for rank in range(len(side.cores))]
        ended = [wait(rank) for rank in ranks]
        text = ranks[0].args[-1]
        assert all(code == 0 for code, _ in ended), Path(text).with_suffix(".log").read_text()[-2000:]
        return read(Path(text).with_suffix(".log").read_text(), side, max(gib for _, gib in ended))

    def _start(self, command: Sequence[str], side: Side, rank: int) -> subprocess.Popen[bytes]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("LD_", "MALLOC_"))
        }
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        environment |= {"HF_DATASETS_CACHE": str(self.folder / "datasets")}
        if len(side.cores) > 1:
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(side.cores))}
            environment |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
            environment |= {"MASTER_PORT": str(PORT.number(rank))}
        if side.tcmalloc and (found := sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))):
            environment |= {"LD_PRELOAD": str(found[0]), **TCMALLOC_SETTINGS}
        core = side.cores[rank]
        log = Path(command[-1]).with_suffix(".log") if rank == 0 else Path(os.devnull)
        with log.open("wb") as stream:
            return subprocess.Popen(
                ["taskset", "-c", str(core), *command], env=environment, stdout=stream, stderr=stream
            )


PLAIN = ("--no_unpad", "--no_cheap_dropout", *PLAIN_DDP)
PRETRAINING = (
    Side("ours", (), (0, 1)),
    Side("no unpad", ("--no_unpad",), (0, 1)),
    Side("parts off", PLAIN, (0, 1)),
    Side("parts off, fp32", (*PLAIN, "--no_measure_precision", "--bf16", "false"), (0, 1), 8, tcmalloc=False),
)


class _Port:
    """A free port that rank 0 chooses and the others are told."""

    last = 0

    def number(self, rank: int) -> int:
        if rank == 0:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.last = probe.getsockname()[1]
        return self.last


PORT = _Port()


def wait(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Exit code, and the most memory that the process ever had in GiB."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_maxrss / 2**20


def read(text: str, side: Side, peak_gib: float) -> Found:
    """What a run said of its speed: the recipe's events, or the stock script's own figure."""
    if side.stock:
        measured = json.loads(text.split("@stock ")[1].splitlines()[0])  # a progress bar may stand before it
        return Found(**measured, peak_gib=peak_gib, result={})
    events = [
        json.loads(line.split(" ", 1)[1]) for line in text.splitlines() if line.startswith("@clusterctl ")
    ]
    (result,) = [event for event in events if event["event"] == "result"]
    return Found(result["samples_per_s"], samples_per_cpu_s(events), peak_gib, result)


def samples_per_cpu_s(events: Iterable[Mapping[str, Any]]) -> float:
    """Of all ranks, which have the same number of samples, for a second of CPU time."""
    return statistics.harmonic_mean(
        [event["samples_per_cpu_s"] for event in events if event["event"] == "rank_summary"]
    )


# --- comparisons -------------------------------------------------------------------------------


def compare(bench: Bench, sides: Sequence[Side], laps: int, *more: str) -> dict[str, list[Found]]:
    """All sides once a lap, in turns; progress on standard output."""
    found: dict[str, list[Found]] = {side.name: [] for side in sides}
    for lap in range(laps):
        for side in sides if lap % 2 == 0 else sides[::-1]:
            one = bench.measure(side, *more)
            found[side.name].append(one)
            print(f"  lap {lap + 1}: {side.name}: {one.samples_per_s:.2f} samples/s", flush=True)
    return found


def show(title: str, found: Mapping[str, Sequence[Found]], base: str) -> None:
    """A table; ratios are medians over laps, with the least and the largest."""
    print(f"\n{title}")
    print("| side | samples/s | ratio | samples/CPU s | ratio | peak GiB a rank | share of peak |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, runs in found.items():
        rate = statistics.median(run.samples_per_s for run in runs)
        cpu = statistics.median(run.samples_per_cpu_s for run in runs)
        gib = max(run.peak_gib for run in runs)
        shares = [run.result["time"]["peak_share"] for run in runs if "time" in run.result]
        share = f"{100 * statistics.median(shares):.0f} %" if shares else ""
        laps = list(zip(runs, found[base], strict=True))
        ratios = [
            ratio([(mine.samples_per_s, other.samples_per_s) for mine, other in laps]),
            ratio([(mine.samples_per_cpu_s, other.samples_per_cpu_s) for mine, other in laps]),
        ]
        print(f"| {name} | {rate:.2f} | {ratios[0]} | {cpu:.2f} | {ratios[1]} | {gib:.2f} | {share} |")
    for name, runs in found.items():
        for time in (run.result["time"] for run in runs if "time" in run.result):
            shares = [
                f"{part} {100 * time[part]:.1f} %" for part in ("compute", "all_reduce", "waiting", "data")
            ]
            print(f"{name}: {', '.join(shares)}", flush=True)


def ratio(pairs: Sequence[tuple[float, float]]) -> str:
    values = [mine / other for mine, other in pairs if mine and other]
    if not values:
        return ""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def halves(questions: Path, folder: Path) -> tuple[Path, Path]:
    """The first 38 articles to train on, the last 10 to evaluate; flat, as the stock script reads files."""
    articles = json.loads(questions.read_text())["data"]
    for name, part in (("train", articles[:38]), ("validation", articles[38:])):
        rows = [row for article in part for row in flat(article)]
        (folder / f"{name}.json").write_text(json.dumps({"data": rows}))
    return folder / "train.json", folder / "validation.json"


def flat(article: Mapping[str, Any]) -> list[dict[str, object]]:
    return [
        {
            **{name: asked[name] for name in ("id", "question")},
            "context": paragraph["context"],
            "answers": {
                "text": [answer["text"] for answer in asked["answers"]],
                "answer_start": [answer["answer_start"] for answer in asked["answers"]],
            },
        }
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def texts(questions: Path, folder: Path) -> tuple[str, ...]:
    """Arguments that name a text: all paragraphs, a line each."""
    articles = json.loads(questions.read_text())["data"]
    lines = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    (folder / "text.txt").write_text("".join(" ".join(line.split()) + "\n" for line in lines))
    return "--train_file", str(folder / "text.txt"), "--text_cache", str(folder / "cache")


def other_side(stock: Path | None) -> Side:
    if stock:
        return Side("stock run_qa", STOCK, (0, 1), 8, False, stock)
    return Side("all parts off", OFF, (0, 1), 8, False)


def quality(bench: Bench, seeds: Sequence[int], train: Path, validation: Path) -> None:
    """EM and F1 of all parts on, and of those off that change more than rounding in fp32 (INEXACT).

    Three epochs of BATCH questions a step on two ranks, so sent gradients and dealt batches are in it.
    """
    files = ("--train_file", str(train), "--validation_file", str(validation))
    files += ("--num_train_epochs", "3", "--learning_rate", "1e-4")
    sides = (Side("ours", (), (0, 1), -1), Side("inexact parts off", INEXACT, (0, 1), -1))
    found: dict[str, list[Mapping[str, Any]]] = {side.name: [] for side in sides}
    print("\n| side | seed | EM | F1 | loss |\n|---|--:|--:|--:|--:|", flush=True)
    for seed in seeds:
        for side in sides:
            one = bench.measure(side, *files, "--seed", str(seed)).result
            found[side.name].append(one)
            scores = " | ".join(f"{one[key]:.2f}" for key in ("exact_match", "f1", "train_loss"))
            print(f"| {side.name} | {seed} | {scores} |", flush=True)
    for name, runs in found.items():
        told = [spread(key, [one[key] for one in runs]) for key in ("exact_match", "f1")]
        print(f"{name}, {len(runs)} seeds: {', '.join(told)}")


def spread(name: str, values: Sequence[float]) -> str:
    """The mean over seeds and its standard error.

    >>> spread("f1", [40.0, 42.0])
    'f1 41.0 +- 1.0'
    """
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{name} {statistics.mean(values):.1f} +- {error:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--stock", type=Path, help="folder with Hugging Face's run_qa.py")
    parser.add_argument("--quality", type=int, nargs="+", default=[], metavar="SEED")
    parser.add_argument("--batch", type=int, default=BATCH, help="questions a rank and step")
    parser.add_argument("--questions", type=Path, default=XQUAD)
    parser.add_argument("--only", choices=["minilm", "distilbert", "ranks", "pretraining", "quality"])
    options = parser.parse_args()
    if not options.questions.is_file():
        raise SystemExit(f"{options.questions}: no such file; give --questions a file in SQuAD's form")
    python = f"{built_stack()}/bin/python"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, validation = halves(options.questions, folder)
        files = ("--do_train", "--train_file", str(train))
        minilm = subprocess.check_output([python, "-c", MINILM, str(RECIPE.parent)], text=True).split()[-1]
        ours, bench = Side("ours", (), (0, 1)), Bench(python, folder, minilm, batch=options.batch)
        if options.only in (None, "minilm"):
            found = compare(bench, [ours, other_side(options.stock)], options.laps, *files)
            show("MiniLM-L6, two ranks of one core", found, other_side(options.stock).name)
        if options.only in (None, "ranks"):
            plain = Side("two ranks, plain DDP", PLAIN_DDP, (0, 1))
            sides = [Side("one rank", (), (0,)), Side("two ranks", (), (0, 1)), plain]
            show("MiniLM-L6, one rank and two", compare(bench, sides, options.laps, *files), "one rank")
        if options.only in (None, "distilbert"):
            model = folder / "distilbert"
            subprocess.run([python, "-c", DISTILBERT, str(RECIPE.parent), str(model)], check=True)
            large = Bench(python, folder, str(model), batch=options.batch)
            found = compare(large, [ours, other_side(options.stock)], options.laps, *files)
            show("DistilBERT size, two ranks of one core", found, other_side(options.stock).name)
        if options.only in (None, "pretraining"):
            begin = Bench(python, folder, minilm, RECIPE.with_name("pretraining.py"))
            found = compare(begin, PRETRAINING, options.laps, *texts(options.questions, folder))
            show("Pretraining, MiniLM-L6, full rows of 128, two ranks of one core", found, "parts off")
        if options.quality:
            quality(replace(bench, batch=BATCH // 2), options.quality, train, validation)


if __name__ == "__main__":
    main()

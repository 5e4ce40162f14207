"""Runs of the recipe with all parts of run/speed on: the same seed is the same run, ranks do not matter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import built_stack
from tests.test_question_answering import CUT, losses, only, run_ranks

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

SHORT = (*CUT, "--max_steps", 4, "--logging_steps", 1, "--learning_rate", 3e-4, "--max_train_samples", 24)
EXACT = ("--dropout", 0, "--bf16", "false")


@pytest.fixture(scope="module")
def python() -> str:
    return f"{built_stack()}/bin/python"


def run(python: str, output: Path, ranks: int, per_device: int, *more: object) -> dict:
    """The result of a short training; its losses are in `output`."""
    batch = ("--per_device_train_batch_size", per_device, "--output_dir", output, "--do_train")
    (result,) = only(run_ranks(python, ranks, *SHORT, *batch, *more), "result")
    assert result == {"event": "result", **json.loads((output / "metrics.json").read_text())}
    return result


def test_ranks_and_accumulation_do_not_matter(python: str, tmp_path: Path) -> None:
    """1 x 4 = 2 x 2 = 4 x 1 = 2 x 1 x 2, unpadded, balanced, only used rows sent, to fp32's noise."""
    one = run(python, tmp_path / "one", 1, 4, *EXACT)
    assert one["parts"] == ["unpad", "cheap dropout", "balance"]
    for ranks, per_device, accumulation in ((2, 2, 1), (4, 1, 1), (2, 1, 2)):
        folder = tmp_path / f"{ranks}-{per_device}-{accumulation}"
        found = run(python, folder, ranks, per_device, *EXACT, "--gradient_accumulation_steps", accumulation)
        assert losses(folder) == pytest.approx(losses(tmp_path / "one"), rel=2e-4)
        assert found["parts"][-1] == "used rows only"
        shares = [found["time"][name] for name in ("compute", "all_reduce", "waiting", "data")]
        assert sum(shares) == pytest.approx(1, abs=0.001)
        assert min(shares) >= 0
        assert 0 < found["time"]["peak_share"] < 1.2


def test_the_same_seed_is_the_same_run(python: str, tmp_path: Path) -> None:
    """With dropout, in bf16, gradients compressed; and without any part the losses are near."""
    for name in ("first", "again"):
        found = run(python, tmp_path / name, 2, 2, "--bf16")
        assert found["parts"] == ["unpad", "cheap dropout", "balance", "bf16 gradients"]
    assert losses(tmp_path / "first") == losses(tmp_path / "again")


OFF = ("--no_unpad", "--no_trim", "--no_cheap_dropout", "--no_balance", "--no_measure_precision")


def test_each_part_can_be_left_out(python: str, tmp_path: Path) -> None:
    """All off and all on: the same losses but for bf16's noise, where there is no dropout."""
    on = run(python, tmp_path / "on", 2, 2, "--dropout", 0, "--bf16", "--compress_gradients", "true")
    off = run(python, tmp_path / "off", 2, 2, *EXACT, *OFF, "--compress_gradients", "false")
    assert (len(on["parts"]), off["parts"], off["matmul"]) == (4, [], "fp32")
    assert losses(tmp_path / "on") == pytest.approx(losses(tmp_path / "off"), rel=0.03)

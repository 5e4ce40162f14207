"""Quality on real data, a proof of minutes: `make test-slow`.

XQuAD's English questions (Google DeepMind, CC BY-SA 4.0) lie beside the project, not in it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.local_nodes import needs_nodes
from tests.test_train import run_folder

pytestmark = [*needs_nodes, pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(1500)]

XQUAD = Path(__file__).parents[2] / "shared" / "data" / "xquad.en.json"
# One standard error of F1 over 220 questions is about 3 points; two runs differ by its root of two.
NOISE = 8.5


@pytest.fixture
def halves(tmp_path):
    """The first 38 articles to train on, the last 10 to evaluate."""
    if not XQUAD.exists():
        pytest.skip(f"no {XQUAD.name} beside the project")
    articles = json.loads(XQUAD.read_text())["data"]
    for name, part in (("train", articles[:38]), ("validation", articles[38:])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"data": part}))
    return tmp_path


def scores(command, halves, nodes):
    """F1 and EM after the same 3 epochs of global batch 12 on so many nodes."""
    command.ok("up", "--nodes", str(nodes), "--yes")
    files = ("--train_file", f"{halves}/train.json", "--validation_file", f"{halves}/validation.json")
    settings = ("--num_train_epochs", "3", "--learning_rate", "1e-4", "--save_strategy", "no", "--seed", "42")
    batch = ("--per_device_train_batch_size", str(12 // nodes))
    ended = command("train", "run_qa", "--", *files, *settings, *batch, timeout_s=1200)
    assert ended.code == 0, ended.err
    print(ended.out[-400:])
    summary = json.loads((run_folder(command) / "summary.json").read_text())
    return summary["f1"], summary["exact_match"]


def test_four_nodes_learn_as_much_as_one(own, halves):
    four, one = scores(own, halves, 4), scores(own, halves, 1)

    print(f"F1 and EM: four nodes {four}, one {one}")
    assert four[0] == pytest.approx(one[0], abs=NOISE)
    assert min(four[0], one[0]) > 30  # untrained: 6

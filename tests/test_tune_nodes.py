"""train --tune on real nodes: real ranks of a real script, timed; and a run that uses what was kept."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.command import Command
from tests.local_nodes import needs_nodes

pytestmark = [*needs_nodes, pytest.mark.stack, pytest.mark.slow]

QUICK = "import run.timing as timing; timing.STEADY_S = timing.LEAST_S = 2; from run.cli import main; main()"


def quickly(command: Command, *args: str) -> subprocess.CompletedProcess[str]:
    """clusterctl, with trials of two steady seconds."""
    return subprocess.run(
        [sys.executable, "-c", QUICK, *args],
        capture_output=True,
        text=True,
        env=command.environment,
        cwd=command.home,
        timeout=280,
    )


def test_two_nodes_are_tuned_and_train_as_it_was_kept(own: Command) -> None:
    own.ok("up", "--nodes", "2")
    args = ("--max_seq_length", "128", "--doc_stride", "32", "--gradient_accumulation_steps", "1")

    tuned = quickly(own, "train", "run_qa", "--name", own.name, "--tune", "--", *args)
    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    assert "tuning run_qa on 2 nodes, global batch 16 in all trials" in tuned.stdout
    assert "the default" in tuned.stdout
    assert max(map(len, tuned.stdout.splitlines())) <= 80
    assert own("exec", "--", "ls ~/.clusterctl/runs").out.split("\n")[1:] in ([], [""], ["", ""])
    assert not list((own.home / "runs").glob("*"))

    file = own.home / "state/clusterctl/tuned.json"
    kept = json.loads(file.read_text())
    ((script, entry),) = next(iter(kept.values())).items()
    assert script.startswith("run_qa, its own model, 128 tokens, global batch 16, native")
    entry |= {"bf16": "false", "times": 1.5}  # whatever was the best: something to be seen
    file.write_text(json.dumps(kept))
    short = ("--max_steps", "1", "--max_train_samples", "24", "--do_train")

    out = own.ok("train", "run_qa", "--", *args, *short)

    assert "tuned: 1 rank a node, float32, 8 x 1 a rank (1.50 times the default, " in out
    assert "2 nodes, 2 ranks x 1 threads, fp32" in out
    (request,) = (own.home / "runs").glob("*/request.json")
    assert json.loads(request.read_text())["ppn"] == 1

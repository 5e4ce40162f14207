"""Intel's extension for real: the stack `intel`, built from PyPI, trains run_qa with --use_ipex on two nodes.

Some GB are downloaded and removed again. oneccl_bind_pt is on Intel's own index alone: a stand-in takes its
place, which registers "ccl" over gloo, and wants its setvars.sh sourced as the real one does.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest

from provision.providers.local.control import stack_store
from provision.stacks import stack_named
from tests.local_nodes import needs_nodes
from tests.test_backend import ONECCL
from tests.test_stack_build import BINDINGS, SETVARS, wheel

pytestmark = [*needs_nodes, pytest.mark.slow, pytest.mark.timeout(3000)]

STACK = stack_named("intel")
SAYING = 'print("workers", os.environ["CCL_WORKER_COUNT"], os.environ["CCL_WORKER_AFFINITY"], flush=True)\n'
INVENTORY = """
all:
  vars:
    clusterctl:
      name: {name}
      nodes: 2
      stack: intel
      stack_index: {index}
      torch_index: none   # PyPI's torch, with the CUDA libraries that it needs to be imported
"""
SHORT = ("--max_steps", "4", "--max_train_samples", "32", "--max_eval_samples", "8", "--logging_steps", "1")


@pytest.fixture
def built():
    """The stack's folder, removed afterwards where it was not there before."""
    folder = stack_store() / STACK.name
    was_there = folder.exists()
    yield folder
    if not was_there:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f".{STACK.name}.lock").unlink(missing_ok=True)


@pytest.fixture
def intel(own, built):
    """A cluster with the stack, its stand-in for oneCCL from a folder."""
    package, index = "oneccl_bindings_for_pytorch", own.home / "index"
    index.mkdir()
    # Imported without a launcher, as `stack verify` does, there are no workers to tell of.
    code = BINDINGS + ONECCL + 'if "CCL_WORKER_COUNT" in os.environ:\n    ' + SAYING
    wheel(
        *(index, "oneccl_bind_pt", "2.8.0+cpu"),
        {f"{package}/__init__.py": code, f"{package}/env/setvars.sh": SETVARS},
    )
    inventory = own.home / "intel.yml"
    inventory.write_text(INVENTORY.format(name=own.name, index=index))
    up = own("up", "-i", str(inventory), timeout_s=2400)
    assert up.code == 0, up.out + up.err
    assert up.out.count("intel-extension-for-pytorch ended with 2.8.0 and is archived") == 1
    return own


def trained(cluster, *arguments, backend):
    """Losses, the parts that the recipe says it used, and rank 0's log."""
    cluster.ok("train", "run_qa", "--backend", backend, "--", *SHORT, "--bf16", "true", *arguments)
    folder = max((cluster.home / "runs").iterdir(), key=lambda folder: folder.name)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["backend"] == "ccl"
    assert summary["metrics"]["torch"].startswith("2.8.0")
    history = json.loads((folder / "output" / "log_history.json").read_text())
    losses = [entry["loss"] for entry in history if "loss" in entry]
    return losses, summary["metrics"]["parts"], (folder / "logs" / "rank-000.log").read_text()


def test_ipex_trains_on_two_nodes(intel):
    verified = intel("stack", "verify")
    assert verified.code == 0, verified.out + verified.err
    for what in ("torch 2.8.0", "intel_extension_for_pytorch 2.8.0", "oneccl_bindings_for_pytorch 2.8.0+cpu"):
        assert what in verified.out

    plain, parts, log = trained(intel, backend="ccl")
    assert "ipex" not in parts
    assert re.search(r"workers 1 \d+\b", log), "each rank was told of one worker and its core"

    with_ipex, parts, _ = trained(intel, "--use_ipex", backend="auto")
    assert "ipex" in parts
    assert with_ipex == pytest.approx(plain, rel=0.2)
    assert with_ipex != plain

"""Backends and stacks on real nodes: a vendor's backend trains, a stack that differs is found, and where."""

from __future__ import annotations

import json

import pytest

from tests.local_nodes import needs_nodes
from tests.test_backend import PLUGIN

pytestmark = [*needs_nodes, pytest.mark.stack]

SHORT = ("--max_steps", "2", "--max_train_samples", "12", "--do_eval", "false")


def test_a_vendors_backend_trains_and_is_named(cluster):
    ended = cluster(
        *("train", "run_qa", "--nodes", "2", "--backend", "demo", "--backend-module", str(PLUGIN)),
        *("--", *SHORT),
    )
    assert ended.code == 0, ended.out + ended.err
    assert "mpirun over ssh, demo" in ended.out
    folder = max((cluster.home / "runs").iterdir(), key=lambda folder: folder.name)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["backend"], summary["metrics"]["backend"]) == ("demo", "demo")


def test_what_does_not_import_ends_the_run_with_one_line(cluster):
    asked = ("--backend", "accl", "--backend-module", "torch_accl")
    ended = cluster("train", "run_qa", "--nodes", "2", *asked, "--", *SHORT)
    assert ended.code == 1
    assert "backend accl: module torch_accl cannot be imported" in ended.error_line


def test_ccl_without_oneccl_does_not_fall_back(cluster):
    ended = cluster("train", "run_qa", "--", "--ddp_backend", "ccl", *SHORT)
    assert ended.code == 2
    assert "stack native has no oneccl-bind-pt" in ended.error_line


def test_verify_names_the_node_and_what_differs(cluster, stack):
    whole = cluster("stack", "verify")
    assert whole.code == 0, whole.out + whole.err
    assert f"3 nodes as locked in {stack.name}; imported on each: torch 2.13.0" in whole.out

    # The nodes see one folder; over it one of them gets a package of another version.
    packages = f"/opt/clusterctl/stacks/{stack.name}/lib/python3*/site-packages"
    make = f"d=$(echo {packages}/tqdm-*.dist-info); mkdir /tmp/other; cp $d/* /tmp/other 2>/dev/null; "
    make += "sed -i 's/^Version: .*/Version: 0.1/' /tmp/other/METADATA; sudo mount --bind /tmp/other $d"
    cluster.on("node2", make)
    try:
        broken = cluster("stack", "verify")
        told = cluster.json("stack", "verify")
    finally:
        cluster.on("node2", f"sudo umount {packages}/tqdm-*.dist-info; rm -rf /tmp/other")
    assert broken.code == 1
    assert "node2: tqdm 0.1, wanted 4." in broken.out
    assert "1 node of 3 not as locked" in broken.out
    assert {node: about["ok"] for node, about in told["nodes"].items()} == {
        "node1": True,
        "node2": False,
        "node3": True,
    }

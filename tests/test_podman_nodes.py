"""The docker launcher with real containers: podman in local nodes, beside mpirun and torchrun there."""

from __future__ import annotations

import json

import pytest

from tests.local_nodes import eventually, needs_nodes
from tests.podman_nodes import SETTINGS, containers, forget_image, prepare, problem_here
from tests.test_launchers import cut_off
from tests.test_train import ended, left_over, run_folder, wait_for_progress

pytestmark = [*needs_nodes, pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

NODES = ("node1", "node2")
IN_CONTAINERS = ("--launcher", "docker", *SETTINGS)
STEPS = ("--max_steps", "6", "--logging_steps", "1", "--bf16", "false", "--seed", "7")


@pytest.fixture
def podman(own):
    """Two nodes that run containers; skipped where podman cannot."""
    if problem := problem_here():
        pytest.skip(problem)
    own.ok("up", "--nodes", str(len(NODES)))
    if problem := prepare(own, NODES):
        pytest.skip(problem)
    return own


def trained(cluster, *launcher):
    """The losses of all steps."""
    cluster.ok("train", "run_qa", *launcher, "--", *STEPS)
    history = json.loads((run_folder(cluster) / "output" / "log_history.json").read_text())
    return [entry["loss"] for entry in history if "loss" in entry]


def test_the_recipe_trains_alike_in_containers(podman):
    by_launcher = {name: trained(podman, "--launcher", name) for name in ("mpirun", "torchrun")}
    by_launcher["docker"] = trained(podman, *IN_CONTAINERS)

    print(by_launcher)
    assert len(by_launcher["mpirun"]) == 6
    for losses in by_launcher.values():
        assert losses == pytest.approx(by_launcher["mpirun"], rel=1e-5)
    assert containers(podman, NODES) == []
    assert "rank.py" not in left_over(podman)


def test_a_node_that_is_cut_off_is_named_and_leaves_no_container(podman):
    process = podman.start(
        *("train", "run_qa", *IN_CONTAINERS, "--json", "--"),
        *("--num_train_epochs", "200", "--do_eval", "false"),
    )
    wait_for_progress(process)
    assert len(containers(podman, NODES)) == 2
    cut_off(podman, "node2", 45)
    code, _, err, seconds = ended(process, 120)

    print(f"{seconds:.0f} s: {err}")
    assert (code, "node2" in err, seconds < 60) == (1, True, True), err
    assert eventually(lambda: podman("status").code == 0, 90)
    assert eventually(lambda: containers(podman, NODES) == [], 60)
    assert "rank.py" not in left_over(podman)


@pytest.mark.parametrize("only", NODES)
def test_an_image_that_one_node_lacks_is_told_with_the_node(podman, only):
    forget_image(podman, only)
    failed = podman("train", "run_qa", *IN_CONTAINERS, "--", *STEPS)

    assert failed.code == 1
    told = f"clusterctl: {only}: the container ended with exit code 125: Error: "
    assert failed.error_line.startswith(told)
    assert "; bring the image there first, by pull or load: " in failed.error_line
    assert containers(podman, NODES) == []

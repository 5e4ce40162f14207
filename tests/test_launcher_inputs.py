"""What the launchers that start agents cannot work with: one line each, before or instead of a run."""

from __future__ import annotations

import pytest

from tests.local_nodes import needs_nodes
from tests.test_docker import STAND_IN
from tests.test_launchers import script
from tests.test_train import left_over

__all__ = ["script"]
pytestmark = [*needs_nodes, pytest.mark.stack]

DOCKER = ("--launcher", "docker", "--set", "image=me/train:1")
LAUNCHERS = {"docker": DOCKER, "torchrun": ("--launcher", "torchrun")}
WRONG = {
    "a script that is not there": (("nothing.py",), "nothing.py: no such file; it is looked for in"),
    "an unknown backend": (("run_qa", "--backend", "nope"), "no backend 'nope': there is gloo, ccl, auto"),
    "more ranks than cores": (("run_qa", "--ppn", "99"), "node1: 99 ranks need 99 cores, it has"),
    "more nodes than there are": (("run_qa", "--nodes", "9"), "has 3 nodes; `clusterctl up` adds more"),
    "a file that is not there": (("run_qa", "--", "--train_file", "no.json"), "no.json: no such file"),
}
SETTINGS = {
    "no image": ((), "this launcher needs its image: --set image=..."),
    "an unknown engine": (("engine=lxc", "image=x"), "no container engine 'lxc'; there is docker, podman"),
    "an unknown setting": (("devics=x", "image=x"), "--set devics: no such setting; did you mean 'devices'?"),
    "half a path": (("volumes.data=/data", "image=x"), "the volume data needs its whole path on the nodes"),
}
AWAY = "for f in /usr/local/bin/docker /usr/bin/docker; do [ ! -e $f ] || sudo mv $f $f.away; done"
BACK = "for f in /usr/local/bin/docker /usr/bin/docker; do [ ! -e $f.away ] || sudo mv $f.away $f; done"
# What Docker 28 prints for an image that is nowhere.
NO_IMAGE = """#!/bin/sh
[ "$1" = run ] || exit 0
echo "Unable to find image 'me/train:1' locally" >&2
echo "docker: Error response from daemon: pull access denied for me/train, repository does not exist" >&2
printf "\\nRun 'docker run --help' for more information\\n" >&2
exit 125
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_started_is_told_before_anything_is(cluster, launcher, case):
    (what, *rest), said = WRONG[case]
    refused = cluster("train", what, *LAUNCHERS[launcher], *rest)
    assert (refused.code, said in refused.error_line) == (2, True), refused.err


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_no_engine_can_honour_are_told(cluster, case):
    settings, said = SETTINGS[case]
    given = (part for setting in settings for part in ("--set", setting))
    refused = cluster("train", "run_qa", "--launcher", "docker", *given)
    assert (refused.code, said in refused.error_line) == (2, True), refused.err


@pytest.fixture
def engines(cluster):
    """Puts a stand-in for docker on nodes, and takes the real one away from all."""
    nodes = ("node1", "node2")

    def put(node: str, text: str) -> None:
        cluster.on(node, f"sudo tee /usr/local/bin/docker >/dev/null <<'END'\n{text}END\n")
        cluster.on(node, "sudo chmod 755 /usr/local/bin/docker")

    for node in nodes:
        cluster.on(node, AWAY)
    yield put
    for node in nodes:
        cluster.on(node, f"sudo rm -f /usr/local/bin/docker; {BACK}; rm -f ~/docker.log")


@pytest.mark.parametrize(
    ("on_node2", "said"),
    [
        (
            "",
            "the container ended with exit code 127: docker cannot be started: No such file or directory; "
            "install that engine there",
        ),
        (
            NO_IMAGE,
            "the container ended with exit code 125: docker: Error response from daemon: pull access denied "
            "for me/train, repository does not exist; bring the image there first",
        ),
    ],
    ids=["no engine", "no image"],
)
def test_an_engine_or_an_image_that_one_node_lacks_is_told_with_the_node(
    cluster, engines, script, on_node2, said
):
    engines("node1", STAND_IN)
    if on_node2:
        engines("node2", on_node2)
    failed = cluster("train", script("import time; time.sleep(60)"), *DOCKER, "--nodes", "2")

    assert failed.code == 1
    assert failed.error_line.startswith(f"clusterctl: node2: {said}")
    assert "rank.py" not in left_over(cluster)


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_package_that_the_stack_lacks_is_told_with_the_place_for_it(cluster, script, launcher):
    failed = cluster("train", script("import nothing_of_this_name"), "--launcher", launcher, "--nodes", "1")
    assert failed.code == 1
    assert "nothing_of_this_name'; what pip has goes into `packages` of the inventory;" in failed.error_line

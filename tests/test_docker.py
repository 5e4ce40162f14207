"""Runs in containers: the plan, and real agents and ranks behind a stand-in for docker.

No container engine runs where these tests do. The stand-in is a script on the nodes that takes docker's own
command line, says what it is, and runs the command without a container: so what is exercised is the way to
the engine and back, not the engine.
"""

from __future__ import annotations

import json
import re

import pytest

from provision.errors import SettingsError
from run.launchers.common import Ground
from run.launchers.containers import ContainerSettings
from run.launchers.docker import plan
from run.launchers.torchrun import Elastic
from tests.command import STACK
from tests.golden import assert_golden
from tests.local_nodes import needs_nodes
from tests.run_cases import TWO_CORES, TWO_SOCKETS, cluster, facts, job, layouts
from tests.test_launchers import ROLL_CALL, script
from tests.test_train import left_over, run_folder

__all__ = ["script"]


def on_nodes(test):
    for mark in (*needs_nodes, pytest.mark.stack):
        test = mark(test)
    return test


STAND_IN = f"""#!/usr/bin/python3
import os, sys
print("stand-in for docker: no container is made", flush=True)
args, here = sys.argv[1:], os.path.expanduser("~/docker.log")
with open(here, "a") as log:
    log.write(" ".join(args[:3]) + "\\n")
if args[0] != "run":
    sys.exit()
args = args[1:]
environment = dict(os.environ, PATH="{STACK.path}/bin:" + os.environ["PATH"])
while args[0].startswith("-"):
    option = args.pop(0)
    if option in ("--rm", "--init"):
        continue
    value = args.pop(0)
    if option == "--env":
        name, _, environment[name] = value.partition("=")
    elif option == "--workdir":
        os.chdir(value)
    elif option == "--user":
        assert value == f"{{os.getuid()}}:{{os.getgid()}}", value
os.execvpe(args[1], args[1:], environment)
"""


def planned(settings: ContainerSettings):
    known = facts(TWO_SOCKETS, TWO_CORES)
    ground = Ground(job(), cluster(2), layouts(known), known, "/stack", 29501)
    return plan(ground, settings, Elastic(1, 1))


def test_plan_for_docker() -> None:
    settings = ContainerSettings("me/train:1", devices=("/dev/infiniband",), volumes={"/data": "/data:ro"})
    assert_golden("docker-plan.txt", planned(settings).render())


def test_podman_keeps_the_users_number_and_somebody_elses_is_left_alone() -> None:
    def argv(settings: ContainerSettings) -> list[str]:
        launcher = json.loads(planned(settings).files["plan.json"])["launcher"]
        return list(launcher["agents"]["node1"])

    assert "--userns=keep-id" in argv(ContainerSettings("i", engine="podman"))
    chosen = argv(ContainerSettings("i", user="1000"))
    assert chosen[chosen.index("--user") + 1] == "1000"
    assert "--userns=keep-id" not in chosen


def test_an_engine_that_there_is_not_is_named() -> None:
    with pytest.raises(SettingsError, match="no container engine 'lxc'; there is docker, podman"):
        planned(ContainerSettings("i", engine="lxc"))


@pytest.fixture
def engine(cluster):
    nodes = ("node1", "node2")
    for node in nodes:
        cluster.on(node, f"sudo tee /usr/local/bin/docker >/dev/null <<'END'\n{STAND_IN}END\n")
        cluster.on(node, "sudo chmod 755 /usr/local/bin/docker; rm -f ~/docker.log")
    yield
    for node in nodes:
        cluster.on(node, "sudo rm -f /usr/local/bin/docker; rm -f ~/docker.log")


@on_nodes
def test_ranks_start_behind_the_engine_and_their_results_come_back(cluster, engine, script):
    image = ("--launcher", "docker", "--set", "image=me/train:1")
    out = cluster.ok("train", script(ROLL_CALL), *image, "--nodes", "2", "--", "x")

    told = re.findall(r"^\[(\d)\] hello (\d) 0 2 1 1 eth0 \['x'\] .+$", out, re.M)
    assert sorted(told) == [("0", "0"), ("1", "1")]
    assert (run_folder(cluster) / "output" / "made").is_dir()
    log = cluster.on("node2", "cat ~/docker.log").splitlines()
    assert [line.split()[0] for line in log] == ["run", "rm"]
    assert "rank.py" not in left_over(cluster)


@on_nodes
def test_an_engine_that_is_missing_is_told_in_a_line(cluster, script):
    failed = cluster(
        "train", script(ROLL_CALL), "--launcher", "docker", "--set", "image=x", "--set", "engine=podman",
        "--nodes", "2",
    )  # fmt: skip
    assert failed.code == 1
    assert re.search(r"podman cannot be started: No such file|ended with exit code 125", failed.error_line)

"""Containers' command lines, compared whole; the image's build context; real ones where podman runs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provision.errors import SettingsError
from provision.stacks import stack_named
from run.commands.kubernetes import image
from run.launchers.containers import (
    ContainerPlace,
    ContainerSettings,
    container_argv,
    container_name,
    listing_argv,
    removal_argv,
)
from run.launchers.images import dockerfile, image_context, write_context
from run.layout import NodeLayout
from tests.golden import assert_golden
from tests.podman_nodes import CONF
from tests.run_cases import RUN_ID, TWO_CORES, TWO_SOCKETS, facts, layouts

PLACE = ContainerPlace(RUN_ID, 1, 2, "10.0.0.1", 29501)
GUIDE = ContainerSettings(
    "registry.example.com/eflops/pytorch:22.02py38",
    devices=("/dev/infiniband",),
    volumes={"/home/accl/BERT": "/workspace/BERT", "/data/wiki": "/data:ro"},
    workdir="/workspace/BERT",
)
COMMAND = ("/workspace/BERT/run_pretraining.sh", "--phase", "1")


def layout(number: int) -> NodeLayout:
    return layouts(facts(TWO_SOCKETS, TWO_SOCKETS))[f"node{number}"]


def test_command_line_of_the_guides_container() -> None:
    argv = container_argv(GUIDE, layout(2), PLACE, COMMAND, {"PHASE": "1", "BACKEND": "accl"})
    # An option and its value a line.
    text = shlex.join(argv).replace(" --", " \\\n  --")
    assert_golden("container-guide.txt", f"{text}\n{shlex.join(removal_argv('docker', RUN_ID, 'node2'))}\n")


def test_a_container_sees_the_cpus_of_its_layout_alone() -> None:
    argv = container_argv(GUIDE, layouts(facts(TWO_SOCKETS, TWO_CORES))["node2"], PLACE, COMMAND)
    assert argv[argv.index("--cpuset-cpus") + 1] == "0-1"


def test_a_container_is_found_by_its_run() -> None:
    argv = container_argv(GUIDE, layout(1), PLACE, COMMAND)
    name = container_name(RUN_ID, "node1")
    assert argv[argv.index("--name") + 1] == name
    assert f"clusterctl.run={RUN_ID}" in argv
    assert removal_argv("podman", RUN_ID, "node1") == ("podman", "rm", "--force", name)
    assert f"label=clusterctl.run={RUN_ID}" in listing_argv("docker", RUN_ID)


def test_what_an_engine_cannot_do_is_refused() -> None:
    for settings, told in (
        (replace(GUIDE, engine="lxc"), "no container engine 'lxc'; there is docker, podman"),
        (replace(GUIDE, is_rootfs=True), "podman's alone"),
        (replace(GUIDE, shm_gib=0), "more than 0 GiB"),
        (replace(GUIDE, volumes={"data": "/data"}), "the volume data needs its whole path"),
    ):
        with pytest.raises(SettingsError, match=told):
            container_argv(settings, layout(1), PLACE, COMMAND)


# --- the image ---------------------------------------------------------------------------------


def test_dockerfile_of_the_native_stack() -> None:
    stack = stack_named("native")
    assert_golden("Dockerfile.txt", dockerfile(stack).replace(stack.name, "native-HASH"))


def test_dockerfile_of_a_stack_with_packages_of_its_own() -> None:
    made = dockerfile(stack_named("intel"))
    assert made.splitlines()[1] == "FROM python:3.12-slim-bookworm"
    assert '--find-links "$STACK_INDEX" oneccl' in made
    assert "torch==2.8.0" in made
    assert "oneccl" not in image_context(stack_named("intel"))["requirements.txt"]
    assert "STACK_INDEX" not in dockerfile(stack_named("intel", None, "none"))
    with pytest.raises(SettingsError, match="in the folder /wheels"):
        dockerfile(stack_named("intel", None, "/wheels"))


def test_an_image_has_what_a_script_needs_beside_the_stack() -> None:
    plain, stack = stack_named("native"), stack_named("native", packages=["evaluate", "x>=1"])
    extra = set(dockerfile(stack).splitlines()) - set(dockerfile(plain).splitlines())
    assert " && pip install --no-cache-dir -c /tmp/requirements.txt evaluate 'x>=1' \\" in extra
    assert len(extra) == 2  # that line, and the stack's name


def test_the_build_context_has_all_that_is_copied() -> None:
    context = image_context(stack_named("native"))
    copied = [line.split()[-2] for line in context["Dockerfile"].splitlines() if line.startswith("COPY")]
    for path in copied:
        assert path in context or any(name.startswith(f"{path}/") for name in context)
    assert "recipe/sample_qa_train.json" in context
    assert "torch==" not in context["requirements.txt"]
    assert "transformers==" in context["requirements.txt"]


def test_image_says_how_to_build_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert image(tmp_path / "image", as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    name = stack_named("native").name
    assert told["commands"][0] == f"docker build --tag clusterctl:{name} {tmp_path / 'image'}"
    assert (tmp_path / "image" / "recipe" / "question_answering.py").is_file()
    assert (tmp_path / "image" / "lib" / "speed" / "__init__.py").is_file()
    assert image(tmp_path / "image") == 0  # the same again changes nothing


def test_a_file_of_the_users_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text("mine\n")
    with pytest.raises(SettingsError, match=r"rank.py is there and differs, nothing was written"):
        write_context(tmp_path, {"Dockerfile": "x", "rank.py": "y"})
    assert [path.name for path in tmp_path.iterdir()] == ["rank.py"]
    assert (tmp_path / "rank.py").read_text() == "mine\n"


# --- real ones ---------------------------------------------------------------------------------

HERE = ContainerSettings(
    "/:O", engine="podman", shm_gib=0.125, lock_memory=False, is_rootfs=True, use_init=True
)


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers over this machine's own files, which they cannot change; skipped where podman cannot."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("needs podman and root")
    (tmp_path / "containers.conf").write_text(CONF)
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    tried = subprocess.run(run_here(["true"]), capture_output=True, text=True, timeout=60)
    if tried.returncode:
        pytest.skip(f"podman cannot start a container here: {tried.stderr.strip()[:200]}")


def run_here(command: Sequence[str], node_rank: int = 0, nodes: int = 1, **volumes: str) -> list[str]:
    place = ContainerPlace(f"test-{os.getpid()}", node_rank, nodes, "127.0.0.1", 29500 + os.getpid() % 1000)
    laid_out = layouts(facts(TWO_CORES, TWO_CORES))[f"node{node_rank + 1}"]
    settings = replace(HERE, volumes={there: f"/{name}" for name, there in volumes.items()})
    return list(container_argv(settings, laid_out, place, command))


@pytest.mark.usefixtures("podman")
def test_a_container_runs_with_its_cpus_its_memory_and_the_hosts_network() -> None:
    script = "import os, json; s = os.statvfs('/dev/shm')\n"
    script += "found = sorted(os.sched_getaffinity(0)), s.f_frsize * s.f_blocks >> 20, dict(os.environ)\n"
    script += "print(json.dumps(found))"
    done = subprocess.run(
        run_here([sys.executable, "-c", script]), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    cpus, shm_mib, environment = json.loads(done.stdout)
    assert (cpus, shm_mib) == ([0, 1], 128)
    wanted = {"RANK": "0", "WORLD_SIZE": "1", "NPROC_PER_NODE": "1", "MASTER_ADDR": "127.0.0.1"}
    assert wanted.items() <= environment.items()


@pytest.mark.usefixtures("podman")
def test_a_container_that_is_removed_takes_its_processes_along() -> None:
    running = subprocess.Popen(run_here(["sleep", "60"]), stderr=subprocess.DEVNULL)
    run_id = f"test-{os.getpid()}"
    try:
        deadline = time.monotonic() + 30
        while not names(run_id) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert names(run_id) == [container_name(run_id, "node1")]
        subprocess.run(removal_argv("podman", run_id, "node1"), check=True, capture_output=True)
        assert running.wait(timeout=20) != 0
        assert names(run_id) == []
    finally:
        running.kill()


def names(run_id: str) -> list[str]:
    done = subprocess.run(listing_argv("podman", run_id), capture_output=True, text=True, timeout=60)
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.stack
@pytest.mark.usefixtures("podman")
def test_two_containers_meet_under_torchrun(stack: Path, tmp_path: Path) -> None:
    script = "import torch, torch.distributed as d; d.init_process_group('gloo'); t = torch.ones(1); "
    script += "d.all_reduce(t); print('sum', t.item(), d.get_world_size()); d.destroy_process_group()\n"
    agents = []
    for rank in (0, 1):
        folder = tmp_path / f"run{rank}"
        folder.mkdir()
        shutil.copy(Path(__file__).parents[1] / "run" / "rank.py", folder)
        (folder / "meet.py").write_text(script)
        torchrun = [str(stack / "bin" / "python"), "-m", "torch.distributed.run", "--nnodes=2"]
        meeting = [
            f"--node-rank={rank}",
            "--master-addr=127.0.0.1",
            f"--master-port={29600 + os.getpid() % 1000}",
        ]
        command = [*torchrun, *meeting, "--nproc-per-node=1", f"{folder}/rank.py", "meet.py"]
        argv = run_here(command, rank, 2)
        agents.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for rank, agent in enumerate(agents):
        said, _ = agent.communicate(timeout=120)
        assert agent.returncode == 0, said
        assert f"[{rank}] sum 2.0 2" in said

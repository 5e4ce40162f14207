"""Jobs created, followed and deleted through tests/kubectl_standin.py, which runs their pods as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from provision.errors import LaunchError
from run.commands.kubernetes import KubernetesOptions, train_on_kubernetes
from run.follow_pods import Limits
from run.program import find_program
from tests.kubernetes_cases import SMALL

STANDIN = Path(__file__).with_name("kubectl_standin.py")
LIMITS = Limits(pending_s=1.5, no_pods_s=1, silent_s=30, finish_s=20, unreachable_s=2, poll_s=0.1)
MEETS = """
import os, torch, torch.distributed as dist
import beside
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("sum", total.item(), "of", dist.get_world_size(), beside.WORD, "threads", torch.get_num_threads(),
      os.environ["OMP_NUM_THREADS"], os.environ["HF_TOKEN"], os.getcwd().endswith("work"))
dist.destroy_process_group()
"""


class Cluster:
    """The stand-in's folder, and a job for it in a folder beside."""

    def __init__(self, folder: Path) -> None:
        self.state, self.program, self.runs = folder / "state", folder / "program", folder / "runs"
        self.state.mkdir()
        self.program.mkdir()

    def fault(self, name: str) -> None:
        (self.state / "fault").write_text(name)

    def options(self, script: str, *args: str) -> KubernetesOptions:
        path = self.program / "train.py"
        path.write_text(script)
        return KubernetesOptions(
            find_program(str(path)), args, SMALL, context="standin", runs_folder=self.runs, limits=LIMITS
        )

    def left(self) -> list[str]:
        """What the cluster still has, and processes of it."""
        processes = subprocess.run(["pgrep", "-f", str(self.state)], capture_output=True, text=True).stdout
        return [*(path.name for path in self.state.glob("*.json")), *processes.split()]

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.runs.glob("*/logs/*.log")))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """kubectl on PATH is the stand-in, and no other cluster can be met."""
    made = Cluster(tmp_path)
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECTL_STANDIN", str(made.state))
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    monkeypatch.delenv("KUBECTL_STANDIN_PYTHON", raising=False)
    return made


@pytest.fixture
def torch_cluster(cluster: Cluster, stack: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Its pods have torchrun."""
    monkeypatch.setenv("KUBECTL_STANDIN_PYTHON", str(stack / "bin" / "python"))
    return cluster


# --- jobs that end well ------------------------------------------------------------------------


@pytest.mark.stack
def test_two_pods_meet_under_torchrun(torch_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    (torch_cluster.program / "beside.py").write_text('WORD = "beside"\n')
    options = replace(
        torch_cluster.options(MEETS),
        settings=replace(SMALL, cpu=2, secrets={"HF_TOKEN": "hub/token"}),
    )
    assert train_on_kubernetes(options) == 0
    said = capsys.readouterr().out
    for rank in (0, 1):
        assert f"[{rank}] sum 3.0 of 2 beside threads 2 2 from the stand-in's secret True" in said
    assert torch_cluster.left() == []


@pytest.mark.stack
@pytest.mark.slow
def test_a_trainjob_meets_under_torchrun(torch_cluster: Cluster) -> None:
    (torch_cluster.program / "beside.py").write_text('WORD = "beside"\n')
    settings = replace(SMALL, cpu=2, ppn=2, secrets={"HF_TOKEN": "hub/token"})
    assert train_on_kubernetes(replace(torch_cluster.options(MEETS), settings=settings, kind="trainjob")) == 0
    assert torch_cluster.logs().count("sum 10.0 of 4 beside threads 1 1") == 4


@pytest.mark.stack
@pytest.mark.slow
def test_torchrun_begins_a_rank_anew(torch_cluster: Cluster) -> None:
    script = "import os, sys\nsys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'))\n"
    settings = replace(SMALL, nodes=1, restarts=1)
    assert train_on_kubernetes(replace(torch_cluster.options(script), settings=settings)) == 0


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_a_job_is_followed_to_its_end_and_deleted(
    kind: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    options = cluster.options("import sys\nprint('hello', sys.argv[1:])\n", "--epochs", "$(NAME)")
    assert train_on_kubernetes(replace(options, kind=kind)) == 0
    said = capsys.readouterr().out
    assert "2 ranks x 4 threads in 2 pods of 4 CPUs and 16 GiB; created configmap/" in said
    assert "[1] hello ['--epochs', '$(NAME)']" in said
    assert cluster.left() == []
    (folder,) = cluster.runs.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "manifests.yaml", "summary.json"]
    assert json.loads((folder / "summary.json").read_text())["problem"] is None


def test_json_lines_tell_of_pods_and_of_the_end(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_on_kubernetes(replace(cluster.options("print('hi')\n"), as_json=True)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"note", "phase", "start", "exit", "summary"} <= {line["event"] for line in lines}
    assert lines[-1]["left"] == []


def test_keep_leaves_the_job_and_says_how_to_delete_it(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_on_kubernetes(replace(cluster.options("print('hi')\n"), keep=True)) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("kept"))
    assert any(name.startswith("pytorchjob-") for name in cluster.left())
    names = line.partition("kubectl delete ")[2].split()
    subprocess.run(["kubectl", "delete", *names, "--ignore-not-found"], check=True, capture_output=True)
    assert cluster.left() == []


def test_dry_run_prints_all_and_needs_no_kubectl(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    options = replace(cluster.options("print('hi')\n"), dry_run=True)
    assert train_on_kubernetes(options) == 0
    assert capsys.readouterr().out.startswith("---\napiVersion: v1\nkind: ConfigMap\n")
    assert train_on_kubernetes(replace(options, as_json=True)) == 0
    assert [made["kind"] for made in json.loads(capsys.readouterr().out)] == ["ConfigMap", "PyTorchJob"]


# --- jobs that end badly -----------------------------------------------------------------------


def test_a_rank_that_fails_is_named_with_what_it_said(cluster: Cluster) -> None:
    options = cluster.options("import os\nassert os.environ['RANK'] != '1', 'no data here'\n")
    with pytest.raises(
        LaunchError, match=r"rank 1 on .*-worker-1 ended with exit code 1: .*no data here; logs"
    ):
        train_on_kubernetes(options)
    assert cluster.left() == []


def test_ctrl_c_deletes_the_job(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    options = cluster.options("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    threading.Thread(target=interrupt_when_begun, args=(cluster,), daemon=True).start()
    assert train_on_kubernetes(replace(options, keep=True)) == 130
    assert "stopped; logs: " in capsys.readouterr().out
    assert cluster.left() == []


def interrupt_when_begun(cluster: Cluster) -> None:
    deadline = time.monotonic() + 20
    while cluster.logs().count("begun") < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_a_pod_that_falls_silent_is_lost(cluster: Cluster) -> None:
    # rank.py itself is stopped, as on a node that is cut off.
    script = "import os, signal\nif os.environ['RANK'] == '1':\n    os.kill(os.getppid(), signal.SIGSTOP)\n"
    options = cluster.options(f"{script}import time\ntime.sleep(60)\n")
    limits = replace(LIMITS, silent_s=6)
    with pytest.raises(LaunchError, match=r"pod .*-worker-1 on standin is lost: nothing heard for 6 s"):
        train_on_kubernetes(replace(options, limits=limits))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("image", r"its image cannot be pulled \(ImagePullBackOff\): Back-off pulling image .*pull_secret="),
        ("secret", r'cannot start \(CreateContainerConfigError\): secret "hub" not found'),
        (
            "unschedulable",
            r"0 of 2 pods run after 2 s; pod .* no node of the cluster takes it: 0/3 nodes are",
        ),
        ("no-pods", r"has no pods after 1 s; FailedCreatePod: pods is forbidden: violates PodSecurity"),
    ],
)
def test_pods_that_do_not_run_end_the_wait(fault: str, told: str, cluster: Cluster) -> None:
    cluster.fault(fault)
    with pytest.raises(LaunchError, match=told):
        train_on_kubernetes(cluster.options("print('hi')\n"))
    assert cluster.left() == []


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("forbidden", "namespace prod: jo may not create pytorchjobs there; take one of yours"),
        ("no-crd", "knows no PyTorchJob: Kubeflow's training operator 1.9 is not installed"),
        ("no-context", "kubectl has no cluster to talk to; choose one"),
        ("no-namespace", "namespace prod: there is none in this cluster; kubectl create namespace prod"),
        ("unreachable", r"the cluster does not answer \(dial tcp 192.0.2.1:6443: i/o timeout\)"),
        ("unauthorized", "does not know you any more"),
        ("denied", "the cluster's operator refused the job: spec.pytorchReplicaSpecs: Required value"),
    ],
)
def test_a_refusal_is_one_clear_line(fault: str, told: str, cluster: Cluster) -> None:
    cluster.fault(fault)
    with pytest.raises(LaunchError, match=told) as caught:
        train_on_kubernetes(cluster.options("print('hi')\n"))
    assert "\n" not in str(caught.value)
    assert not cluster.runs.exists()


def test_without_kubectl_it_says_where_to_get_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LaunchError, match="kubectl is not on this machine's PATH; install it"):
        train_on_kubernetes(cluster.options("print('hi')\n"))


def test_what_cannot_be_deleted_is_said(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    options = cluster.options(f"open({str(cluster.state / 'fault')!r}, 'w').write('no-delete')\n")
    assert train_on_kubernetes(options) == 0
    said = capsys.readouterr().out
    assert "not deleted: the cluster does not answer" in said
    names = said.partition("delete it by hand: kubectl delete ")[2].split()[:2]
    cluster.fault("")
    subprocess.run(["kubectl", "delete", *names], check=True, capture_output=True)
    assert cluster.left() == []

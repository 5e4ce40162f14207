"""Jobs and settings for tests of the Kubernetes launcher."""

from __future__ import annotations

from pathlib import Path

from run.job import TrainJob
from run.launchers.pod_settings import KubernetesSettings
from run.program import WORK_FOLDER, Program, recipe_program

RUN_ID = "20261121-101500-run_qa-ab12"
SMALL = KubernetesSettings("registry.example.com/clusterctl:native")
FULL = KubernetesSettings(
    image="registry.example.com/clusterctl:native",
    nodes=4,
    namespace="ml",
    ppn=2,
    cpu=240,
    memory_gib=128,
    shm_gib=8,
    volume="transformers-pvc",
    mount="/tmp/pvc-mount",
    node_selector={"node-type": "gnr"},
    restarts=10,
    pull_secret="registry",
    environment={"LOGLEVEL": "INFO", "PROMPT": "costs $(HOME)"},
    secrets={"HF_TOKEN": "hub/token"},
)
"""As in Hugging Face's guide to distributed CPU training: four pods of 240 CPUs, a claim, a node's label."""


def recipe_job() -> TrainJob:
    args = ("--num_train_epochs", "2", "--doc_stride", "128", "--output_dir", "output")
    return TrainJob(recipe_program("run_qa"), RUN_ID, args)


def own_job(folder: Path) -> TrainJob:
    """A script with two files beside it, one of them no text."""
    contents = {"train.py": b"print('hi')\n", "data/words.txt": b"a\nb\n", "model.bin": b"\xff\xfe\x00"}
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    files = {f"{WORK_FOLDER}/{name}": folder / name for name in contents}
    program = Program("train", ("--folder", WORK_FOLDER, "train.py"), files, folder)
    return TrainJob(program, "20261121-101500-train-cd34", ("--epochs", "1"), uploads=files)

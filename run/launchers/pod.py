"""The parts of a pod that both kinds of job have in common. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from run.job import OUTPUT_FOLDER, TrainJob
from run.launchers.pod_files import FILES_FOLDER, file_items
from run.launchers.pod_settings import SHARED_MEMORY, WORKSPACE, KubernetesSettings
from run.rank import TCMALLOC_SETTINGS

Manifest = Mapping[str, Any]
MOST_NAME = 45
"""Letters of a job's name: a pod's, "NAME-node-0-999-abcde", has to be a label of 63."""


def job_name(run_id: str) -> str:
    """The run's id as Kubernetes takes names.

    >>> job_name("20261121-101500-run_qa-ab12")
    'train-20261121-101500-run-qa-ab12'
    """
    name = re.sub("[^a-z0-9-]", "-", f"train-{run_id}".lower())
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 5].rstrip('-')}-{name[-4:]}"


def files_name(job: TrainJob) -> str:
    """Of the ConfigMap."""
    return f"{job_name(job.run_id)}-files"


def job_metadata(job: TrainJob, settings: KubernetesSettings) -> Manifest:
    namespace = {"namespace": settings.namespace} if settings.namespace else {}
    return {"name": job_name(job.run_id), **namespace, "labels": labels(job)}


def labels(job: TrainJob) -> Mapping[str, str]:
    return {"app.kubernetes.io/managed-by": "clusterctl", "clusterctl/run": job.run_id}


def pod_metadata(job: TrainJob) -> Manifest:
    # A mesh's sidecar would outlive the ranks, and the job never end.
    return {"labels": labels(job), "annotations": {"sidecar.istio.io/inject": "false"}}


def pod_command(job: TrainJob, settings: KubernetesSettings) -> tuple[str, ...]:
    """What a pod runs: torchrun, a rank.py for each rank, and in that the program; its files first."""
    start = tuple(
        _literal(arg)
        for arg in (
            "torchrun",
            f"--nproc-per-node={settings.ppn}",
            f"--max-restarts={settings.restarts}",
            f"{WORKSPACE}/rank.py",
            *job.program.command,
            *_arguments(job, settings),
        )
    )
    if not job.uploads:
        return start
    # Not the mount itself: it is read-only, and a program may write beside its files. * leaves out ..data.
    lay = f'cp -RL {FILES_FOLDER}/* {WORKSPACE}/ && exec "$@"'
    return ("sh", "-c", lay, "sh", *start)


def _literal(text: str) -> str:
    """As Kubernetes leaves it alone."""
    return text.replace("$(", "$$(")


def _arguments(job: TrainJob, settings: KubernetesSettings) -> tuple[str, ...]:
    """A recipe's output goes to the volume, where it outlives the pods."""
    is_recipes = job.script_args[-2:] == ("--output_dir", OUTPUT_FOLDER)
    if not settings.volume or not is_recipes:
        return job.script_args
    return (*job.script_args[:-1], output_folder(job, settings))


def output_folder(job: TrainJob, settings: KubernetesSettings) -> str:
    """Where a recipe leaves its model: on the volume, or in the pod of rank 0 where there is none."""
    base = settings.mount.rstrip("/") if settings.volume else WORKSPACE
    return f"{base}/{job_name(job.run_id)}/{OUTPUT_FOLDER}" if settings.volume else f"{base}/{OUTPUT_FOLDER}"


def pod_environment(job: TrainJob, settings: KubernetesSettings) -> list[Manifest]:
    plain = {
        "CLUSTERCTL_RUN_ID": job.run_id,
        "CLUSTERCTL_RANKS": str(settings.nodes * settings.ppn),
        "CLUSTERCTL_RENDEZVOUS_TIMEOUT_S": f"{job.rendezvous_timeout_s:.0f}",
        "OMP_NUM_THREADS": str(settings.threads_a_rank),
        **_preloaded(settings),
        **({"HF_HOME": f"{settings.mount.rstrip('/')}/huggingface"} if settings.volume else {}),
        **job.environment,
        **settings.environment,
    }
    address = {"name": "PET_LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [
        *({"name": name, "value": _literal(value)} for name, value in plain.items()),
        address,
        *(_from_secret(name, place) for name, place in settings.secrets.items()),
    ]


def _preloaded(settings: KubernetesSettings) -> Mapping[str, str]:
    """KMP_AFFINITY is left alone: where a kubelet gives no cores, all pods of a node would take the same."""
    if not settings.preload:
        return {}
    found = {"LD_PRELOAD": ":".join(settings.preload)}
    if any("tcmalloc" in path for path in settings.preload):
        found |= TCMALLOC_SETTINGS
    if any("iomp" in path for path in settings.preload):
        found["KMP_BLOCKTIME"] = "1"
    return found


def _from_secret(name: str, place: str) -> Manifest:
    secret, key = place.split("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def pod_resources(settings: KubernetesSettings) -> Manifest:
    amounts = {"cpu": str(settings.cpu), "memory": _quantity(settings.memory_gib)}
    return {"requests": amounts, "limits": dict(amounts)}


def _quantity(gib: float) -> str:
    """
    >>> _quantity(16), _quantity(0.5)
    ('16Gi', '512Mi')
    """
    return f"{gib:.0f}Gi" if gib == int(gib) else f"{gib * 1024:.0f}Mi"


def pod_placing(settings: KubernetesSettings) -> dict[str, Any]:
    """Where pods may run, with which rights, and how their image is fetched."""
    rights = {"runAsNonRoot": True, "runAsUser": settings.user_id, "fsGroup": settings.user_id}
    security = {**rights, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        **({"nodeSelector": dict(settings.node_selector)} if settings.node_selector else {}),
        **({"imagePullSecrets": [{"name": settings.pull_secret}]} if settings.pull_secret else {}),
        **({"securityContext": security} if settings.user_id is not None else {}),
    }


def container_rights(settings: KubernetesSettings) -> dict[str, Any]:
    """What the Pod Security Standard `restricted` asks of a container."""
    if settings.user_id is None:
        return {}
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


def pod_mounts(job: TrainJob, settings: KubernetesSettings) -> list[Manifest]:
    volume = [{"name": "data", "mountPath": settings.mount}] if settings.volume else []
    files = [{"name": "files", "mountPath": FILES_FOLDER, "readOnly": True}] if job.uploads else []
    return [{"name": "dshm", "mountPath": SHARED_MEMORY}, *volume, *files]


def pod_volumes(job: TrainJob, settings: KubernetesSettings) -> list[Manifest]:
    shm = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": _quantity(settings.shm_gib)}}
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": settings.volume}}
    files = {
        "name": "files",
        "configMap": {"name": files_name(job), "items": [*file_items(job)]},
    }
    return [shm, *([claim] if settings.volume else []), *([files] if job.uploads else [])]

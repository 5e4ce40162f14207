"""A job and settings -> manifests for Kubeflow: PyTorchJob v1 and TrainJob v2. Pure.

What the two operators do (kubeflow/training-operator 1.9, kubeflow/trainer 2.2), and what follows from it:

1. Both tell torchrun where to meet by PET_* variables, which its own options overrule: ranks a pod and
   restarts are options here, nodes and the meeting point are the operator's.
2. A PyTorchJob with an elastic policy needs no master: the first worker's service is the meeting point. It
   counts as succeeded as soon as any worker has, when rank 0 may still be writing: so no pod is cleaned up
   before all have ended (cleanPodPolicy None), and whoever follows waits for them.
3. A restart policy in a PyTorchJob's pod template is overwritten by the replicas': it stands there alone.
4. A TrainJob sets image, command, environment and resources of its runtime's container `node`; all else is
   a patch of the runtime, which allows volumes and node selectors, no host's network and no elastic range.
5. Whole cores come from the kubelet's static CPU manager, to pods whose requests equal their limits in whole
   CPUs (https://kubernetes.io/docs/tasks/administer-cluster/cpu-management-policies/).
6. An agent tells others its host name unless PET_LOCAL_ADDR says an address: the pod's own is given.
7. $(NAME) in a command is replaced by a variable of the container; $$( is what stays $(.
"""

from __future__ import annotations

import yaml

from run.job import TrainJob
from run.launchers.pod import (
    Manifest,
    container_rights,
    files_name,
    job_metadata,
    job_name,
    pod_command,
    pod_environment,
    pod_metadata,
    pod_mounts,
    pod_placing,
    pod_resources,
    pod_volumes,
)
from run.launchers.pod_files import file_manifest
from run.launchers.pod_settings import WORKSPACE, KubernetesSettings, check, refuse_secrets_of

CLEANUP_AFTER_S = 86400
"""A PyTorchJob that nobody deleted, because the operator's machine ended, is gone a day after its end."""


def manifests(job: TrainJob, settings: KubernetesSettings, kind: str = "pytorchjob") -> tuple[Manifest, ...]:
    """All that is to be created, in this order: a ConfigMap where files go along, and the job.

    `kind` is one of KINDS. Raises SettingsError for settings that no cluster takes, a secret in the
    environment, and files that are too much to go along.
    """
    check(settings, kind)
    refuse_secrets_of(job)
    files = file_manifest(job, {**job_metadata(job, settings), "name": files_name(job)})
    made = _pytorch_job(job, settings) if kind == "pytorchjob" else _train_job(job, settings)
    return (*([files] if files else []), made)


def render(made: tuple[Manifest, ...]) -> str:
    """YAML documents, as `kubectl create -f -` takes them."""
    return yaml.safe_dump_all(made, sort_keys=False, explicit_start=True, width=100)


def _pytorch_job(job: TrainJob, settings: KubernetesSettings) -> Manifest:
    # A pod that failed begins anew where its ranks may; torchrun counts for its own ranks alone.
    policy = "OnFailure" if settings.restarts else "Never"
    limit = {"backoffLimit": settings.restarts} if settings.restarts else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": job_metadata(job, settings),
        "spec": {
            "nprocPerNode": str(settings.ppn),
            "runPolicy": {
                "cleanPodPolicy": "None",
                "ttlSecondsAfterFinished": CLEANUP_AFTER_S,
                **limit,
            },
            "elasticPolicy": {
                "rdzvBackend": "c10d",
                "rdzvId": job_name(job.run_id),
                "minReplicas": settings.least_nodes,
                "maxReplicas": settings.most_nodes,
                "maxRestarts": settings.restarts,
            },
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": settings.nodes,
                    "restartPolicy": policy,
                    "template": _pod_template(job, settings),
                }
            },
        },
    }


def _pod_template(job: TrainJob, settings: KubernetesSettings) -> Manifest:
    # With the host's network, names of the cluster are still to be found.
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if settings.host_network else {}
    container = {
        "name": "pytorch",
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "workingDir": WORKSPACE,
        "command": list(pod_command(job, settings)),
        "env": pod_environment(job, settings),
        "resources": pod_resources(settings),
        "volumeMounts": pod_mounts(job, settings),
        **container_rights(settings),
    }
    spec = {
        **network,
        **pod_placing(settings),
        "containers": [container],
        "volumes": pod_volumes(job, settings),
    }
    return {"metadata": pod_metadata(job), "spec": spec}


def _train_job(job: TrainJob, settings: KubernetesSettings) -> Manifest:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": job_metadata(job, settings),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": settings.runtime,
            },
            "trainer": {
                "image": settings.image,
                "command": list(pod_command(job, settings)),
                "env": pod_environment(job, settings),
                "numNodes": settings.nodes,
                "numProcPerNode": settings.ppn,
                "resourcesPerNode": pod_resources(settings),
            },
            "runtimePatches": [_runtime_patch(job, settings)],
        },
    }


def _runtime_patch(job: TrainJob, settings: KubernetesSettings) -> Manifest:
    container = {"name": "node", "volumeMounts": pod_mounts(job, settings), **container_rights(settings)}
    pod = {
        "metadata": pod_metadata(job),
        "spec": {**pod_placing(settings), "containers": [container], "volumes": pod_volumes(job, settings)},
    }
    replicated = {"name": "node", "template": {"spec": {"template": pod}}}
    return {
        "manager": "clusterctl",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
    }

"""What may be said of a job on Kubernetes, and what of it no cluster would take. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from provision.errors import SettingsError
from run.job import TrainJob

WORKSPACE = "/workspace"
"""Of images that `clusterctl image` describes: rank.py, the recipes, and the user that owns them."""
USER_ID = 1000
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - gloo and data loaders want it large, a container's own is 64 MiB
TCMALLOC = "/opt/clusterctl/lib/libtcmalloc.so"
IOMP = "/opt/clusterctl/lib/libiomp5.so"
KINDS = ("pytorchjob", "trainjob")
RESERVED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SECRET_WORDS = {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS", "KEY", "APIKEY"}


@dataclass(frozen=True)
class KubernetesSettings:
    """Where and how large. `nodes` is the number of pods, `cpu` and `memory_gib` are for each.

    `min_nodes` and `max_nodes` make a PyTorchJob elastic. `volume` is a PersistentVolumeClaim, mounted at
    `mount`, that every node can write; without one the model stays in a pod and is lost. `preload` are
    libraries in the image. `secrets` maps a variable to "SECRET/KEY" of a Secret that is there. `user_id` is
    whom the image runs as; None leaves that to the image. None for `threads` means cpu / ppn, for `namespace`
    kubectl's own. `runtime` is the ClusterTrainingRuntime of a TrainJob.
    """

    image: str
    nodes: int = 2
    namespace: str | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    ppn: int = 1
    cpu: int = 4
    memory_gib: float = 16
    threads: int | None = None
    shm_gib: float = 1
    volume: str | None = None
    mount: str = "/data"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = (TCMALLOC, IOMP)
    restarts: int = 0
    host_network: bool = False
    pull_secret: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    user_id: int | None = USER_ID
    runtime: str = "torch-distributed"

    @property
    def least_nodes(self) -> int:
        return self.min_nodes or self.nodes

    @property
    def most_nodes(self) -> int:
        return self.max_nodes or self.nodes

    @property
    def is_elastic(self) -> bool:
        return self.least_nodes != self.most_nodes

    @property
    def threads_a_rank(self) -> int:
        return self.threads or max(1, self.cpu // self.ppn)


def check(settings: KubernetesSettings, kind: str = "pytorchjob") -> None:
    """Raises SettingsError for the first thing that is wrong."""
    for problem in (
        *_wrong_counts(settings),
        *_wrong_names(settings),
        *_wrong_environment(settings),
        *_wrong_kind(settings, kind),
    ):
        raise SettingsError(problem)


def _wrong_counts(settings: KubernetesSettings) -> Iterator[str]:
    least, most = settings.least_nodes, settings.most_nodes
    if settings.nodes < 1 or settings.ppn < 1 or settings.restarts < 0:
        yield "nodes and ranks count from 1, restarts from 0"
    if not 1 <= least <= settings.nodes <= most:
        yield (
            f"{least}:{most} nodes, beginning with {settings.nodes}, is no range; give the smaller number "
            "first, and begin between them"
        )
    if settings.cpu < 1 or settings.cpu != int(settings.cpu):
        yield f"{settings.cpu} CPUs a pod: only whole ones are given to a pod alone; give 1 or more"
    if settings.ppn > settings.cpu:
        yield f"{settings.ppn} ranks in a pod need {settings.ppn} CPUs, it has {settings.cpu}; lower --ppn"
    if settings.ppn * settings.threads_a_rank > settings.cpu:
        yield (
            f"{settings.ppn} ranks x {settings.threads_a_rank} threads need "
            f"{settings.ppn * settings.threads_a_rank} CPUs, a pod has {settings.cpu}; lower --threads"
        )
    if settings.memory_gib <= settings.shm_gib or settings.shm_gib <= 0:
        yield (
            f"{SHARED_MEMORY} of {settings.shm_gib:g} GiB is part of the pod's {settings.memory_gib:g} GiB; "
            "give more memory or less of it"
        )


def _wrong_names(settings: KubernetesSettings) -> Iterator[str]:
    if not settings.image.strip() or " " in settings.image:
        yield "no image for the pods; `clusterctl image` describes one, give its name in your registry"
    names = {"namespace": settings.namespace, "volume": settings.volume, "pull secret": settings.pull_secret}
    for noun, name in names.items():
        if name is not None and not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", name):
            yield f"{noun} {name!r} is no name of Kubernetes: small letters, digits and -"
    if not settings.mount.startswith("/") or settings.mount.rstrip("/") in ("", SHARED_MEMORY, WORKSPACE):
        yield f"the volume cannot be mounted at {settings.mount}; choose another folder, as /data"


def _wrong_environment(settings: KubernetesSettings) -> Iterator[str]:
    for name in settings.environment:
        if _SECRET_WORDS & set(name.upper().split("_")):
            yield (
                f"{name} looks like a secret, and all who may read the job would read it: put it into a "
                f"Secret, and --set secrets.{name}=SECRET/KEY"
            )
    for name in (*settings.environment, *settings.secrets):
        if name in RESERVED or name.startswith("PET_"):
            yield f"{name} is set by the operator and by torchrun for each rank; leave it out"
    for name, place in settings.secrets.items():
        if place.count("/") != 1 or not all(place.split("/")):
            yield f"secrets.{name}={place}: give the Secret's name and its key, as {name}=SECRET/KEY"


def refuse_secrets_of(job: TrainJob) -> None:
    for arg in job.script_args:
        words = set(arg.partition("=")[0].strip("-").upper().replace("-", "_").split("_"))
        if arg.startswith("--") and words & (_SECRET_WORDS - {"KEY"}):
            raise SettingsError(
                f"{arg.partition('=')[0]} would stand in the job for all who may read it; put the secret "
                "into a variable: --set secrets.NAME=SECRET/KEY (Hugging Face reads HF_TOKEN)"
            )


def _wrong_kind(settings: KubernetesSettings, kind: str) -> Iterator[str]:
    if kind not in KINDS:
        yield f"no kind {kind!r} of job; there is {', '.join(KINDS)}"
    if kind == "trainjob" and settings.is_elastic:
        yield "a TrainJob is not elastic; leave the range out, or take --kind pytorchjob"
    if kind == "trainjob" and settings.host_network:
        yield (
            "a TrainJob cannot ask for the host's network; put it into a TrainingRuntime of yours, or take "
            "--kind pytorchjob"
        )

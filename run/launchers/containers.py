"""A container a node, by docker or podman: the command line that starts it, and that which removes it. Pure.

As in the guide to containers with a vendor's backend (`docker run --net=host --shm-size=8g
--ulimit memlock=-1:-1 --device=/dev/infiniband -e MASTER_ADDR ... -e NPROC_PER_NODE`), where RANK and
WORLD_SIZE count containers, and the launcher inside counts ranks: torchrun sets both anew for each. Added:

1. A name and a label with the run's id, so that a sweep finds the container when nobody is left to end it.
2. The node's CPUs as in its layout: the container sees no others, so nothing in it can take them.
3. An init process, which ends what a killed launcher leaves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provision.errors import SettingsError
from run.layout import NodeLayout, ranges

ENGINES = ("docker", "podman")
LABEL = "clusterctl.run"


@dataclass(frozen=True)
class ContainerSettings:
    """How containers are started. `volumes` maps paths of the node to those inside, which may end in ":ro".

    `engine_options` come before the word `run`, `run_options` after it. `lock_memory` lifts the limit on
    locked memory, for RDMA. `is_rootfs`: the image is a folder of the node (podman alone), ":O" at its end
    keeps it unchanged.
    """

    image: str
    engine: str = "docker"
    shm_gib: float = 8
    lock_memory: bool = True
    devices: tuple[str, ...] = ()
    volumes: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    engine_options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = ()
    use_init: bool = True
    is_rootfs: bool = False


@dataclass(frozen=True)
class ContainerPlace:
    """One container of a run: the node's number among `nodes`, and where all meet."""

    run_id: str
    node_rank: int
    nodes: int
    master_addr: str
    master_port: int


def container_argv(
    settings: ContainerSettings,
    layout: NodeLayout,
    place: ContainerPlace,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """`docker run ...` for one node, in the foreground: it ends with the command's exit code.

    Raises SettingsError for an engine that is unknown, or cannot do what is asked.
    """
    _check(settings)
    variables = {**_variables(layout, place), **(environment or {})}
    return (
        settings.engine,
        *settings.engine_options,
        "run",
        *settings.run_options,
        "--rm",
        *(["--init"] if settings.use_init else []),
        *("--name", container_name(place.run_id, layout.node)),
        *("--label", f"{LABEL}={place.run_id}"),
        *("--network", "host"),
        *("--shm-size", f"{settings.shm_gib * 1024:.0f}m"),
        *(["--ulimit", "memlock=-1:-1"] if settings.lock_memory else []),
        *("--cpuset-cpus", _cpus(layout)),
        *(part for device in settings.devices for part in ("--device", device)),
        *(part for here, there in settings.volumes.items() for part in ("--volume", f"{here}:{there}")),
        *(["--user", settings.user] if settings.user else []),
        *(["--workdir", settings.workdir] if settings.workdir else []),
        *(part for name, value in variables.items() for part in ("--env", f"{name}={value}")),
        *(["--rootfs"] if settings.is_rootfs else []),
        settings.image,
        *command,
    )


def removal_argv(engine: str, run_id: str, node: str) -> tuple[str, ...]:
    """Ends and removes a node's container of a run; fails harmlessly where there is none."""
    return (engine, "rm", "--force", container_name(run_id, node))


def listing_argv(engine: str, run_id: str) -> tuple[str, ...]:
    """The names of a run's containers that are left on a node, a line each."""
    return (engine, "ps", "--all", "--filter", f"label={LABEL}={run_id}", "--format", "{{.Names}}")


def container_name(run_id: str, node: str) -> str:
    """
    >>> container_name("20261121-101500-run_qa-ab12", "node1")
    'clusterctl-20261121-101500-run_qa-ab12-node1'
    """
    return re.sub("[^a-zA-Z0-9_.-]", "-", f"clusterctl-{run_id}-{node}")


_REMEDIES = (
    (
        r"Unable to find image|Trying to pull|Copying blob|initializing source|pull access denied"
        r"|manifest unknown|[Nn]o such image",
        "bring the image there first, by pull or load: `clusterctl exec -- podman pull IMAGE`",
    ),
    (r"cannot be started: No such file", "install that engine there, or choose the other: --set engine=..."),
    (r"Cannot connect to the Docker daemon|docker\.sock", "start Docker there, and let its user use it"),
    (r"rlimit", "without root it cannot lift the limit on locked memory: --set lock_memory=false"),
)


def remedy(said: str) -> str:
    """What to do about an engine that said so and started no container; "" where that is not known.

    >>> remedy("Error: initializing source docker://localhost/train:1: connection refused")
    'bring the image there first, by pull or load: `clusterctl exec -- podman pull IMAGE`'
    >>> remedy("Killed")
    ''
    """
    return next((what for pattern, what in _REMEDIES if re.search(pattern, said)), "")


def _check(settings: ContainerSettings) -> None:
    if settings.engine not in ENGINES:
        raise SettingsError(f"no container engine {settings.engine!r}; there is {', '.join(ENGINES)}")
    if settings.is_rootfs and settings.engine != "podman":
        raise SettingsError("a folder as image is podman's alone; build an image: `clusterctl image`")
    if settings.shm_gib <= 0:
        raise SettingsError(f"--shm-size {settings.shm_gib:g}: more than 0 GiB")
    for here in settings.volumes:
        if not here.startswith("/"):
            raise SettingsError(f"the volume {here} needs its whole path on the nodes")


def _variables(layout: NodeLayout, place: ContainerPlace) -> dict[str, str]:
    return {
        "CLUSTERCTL_RUN_ID": place.run_id,
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
        "RANK": str(place.node_rank),
        "WORLD_SIZE": str(place.nodes),
        "NPROC_PER_NODE": str(layout.ppn),
    }


def _cpus(layout: NodeLayout) -> str:
    return ranges([cpu for rank in layout.ranks for cpu in rank.cpus])

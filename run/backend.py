"""Which backend of torch.distributed carries a run's collectives, and what its ranks need for it. Pure.

The ranks learn it from their environment: CLUSTERCTL_BACKEND, and CLUSTERCTL_BACKEND_MODULE for a plug-in, a
module that registers the backend when it is imported, as Intel's oneCCL bindings and vendors' do. The recipes
take these before their own --ddp_backend; somebody's own script imports the module itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.errors import SettingsError
from provision.facts import NodeFacts
from run.job import TrainJob
from run.layout import NodeLayout, worker_cores

GLOO, CCL, AUTO = "gloo", "ccl", "auto"
KNOWN = (GLOO, CCL, AUTO)
CCL_PACKAGE = "oneccl-bind-pt"
PLUGIN_FOLDER = "lib"
"""In the run folder; rank.py has it on PYTHONPATH."""
_ARGUMENTS = ("--ddp_backend", "--xpu_backend")


@dataclass(frozen=True)
class Backend:
    """`name` as torch knows it, or "auto": ccl where all ranks have it, else gloo; "" is the program's own.

    `module` registers it when imported on the nodes; `uploads` brings it there, a file of this machine.
    """

    name: str = ""
    module: str | None = None
    uploads: Mapping[str, Path] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        named = {"CLUSTERCTL_BACKEND": self.name} if self.name else {}
        return {**named, **({"CLUSTERCTL_BACKEND_MODULE": self.module} if self.module else {})}


def find_backend(name: str | None, module: str | None, script_args: Sequence[str] = ()) -> Backend:
    """What --backend and --backend-module ask for, or else --ddp_backend among the program's arguments.

    Raises SettingsError: two that differ, an unknown one without a module, a module's file that is not here.
    """
    in_args = _among(script_args)
    if name and in_args and name != in_args:
        raise SettingsError(f"--backend {name} and --ddp_backend {in_args}: say one of them")
    if module and not name:
        raise SettingsError(f"--backend-module {module}: which backend does it register? add --backend NAME")
    if name and not module and name not in KNOWN:
        raise SettingsError(
            f"no backend {name!r}: there is {', '.join(KNOWN)}; one that a module registers needs "
            "--backend-module"
        )
    if not module:
        return Backend(name or (in_args if in_args in KNOWN else ""))
    if not module.endswith(".py"):
        return Backend(name or "", module)
    path = Path(module).expanduser()
    if not path.is_file():
        raise SettingsError(f"--backend-module {module}: no such file on this machine")
    if not path.stem.isidentifier():
        raise SettingsError(f"--backend-module {module}: {path.stem!r} is no module's name")
    return Backend(name or "", path.stem, {f"{PLUGIN_FOLDER}/{path.name}": path.resolve()})


def module_from_anywhere(module: str | None) -> str | None:
    """The module as it means the same in any folder: a file by its whole path."""
    is_file = module is not None and module.endswith(".py")
    return str(Path(module).expanduser().resolve()) if module is not None and is_file else module


def _among(args: Sequence[str]) -> str:
    """The backend among a program's arguments.

    >>> _among(["--seed", "1", "--ddp_backend", "ccl"]), _among(["--xpu_backend=ccl"]), _among([])
    ('ccl', 'ccl', '')
    """
    found = ""
    for arg, after in zip(args, (*args[1:], ""), strict=False):
        option, equals, value = arg.partition("=")
        if option in _ARGUMENTS:
            found = value if equals else after
    return found


def uses_ccl(backend: Backend, packages: Mapping[str, str], stack: str) -> bool:
    """Whether the ranks are to have oneCCL's workers. `packages` are those of the stack, by name.

    Raises SettingsError where ccl was asked for and the stack has none: nothing falls back silently.
    """
    if backend.module or backend.name not in (CCL, AUTO):
        return False
    if backend.name == CCL and CCL_PACKAGE not in packages:
        raise SettingsError(
            f"backend ccl: stack {stack} has no {CCL_PACKAGE}; take stack: intel, or --backend auto: ccl "
            "where it is, else gloo"
        )
    return CCL_PACKAGE in packages


def with_backend(job: TrainJob, backend: Backend) -> TrainJob:
    """The job whose ranks know their backend, and have its module."""
    return replace(
        job,
        environment={**job.environment, **backend.environment},
        uploads={**job.uploads, **backend.uploads},
    )


def with_ccl_workers(
    job: TrainJob, layouts: Mapping[str, NodeLayout], facts: Mapping[str, NodeFacts]
) -> tuple[TrainJob, dict[str, NodeLayout]]:
    """The job and layouts of a run under oneCCL: cores for its workers, and each node's network interface."""
    made = {node: worker_cores(layout) for node, layout in layouts.items()}
    per_node = {
        node: {**job.node_environment.get(node, {}), **ccl_environment(workers, facts[node].interface)}
        for node, (_, workers) in made.items()
    }
    return replace(job, node_environment=per_node), {node: layout for node, (layout, _) in made.items()}


def ccl_environment(workers: Sequence[int], interface: str) -> dict[str, str]:
    """What oneCCL reads on a node. `workers` are its workers' CPUs, one for each local rank, in their order.

    >>> ccl_environment((11, 23), "eth0")["CCL_WORKER_AFFINITY"]
    '11,23'
    """
    return {
        "CCL_WORKER_COUNT": "1",
        "CCL_WORKER_AFFINITY": ",".join(map(str, workers)),
        # https://github.com/uxlfoundation/oneCCL, doc/rst/source/env-variables.rst: else the first interface.
        "CCL_KVS_IFACE": interface,
        "FI_TCP_IFACE": interface,
    }

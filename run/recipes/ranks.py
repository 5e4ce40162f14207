"""One rank among others: its place, the way to the rest, and what it tells the launcher.

Lines on standard output that begin with "@clusterctl " carry one JSON object for the launcher that
follows the run; everything else there is for people. torch is imported where it is first needed:
it takes seconds, and an early SIGTERM or a wrong argument must not wait for it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

Result = TypeVar("Result")

COLLECTIVE_TIMEOUT_S = 600
"""A lost node otherwise goes unnoticed for 30 minutes, torch's default."""


class UserError(Exception):
    """What the user can mend. The text is one line: what, where, what next."""

    exit_code = 1


class SilentExit(Exception):
    """Another rank has said why this run ends."""

    exit_code = 1


def emit(event: str, **fields: object) -> None:
    """One line for the launcher; a single write, so that lines of several ranks do not mix."""
    sys.stdout.write(f"@clusterctl {json.dumps({'event': event, **fields})}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Place:
    """This process among all: `rank` of `world_size`, `local_rank` on its node.

    `planned` is how many there were to be: an elastic run may have lost some.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    launched: bool = False
    planned: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def emit(self, event: str, **fields: object) -> None:
        """An event that one rank reports for all."""
        if self.leads:
            emit(event, **fields)


def read_place(environ: Mapping[str, str]) -> Place:
    """Place from RANK, WORLD_SIZE, LOCAL_RANK and CLUSTERCTL_RANKS; a single process where RANK is absent.

    Raises UserError under a bare mpirun of several ranks, where each would train alone.
    """
    if "RANK" not in environ:
        for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"):
            if int(environ.get(name, "1")) > 1:
                raise UserError(
                    f"{name}={environ[name]} but RANK is not set: each rank would train alone; start the "
                    "recipe with clusterctl train or torchrun, or set RANK, WORLD_SIZE and MASTER_ADDR"
                )
        return Place()
    try:
        rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        planned = int(environ.get("CLUSTERCTL_RANKS", world_size))
        return Place(rank, world_size, int(environ.get("LOCAL_RANK", "0")), launched=True, planned=planned)
    except (KeyError, ValueError) as error:
        raise UserError(f"RANK, WORLD_SIZE, LOCAL_RANK: {error}; set them to whole numbers") from None


def leave_on_signals() -> None:
    """From here on SIGTERM and SIGINT end the process at once with exit code 128 + number.

    A thread takes them: a handler would wait until the main thread is back from a collective. Call
    it before other threads exist, which inherit the mask. Files are renamed into place, so what is
    cut off here leaves no half result.
    """
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def wait() -> None:
        number = signal.sigwait(signals)
        os._exit(128 + number)

    threading.Thread(target=wait, daemon=True).start()


# --- the group ---------------------------------------------------------------------------------


def join_group(place: Place, backend: str, environ: Mapping[str, str]) -> None:
    """Meet the other ranks at MASTER_ADDR:MASTER_PORT, then say so with the event "ready".

    The launcher's CLUSTERCTL_BACKEND wins over `backend`; "auto" is ccl where all ranks have it, else gloo.
    Raises UserError that names the ranks which did not come in CLUSTERCTL_RENDEZVOUS_TIMEOUT_S, or says why
    there is no such backend.
    """
    if place.launched:
        limit = timedelta(seconds=float(environ.get("CLUSTERCTL_RENDEZVOUS_TIMEOUT_S", "120")))
        os.environ.setdefault("LOCAL_RANK", "0")
        wanted = environ.get("CLUSTERCTL_BACKEND") or backend
        if wanted == "auto":
            meet(place, "gloo", environ, limit)
            prefer_oneccl(place)
        else:
            import_backend(wanted, environ.get("CLUSTERCTL_BACKEND_MODULE"))
            meet(place, wanted, environ, limit)
    emit("ready", rank=place.rank, host=socket.gethostname())


ONECCL = ("oneccl_bindings_for_pytorch", "torch_ccl")
"""What registers "ccl" when imported: Intel's bindings, and by their name before torch 1.12."""


def import_backend(name: str, module: str | None) -> None:
    """Have torch know the backend: `module` registers it when imported. Raises UserError."""
    if module is not None:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever somebody's module raises
            raise UserError(
                f"backend {name}: module {module} cannot be imported "
                f"({type(error).__name__}: {first_line(error)}); every node needs it: install it there, or "
                "give the path of its file here"
            ) from None
    elif name == "ccl":
        import_oneccl()
    import torch.distributed as dist

    if name not in dist.Backend.backend_list:
        raise UserError(
            f"backend {name}: {module or 'torch'} registers none of that name; give the one that it does"
        )


def import_oneccl() -> None:
    """PyPI and torch > 2.8 lack it. Raises UserError; what it says when it is there and broken is shown."""
    problem = None
    for module in ONECCL:
        try:
            importlib.import_module(module)
            return
        except ModuleNotFoundError as error:
            problem = problem or (None if error.name == module else error)
        except (ImportError, OSError, RuntimeError) as error:
            problem = error
    why = (
        f"it cannot be imported ({first_line(problem)})" if problem else "no oneccl_bindings_for_pytorch here"
    )
    raise UserError(
        f"backend ccl: {why}; take backend gloo or auto, or the intel stack (torch 2.8) with "
        "oneccl_bind_pt from Intel's wheel index"
    )


def prefer_oneccl(place: Place) -> None:
    """In a group over gloo: go on over ccl where every rank has it, else say why not."""
    import torch.distributed as dist

    problem = None
    try:
        import_backend("ccl", None)
    except UserError as error:
        problem = str(error)
    lacking = [str(rank) for rank, each in enumerate(gather(place, problem)) if each]
    if lacking:
        place.emit("warning", text=f"backend auto: gloo, since rank {', '.join(lacking)} has no oneCCL")
        return
    store = dist.PrefixStore("ccl", dist.distributed_c10d._get_default_store())
    FORMER_GROUPS.append(dist.group.WORLD)
    dist.destroy_process_group()
    limit = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    dist.init_process_group("ccl", store=store, rank=place.rank, world_size=place.world_size, timeout=limit)


FORMER_GROUPS: list[Any] = []
"""Kept: a peer may still read from the connections of a group that this rank has left."""


def backend_in_use() -> str | None:
    """The backend of the group, as it was asked for; None without a group."""
    import torch.distributed as dist

    return dist.get_backend() if dist.is_initialized() else None


def meet(place: Place, backend: str, environ: Mapping[str, str], limit: timedelta) -> None:
    """The process group; `limit` holds for meeting, COLLECTIVE_TIMEOUT_S afterwards."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _set_pg_timeout

    address, port = environ.get("MASTER_ADDR", "127.0.0.1"), environ.get("MASTER_PORT", "29500")
    where = f"{address}:{port}"
    try:
        store = open_store(address, int(port), place, environ, limit)
        await_ranks(store, place, where, limit)
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world_size, timeout=limit
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"rank {place.rank} on {socket.gethostname()} found no group at {where} within "
            f"{limit.seconds} s ({first_line(error)}); check that rank 0 runs, that {where} is free "
            "and reachable, and GLOO_SOCKET_IFNAME"
        ) from None
    _set_pg_timeout(timedelta(seconds=COLLECTIVE_TIMEOUT_S))


def open_store(address: str, port: int, place: Place, environ: Mapping[str, str], limit: timedelta) -> Any:
    """Rank 0's store, or under torchrun its agents', which outlives a restart with all that is in it."""
    import torch.distributed as dist

    is_agents = environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    store = dist.TCPStore(
        address, port, place.world_size, place.leads and not is_agents, timeout=limit, wait_for_workers=False
    )
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt {attempt}", store) if is_agents else store


def await_ranks(store: Any, place: Place, where: str, limit: timedelta) -> None:
    """Wait until every rank has signed in at the store. Raises UserError that names the missing."""
    import torch.distributed as dist

    names = [f"arrived/{rank}" for rank in range(place.world_size)]
    store.set(names[place.rank], socket.gethostname())
    try:
        store.wait(names)
    except dist.DistStoreError:
        missing = [str(rank) for rank, name in enumerate(names) if not store.check([name])]
        raise UserError(
            f"rank {', '.join(missing)} of {place.world_size} did not reach {where} within "
            f"{limit.seconds} s; look at the first error of that rank, and at the network to its node"
        ) from None


def gather(place: Place, value: Result) -> list[Result]:
    """Every rank's value, in order of rank, on every rank."""
    if place.world_size == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * place.world_size
    dist.all_gather_object(values, value)
    return values


def scatter(place: Place, values: list[Result] | None) -> Result:
    """This rank's one of rank 0's `values`; other ranks pass None."""
    if place.world_size == 1:
        return values[0]
    import torch.distributed as dist

    received: list[Any] = [None]
    dist.scatter_object_list(received, values, src=0)
    return received[0]


def together(place: Place, action: Callable[[], Result], only_rank_0: bool = False) -> Result | None:
    """The action's result, once it went well on all ranks; None where it did not run.

    Where it raises UserError on some rank, that rank reports it and all ranks leave: without this
    the others would wait in the next collective and hide the cause under "connection closed".
    """
    result, problem = None, None
    try:
        if place.leads or not only_rank_0:
            result = action()
    except UserError as error:
        problem = str(error)
        report_error(place.rank, problem)
    if any(gather(place, problem)):
        raise SilentExit
    return result


def report_error(rank: int, text: str) -> None:
    emit("error", rank=rank, text=" ".join(text.split()))


def first_line(error: BaseException) -> str:
    """What an exception says, in one short line."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def leave(code: int) -> NoReturn:
    """End the process now: at shutdown gloo's and the tokenizer's threads can hang or print."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""The run folder on every node: made once where nodes share a home, and once fetched and taken away.

1. All nodes are sent the files at once, and mkdir decides: of nodes that have one home (NFS) the first makes
   the folder. No look from outside tells such nodes from others: devices, inodes and host names of two
   machines may be equal though their disks are not, or differ though their disks are one.
2. Those that find a folder sign in there, once all have unpacked. With this launch's token in it, it is a
   peer's; else it is another run's, and two runs never share a folder.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from provision.errors import ClusterctlError, LaunchError
from provision.host import Host
from provision.step import run_on_hosts
from run.interruption import STOPPED_CODE
from run.job import LaunchPlan
from run.parcel import head_parcel, parcel
from run.transfer import Unwanted, add, fetch, forget, join, prune, upload

Result = TypeVar("Result")
Folders = tuple[tuple[Host, ...], ...]
"""The hosts that see one folder, for each folder; the head is the first of the first ones."""


class Stopped(LaunchError):
    """The user stopped the run before it began."""

    exit_code = STOPPED_CODE


def bring(hosts: Sequence[Host], plan: LaunchPlan, stop_requests: Callable[[], int]) -> Folders:
    """The run folder on all nodes, the head's first.

    Raises the error of the first of them that has one, or Stopped; and leaves no folder behind then.
    """
    made: list[Host] = []
    try:
        makers = _unless_stopped(lambda: _bring(hosts, plan, made), hosts, stop_requests)
    except ClusterctlError as error:
        run_on_hosts(made, lambda host: forget(host, plan.run_id))
        if stop_requests():
            raise Stopped(
                "stopped before any rank was started; nothing of it is left on the nodes"
            ) from error
        raise
    grouped: dict[str, list[Host]] = {}
    for host in hosts:
        grouped.setdefault(makers[host.node.name], []).append(host)
    return tuple(map(tuple, grouped.values()))


def _unless_stopped(
    work: Callable[[], Result], hosts: Sequence[Host], stop_requests: Callable[[], int]
) -> Result:
    """What the work returned. Once the user asks to stop, the connections that it uses are closed under it:
    a large file may be on its way for hours.
    """
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(work)
        while not wait([doing], 0.2).done:
            if stop_requests():
                for host in hosts:
                    host.close()
        return doing.result()


def _bring(hosts: Sequence[Host], plan: LaunchPlan, made: list[Host]) -> dict[str, str]:
    """As _makers. Raises HostError."""
    makers = _makers(hosts, plan, secrets.token_hex(8), made)
    if plan.head_uploads:
        add(hosts[0], plan, head_parcel(plan))
    return makers


def _makers(hosts: Sequence[Host], plan: LaunchPlan, token: str, made: list[Host]) -> dict[str, str]:
    """Node -> the node that made the folder it sees; `made` is filled with the latter. Raises HostError."""
    files = parcel(plan)
    uploaded = run_on_hosts(hosts, lambda host: upload(host, plan, files, token))
    made += [host for host in hosts if uploaded[host.node.name] is True]
    _raise_first(uploaded.values())
    joined = run_on_hosts([host for host in hosts if host not in made], lambda host: join(host, plan, token))
    _raise_first(joined.values())
    return {host.node.name: host.node.name for host in made} | {
        node: maker for node, maker in joined.items() if isinstance(maker, str)
    }


def _raise_first(results: Iterable[object]) -> None:
    for result in results:
        if isinstance(result, ClusterctlError):
            raise result


@dataclass(frozen=True)
class Collected:
    """`missing` says why there are no logs of nodes; `unwanted` names nodes of which not all was fetched,
    because the user would not wait for it.
    """

    missing: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()


def collect(folders: Folders, plan: LaunchPlan, into: Path, stop_requests: Callable[[], int]) -> Collected:
    """Bring every folder's logs here, and the head's output.

    Where a node does not answer, the next one of its home does as well. The first request to stop ends the
    fetching of the output, the second that of the logs.
    """
    unwanted: list[str] = []

    def bring_logs(host: Host) -> None:
        fetch(host, plan.run_id, into, with_output=False, is_unwanted=lambda: stop_requests() > 1)

    def bring_all(host: Host) -> None:
        try:
            fetch(host, plan.run_id, into, with_output=True, is_unwanted=lambda: stop_requests() > 0)
        except Unwanted:
            unwanted.append(host.node.name)
            bring_logs(host)

    works = {members[0].node.name: (members, bring_logs) for members in folders}
    works[folders[0][0].node.name] = (folders[0], bring_all)
    results = run_on_hosts([members[0] for members in folders], lambda host: _by_any(*works[host.node.name]))
    unwanted += [node for node, each in results.items() if isinstance(each, Unwanted)]
    missing = [
        str(each)
        for each in results.values()
        if isinstance(each, ClusterctlError) and not isinstance(each, Unwanted)
    ]
    return Collected(tuple(missing), tuple(dict.fromkeys(unwanted)))


def _by_any(members: Sequence[Host], work: Callable[[Host], None]) -> None:
    """The work over the first of these hosts that answers. Raises the first one's error when none does."""
    problem: ClusterctlError | None = None
    for host in members:
        try:
            work(host)
            return
        except Unwanted:
            raise
        except ClusterctlError as error:
            problem = problem or error
    if problem:
        raise problem


def remove(folders: Folders, plan: LaunchPlan) -> None:
    """Each folder, unless it holds checkpoints."""
    run_on_hosts([members[0] for members in folders], lambda host: forget(host, plan.run_id))


def leave_what_was_made(folders: Folders, plan: LaunchPlan) -> None:
    """Take away what was brought: it may be large, and the next try brings it again."""
    run_on_hosts([members[0] for members in folders], lambda host: prune(host, plan.run_id))

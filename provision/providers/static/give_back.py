"""Giving back: a machine as it was found, apart from what its owner has changed since.

Root's part first and the sudo rule at its end, then the home and the way in at its end: cut off anywhere,
the next time goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from provision.errors import ClusterctlError, HostError, LoginRefused
from provision.host import SshHost, quoted
from provision.model import Cluster, Node
from provision.providers import Given, Progress, Written
from provision.providers.static.originals import (
    HOME_STORE,
    ROOT_STORE,
    Plan,
    Store,
    Touched,
    leave_script,
    parse_store,
    plan_return,
    touched_by_root,
    touched_in_home,
)
from provision.providers.static.sudo import drop_in

CONNECT_TIMEOUT_S = 10.0
FANOUT = 64


class Returning:
    """One giving back of some of a cluster's machines."""

    def __init__(self, cluster: Cluster, written: Written, progress: Progress, *, purge: bool) -> None:
        self._cluster = cluster
        self._written = written
        self._progress = progress
        self._purge = purge

    def all(self, node_names: Sequence[str], given: Given) -> Mapping[str, ClusterctlError]:
        """Returns why not, for those that are left."""
        nodes = [node for node in self._cluster.nodes if node.name in node_names]
        hosts = [SshHost(node, CONNECT_TIMEOUT_S) for node in nodes]
        problems: dict[str, ClusterctlError] = {}
        if not hosts:
            return problems
        try:
            with ThreadPoolExecutor(min(FANOUT, len(hosts))) as pool:
                # All are open before the first gives back: a shared home takes the key from all at once.
                opened = pool.map(self._opened, hosts)
                ready = []
                for host, error in zip(hosts, opened, strict=True):
                    if error is None:
                        ready.append(host)
                    else:
                        problems[host.node.name] = error
                for host, ended in zip(ready, pool.map(self._guarded, ready), strict=True):
                    if isinstance(ended, ClusterctlError):
                        problems[host.node.name] = ended
                    else:
                        given(host.node.name, ended)
        finally:
            for host in hosts:
                host.close()
        return problems

    def _opened(self, host: SshHost) -> ClusterctlError | None:
        self._progress(host.node.name, "giving back")
        try:
            host.run("true")
        except LoginRefused:
            return LoginRefused(
                host.node.name,
                "its sshd no longer takes this cluster's key: it was given back already, or somebody "
                "removed the key; `--forget` it",
            )
        except ClusterctlError as error:
            return error
        return None

    def _guarded(self, host: SshHost) -> tuple[str, ...] | ClusterctlError:
        """What a person should know of a machine that was given back."""
        try:
            home = host.run("cd && pwd").stdout.strip()
            notes = (*self._roots_part(host), *self._homes_part(host, home))
        except ClusterctlError as error:
            return error
        self._progress(host.node.name, "given back")
        return notes

    def _roots_part(self, host: SshHost) -> tuple[str, ...]:
        if not self._can_be_root(host):
            return ()
        store = self._leave(host, ROOT_STORE, touched_by_root(), sudo=True)
        plan = self._plan(store, touched_by_root(), self._written)
        last = [quoted("rm -f %s", drop_in(self._cluster.name))]
        if not store.users:
            last.insert(0, quoted("rm -rf %s", ROOT_STORE.rpartition("/")[0]))
        self._carry_out(host, (*plan.changes, *last), sudo=True)
        return plan.notes

    def _can_be_root(self, host: SshHost) -> bool:
        """False when root's part was given back before, and with it the way to be root.

        Raises HostError when root is refused and its part is still there.
        """
        script = 'sudo -n true 2> /dev/null || [ "$(id -u)" = 0 ] || { ls %s; exit 1; }'
        said = host.run(script, f"{ROOT_STORE}/users/{self._stamp(host.node)}", expect=(0, 1))
        if said.exit_code == 0:
            return True
        if said.stdout.strip():
            raise HostError(
                host.node.name,
                f"sudo asks for a password again ({drop_in(self._cluster.name)} is gone); it is as it was",
            )
        return False

    def _homes_part(self, host: SshHost, home: str) -> tuple[str, ...]:
        store_path = f"{home}/{HOME_STORE}"
        touched = [Touched(each.path.replace("~", home, 1), each.kind) for each in touched_in_home()]
        written = {path.replace("~", home, 1): lines for path, lines in self._written.items()}
        store = self._leave(host, store_path, touched, sudo=False)
        plan = self._plan(store, touched, written)
        first = () if store.users else (quoted("rm -rf %s", f"{home}/.clusterctl"),)
        self._carry_out(host, (*first, *plan.changes), sudo=False)
        return plan.notes

    def _leave(self, host: SshHost, path: str, touched: Sequence[Touched], *, sudo: bool) -> Store:
        said = host.run(leave_script(path, self._stamp(host.node), touched), sudo=sudo)
        try:
            return parse_store(said.stdout)
        except ValueError as error:
            raise HostError(host.node.name, f"its originals cannot be read: {error}") from None

    def _plan(self, store: Store, touched: Sequence[Touched], written: Written) -> Plan:
        return plan_return(store, touched, self._cluster.name, written, purge=self._purge)

    def _carry_out(self, host: SshHost, changes: Sequence[str], *, sudo: bool) -> None:
        # By stdin: a known_hosts may be longer than a command may be.
        script = "set -eu; umask 077\n" + "".join(f"{change}\n" for change in changes)
        host.run("exec sh -s", stdin=script.encode(), sudo=sudo)

    def _stamp(self, node: Node) -> str:
        return f"{node.name}.{self._cluster.name}"

"""ssh and exec: a shell on one node, one command on all of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from provision.errors import ClusterctlError
from provision.host import CommandResult, Host
from provision.step import run_on_hosts
from run.commands.common import open_hosts, print_json, standing_cluster

# ssh's own code for "no session", which scripts know.
NO_SESSION = 255


def ssh(name: str | None, node: str | None, command: Sequence[str]) -> int:
    """Become OpenSSH's ssh, with the cluster's keys and pinned host keys. Returns only on error."""
    state, cluster = standing_cluster(name)
    target = cluster.node(node) if node else cluster.head
    line = [_shell_line(command)] if command else []
    os.execvp("ssh", ["ssh", "-F", str(state.ssh_config), target.name, *line])  # noqa: S606


def exec_on_all(name: str | None, command: Sequence[str], *, as_json: bool) -> int:
    """Run a command on all nodes at once; nodes that printed the same are shown together.

    Returns the highest exit code,
    255 standing for a node that cannot be reached.
    """
    _, cluster = standing_cluster(name)
    script = _shell_line(command)

    def run(host: Host) -> CommandResult:
        return host.run(script, expect=range(256))

    with open_hosts(cluster) as hosts:
        done = run_on_hosts(hosts, run)
    if as_json:
        print_json([_as_json(node, result) for node, result in done.items()])
    else:
        _print_grouped(done)
    return max(_code(result) for result in done.values())


def _shell_line(command: Sequence[str]) -> str:
    """One word is a line of shell, several are a command with its arguments."""
    return command[0] if len(command) == 1 else shlex.join(command)


def _code(result: CommandResult | ClusterctlError) -> int:
    return NO_SESSION if isinstance(result, ClusterctlError) else result.exit_code


def _print_grouped(done: dict[str, CommandResult | ClusterctlError]) -> None:
    groups: dict[tuple[int, str], list[str]] = {}
    for node, result in done.items():
        text = str(result) if isinstance(result, ClusterctlError) else result.output
        groups.setdefault((_code(result), text), []).append(node)
    for (code, text), nodes in groups.items():
        print(f"--- {','.join(nodes)}" + (f" (exit code {code})" if code else ""))
        print(text.rstrip("\n"))


def _as_json(node: str, result: CommandResult | ClusterctlError) -> dict[str, object]:
    if isinstance(result, ClusterctlError):
        return {"node": node, "exit_code": NO_SESSION, "stdout": "", "stderr": str(result)}
    return {"node": node, "exit_code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}

"""How fast is a playbook? Ten steps, the first run and the one that changes nothing, beside others.

The same ten things in clusterctl's steps, in pyinfra's operations and in Ansible's modules (tests/bench/
playbook), on the same local nodes, in turn. clusterctl and pyinfra log in anew each time; Ansible has its
sessions open already. Before a first run everything is taken away again. A raw ssh round that only asks
for `lscpu; uname -r` is the floor.

    make bench
    .venv/bin/python -m tests.bench_playbook --nodes 4 16 64 --laps 3
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.state import ClusterState
from tests.bench_control import (
    ANSIBLE,
    BIN,
    FLOOR_SAME_KEX,
    OURS,
    SAME_KEX,
    BenchError,
    Contestant,
    _ansible,
    _can_ansible,
    all_looked,
    open_sessions,
    run,
    ssh_round,
    standing,
)

PLAYBOOKS = Path(__file__).parent / "bench" / "playbook"
PYINFRA = "pyinfra"
STEPS = 10
FIRST, AGAIN = "first run", "nothing to change"
_TAKE_AWAY = (
    "sudo rm -rf /etc/bench /srv/bench /etc/security/limits.d/60-bench.conf /etc/sysctl.d/60-bench.conf; "
    "sudo sed -i '/clusterctl bench >>>/,/clusterctl bench <<</d' "
    "/etc/hosts; sudo touch /etc/bench-before; sudo rm -f /etc/environment"
)


@dataclass(frozen=True)
class Pair:
    """One tool: its command, and what its output must say after a first run and after another."""

    name: str
    contestant: Callable[[Callable[[str], str | None]], Contestant]
    first: Callable[[str], str | None]
    again: Callable[[str], str | None]
    laps: int = 1000


def main() -> int:
    options = _options()
    try:
        for nodes in options.nodes:
            time_playbook(nodes, options.laps, options.ansible_up_to)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--ansible-up-to", type=int, default=16, help="nodes; it takes minutes beyond")
    return parser.parse_args()


def time_playbook(nodes: int, laps: int, ansible_up_to: int) -> None:
    """Both runs of all tools, interleaved; prints the table."""
    with standing(f"bench-ten-{nodes}", nodes) as state, open_sessions() as sockets:
        names = [f"node{number}" for number in range(1, nodes + 1)]
        pairs = [_ours(state, nodes)]
        if _pyinfra() is not None:
            pairs.append(_pyinfra_pair(state, nodes, sockets))
        if _can_ansible() and nodes <= ansible_up_to:
            pairs.append(_ansible_pair(state, nodes, sockets))
        floor = Contestant(
            FLOOR_SAME_KEX, ssh_round(state, names, SAME_KEX), all_looked(nodes), dict(os.environ)
        )
        seconds: dict[tuple[str, str], list[float]] = {}
        for lap in range(-1, laps):  # the lap before the first warms every cache and opens what stays open
            at = lap % len(pairs)
            for pair in (*pairs[at:], *pairs[:at]):
                if lap >= pair.laps:
                    continue
                _take_away(state)
                for which, check in ((FIRST, pair.first), (AGAIN, pair.again)):
                    took = run(pair.contestant(check))
                    if lap >= 0:
                        seconds.setdefault((which, pair.name), []).append(took)
            took = run(floor)
            if lap >= 0:
                seconds.setdefault((AGAIN, floor.name), []).append(took)
    _print(nodes, seconds)


def _take_away(state: ClusterState) -> None:
    command = (str(BIN / "clusterctl"), "exec", "--name", state.name, "--", _TAKE_AWAY)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"taking everything away: {done.stdout}{done.stderr}")


def _recap(nodes: int, changed: int) -> Callable[[str], str | None]:
    """clusterctl's recap and Ansible's: every node, so much changed, nothing failed."""

    def check(output: str) -> str | None:
        rows = re.findall(r"changed=(\d+) +unreachable=(\d+) +failed=(\d+)", output)
        if len(rows) != nodes:
            return f"{len(rows)} of {nodes} nodes in the recap"
        wanted = (str(changed), "0", "0")
        return next((f"changed, unreachable, failed = {row}" for row in rows if row != wanted), None)

    return check


def _ours(state: ClusterState, nodes: int) -> Pair:
    argv = (str(BIN / "clusterctl"), "playbook", "run", "--name", state.name)
    argv = (*argv, str(PLAYBOOKS / "clusterctl_ten.py"))
    return Pair(
        OURS,
        lambda check: Contestant(OURS, argv, check, dict(os.environ)),
        _recap(nodes, STEPS - 1),  # the packages are there
        _recap(nodes, 0),
    )


def _ansible_pair(state: ClusterState, nodes: int, sockets: Path) -> Pair:
    tuned = _ansible("check-amx", nodes, state, sockets)
    argv = (str(BIN / "ansible-playbook"), "-i", str(state.record), str(PLAYBOOKS / "ansible_ten.yml"))
    return Pair(
        ANSIBLE,
        lambda check: Contestant(ANSIBLE, argv, check, tuned.environment),
        _recap(nodes, STEPS - 1),
        _recap(nodes, 0),
        laps=1 if nodes > 4 else 3,
    )


def _pyinfra() -> str | None:
    """pyinfra's command. It pins an older paramiko than ours, so `make bench` gives it its own folder."""
    beside = BIN.parent / "pyinfra" / "bin" / "pyinfra"
    return str(beside) if beside.exists() else shutil.which("pyinfra")


def _pyinfra_pair(state: ClusterState, nodes: int, folder: Path) -> Pair:
    cluster = state.load()
    assert cluster is not None
    inventory = folder / "inventory.py"
    hosts = [
        (
            node.name,
            {
                "ssh_hostname": node.address,
                "ssh_user": node.user,
                "ssh_key": str(node.identity_file),
                "ssh_known_hosts_file": str(state.known_hosts),
                "ssh_strict_host_key_checking": "yes",
                "ssh_config_file": "/dev/null",
                "ssh_allow_agent": False,
                "ssh_look_for_keys": False,
            },
        )
        for node in cluster.nodes
    ]
    inventory.write_text(f"nodes = {hosts!r}\n")
    command = shlex.join((str(_pyinfra()), "-y", str(inventory), str(PLAYBOOKS / "pyinfra_ten.py")))
    argv = ("sh", "-c", f"{command} 2>&1")

    def total(changed: int) -> Callable[[str], str | None]:
        def check(output: str) -> str | None:
            found = re.search(r"Grand total +(\d+) +(\S+) +(\S+)", output)
            wanted = (str(nodes * STEPS), str(nodes * changed) if changed else "-", "-")
            return None if found and found.groups() == wanted else f"total {found and found.groups()}"

        return check

    return Pair(
        PYINFRA,
        lambda check: Contestant(PYINFRA, argv, check, dict(os.environ)),
        total(STEPS - 1),
        total(0),
    )


def _print(nodes: int, seconds: dict[tuple[str, str], list[float]]) -> None:
    for which in (FIRST, AGAIN):
        medians = {name: statistics.median(each) for (kind, name), each in seconds.items() if kind == which}
        print(f"\nten steps on {nodes} nodes, {which}, wall seconds")
        print(f"  {'':<24}{'median':>8}{'min':>8}{'max':>8}{'laps':>6}{'/ clusterctl':>14}")
        for name in sorted(medians, key=lambda each: medians[each]):
            laps: Sequence[float] = seconds[which, name]
            figures = f"{medians[name]:>8.2f}{min(laps):>8.2f}{max(laps):>8.2f}{len(laps):>6}"
            print(f"  {name:<24}{figures}{medians[name] / medians[OURS]:>13.2f}x")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

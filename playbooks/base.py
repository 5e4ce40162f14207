"""base: what every node needs before anything else: packages, limits, a right clock, the others' names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.facts import NodeFacts
from provision.model import Cluster, Node
from provision.play import Facts, Playbook
from provision.step import Step
from provision.steps.checks import Verdict
from provision.steps.files import Block, TextFile
from provision.steps.packages import packages_for

# gloo and oneCCL tolerate seconds; files and logs of one run should still tell one story.
CLOCK_LIMIT_S = 5.0

# Debian and Ubuntu renamed tcmalloc when time_t became 64 bits wide (Debian 13, Ubuntu 24.04). Fedora has it
# in gperftools-libs; RHEL and its like only in EPEL (https://packages.fedoraproject.org/pkgs/gperftools), so
# there it is left to whoever adds EPEL: ranks preload it where it is installed.
_TCMALLOC_RENAMED = {"debian": 13.0, "ubuntu": 24.04}

LIMITS = TextFile(
    "/etc/security/limits.d/50-clusterctl.conf",
    """\
# clusterctl: training opens many sockets and files, and pins memory for the network
*  -  nofile   1048576
*  -  memlock  unlimited
""",
)


def steps(node: Node, cluster: Cluster, facts: Facts) -> Sequence[Step]:
    mine = facts[node.name]
    return (
        packages(mine),
        LIMITS,
        Verdict("clock", clock_problem(mine), "set its clock (chrony or systemd-timesyncd)"),
        hosts_block(cluster),
    )


def packages(facts: NodeFacts) -> Step:
    """The packages of the node's distribution; a Verdict that names it when it is not a known one."""
    debian = ("openssh-client", "python3", "python3-venv")
    fedora = ("openssh-clients", "python3")
    names: dict[str, tuple[str, ...]] = {"debian": debian, "fedora": (*fedora, "gperftools-libs")}
    names |= dict.fromkeys(("rhel", "centos", "ol", "amzn"), fedora)
    if facts.os_id in _TCMALLOC_RENAMED:
        renamed = _release(facts.os_version) >= _TCMALLOC_RENAMED[facts.os_id]
        names[facts.os_id] = (*debian, "libtcmalloc-minimal4t64" if renamed else "libtcmalloc-minimal4")
    return packages_for(facts, names)


def _release(version: str) -> float:
    """24.04 of "24.04.1"; one without a number (Debian sid) is newer than all.

    >>> _release("24.04.1")
    24.04
    """
    match = re.match(r"\d+(\.\d+)?", version)
    return float(match[0]) if match else float("inf")


def clock_problem(facts: NodeFacts) -> str | None:
    """How far the node's clock is from the operator's, when that is too far."""
    offset_s = facts.clock_s - facts.gathered_s
    if abs(offset_s) <= CLOCK_LIMIT_S:
        return None
    return f"its clock is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} this machine's"


def hosts_block(cluster: Cluster) -> Block:
    """Every node's name in /etc/hosts, first, so that Debian's 127.0.1.1 line does not win.

    torch.distributed and torchrun advertise the host's own name: where that is 127.0.1.1, gloo hangs.
    """
    lines = tuple(f"{node.mesh_address} {node.name}" for node in cluster.nodes)
    return Block("/etc/hosts", cluster.name, lines, at_start=True)


PLAYBOOK = Playbook("base", steps, tags=("packages", "limits", "clock", "names"))

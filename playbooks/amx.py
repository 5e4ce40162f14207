"""amx: lscpu's flags and the kernel's version say whether this node can have working matrix units.

Two hints, not yet the proof: a flag may be masked or faked by a hypervisor, and the kernel's permission
(arch_prctl) is what decides. They are enough to stop a cluster of the wrong machines early.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from provision.facts import NodeFacts
from provision.model import Cluster, Node
from provision.play import Facts, Playbook
from provision.step import Step
from provision.steps.checks import Verdict

# AMX state is handled since Linux 5.16 (arch_prctl ARCH_REQ_XCOMP_PERM, commit db8268df0983).
KERNEL_NEEDED = (5, 16)
FLAGS = ("amx_tile", "amx_bf16", "amx_int8")


@dataclass(frozen=True)
class AmxVerdict:
    """What the flags and the kernel say of one node. `problem` is None when both are right."""

    flags: tuple[str, ...]
    kernel_ok: bool
    problem: str | None
    fix: str
    simulated: bool


def judge(facts: NodeFacts) -> AmxVerdict:
    """The verdict on one node, and what to do about it."""
    flags = tuple(flag for flag in FLAGS if flag in facts.cpu.flags)
    kernel_ok = kernel_version(facts.kernel) >= KERNEL_NEEDED
    problem, fix = None, ""
    if len(flags) < len(FLAGS):
        missing = ", ".join(flag for flag in FLAGS if flag not in flags)
        problem = f"no {missing} in lscpu ({facts.cpu.model_name})"
        fix = _silicon_fix(facts)
    elif not kernel_ok:
        problem = f"kernel {facts.kernel} is older than 5.16"
        fix = "boot a newer kernel (Ubuntu 24.04 and Debian 12 have one)"
    return AmxVerdict(flags, kernel_ok, problem, fix, facts.cpu.simulated)


def _silicon_fix(facts: NodeFacts) -> str:
    if facts.cpu.vendor != "GenuineIntel":
        return "needs an Intel Xeon, Sapphire Rapids or newer"
    return "needs Sapphire Rapids or newer, not masked by the hypervisor"


def kernel_version(release: str) -> tuple[int, int]:
    """Major and minor of `uname -r`; (0, 0) when they are not there.

    >>> kernel_version("6.8.0-1019-aws")
    (6, 8)
    """
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def steps(node: Node, cluster: Cluster, facts: Facts) -> Sequence[Step]:
    """A step where AMX is required; where it is not, its absence is no drift."""
    if not cluster.require_amx:
        return ()
    verdict = judge(facts[node.name])
    fix = f"{verdict.fix}; or train without: require_amx: false"
    return (Verdict("AMX flags and kernel", verdict.problem, fix),)


PLAYBOOK = Playbook("amx", steps)

"""amx: where it is required, a node has to multiply a tile, and right.

lscpu's flags stop a cluster of the wrong machines before anything is executed. Where they are there, the
ladder's rungs 1 to 5 travel with all other probes: CPUID, the kernel's state and permission, a tile
multiplication (see provision/amx). A CPU that the local provider made up has no tiles: it passes by its
flags, and is called simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.amx import ladder_script
from provision.amx.kernels import hint
from provision.amx.verdict import judge as judge_ladder
from provision.amx.verdict import parse_ladder
from provision.errors import FactError, HostError
from provision.facts import NodeFacts
from provision.host import Host
from provision.model import Cluster, Node
from provision.play import Facts, Playbook
from provision.step import Step
from provision.steps.checks import Verdict

FLAGS = ("amx_tile", "amx_bf16", "amx_int8")


@dataclass(frozen=True)
class AmxVerdict:
    """What the flags and the kernel's version say of one node. `problem` is None when both are right.

    Two hints, not the proof: see provision/amx.
    """

    flags: tuple[str, ...]
    kernel_ok: bool
    problem: str | None
    fix: str
    simulated: bool


def judge(facts: NodeFacts) -> AmxVerdict:
    """The verdict on one node, and what to do about it."""
    flags = tuple(flag for flag in FLAGS if flag in facts.cpu.flags)
    kernel = hint(facts.kernel)
    problem, fix = None, ""
    if len(flags) < len(FLAGS):
        missing = ", ".join(flag for flag in FLAGS if flag not in flags)
        problem = f"no {missing} in lscpu ({facts.cpu.model_name})"
        fix = _silicon_fix(facts)
    elif not kernel.ok:
        problem = f"kernel {facts.kernel} is {kernel.why}"
        fix = "boot a newer kernel (Ubuntu 24.04 and Debian 12 have one)"
    return AmxVerdict(flags, kernel.ok, problem, fix, facts.cpu.simulated)


def _silicon_fix(facts: NodeFacts) -> str:
    if facts.cpu.vendor != "GenuineIntel":
        return "needs an Intel Xeon, Sapphire Rapids or newer"
    return "needs Sapphire Rapids or newer, not masked by the hypervisor"


@dataclass(frozen=True)
class TileMultiplied:
    """The node climbs the ladder to its fifth rung: a tile instruction is executed, its result is right."""

    @property
    def name(self) -> str:
        return "AMX executes"

    @property
    def probe(self) -> str:
        return ladder_script()

    def drift(self, actual: str) -> str | None:
        try:
            problem = judge_ladder(parse_ladder(actual))
        except FactError as error:
            return str(error)
        return str(problem) if problem else None

    def apply(self, host: Host) -> None:
        drift = self.drift(host.run(self.probe).stdout)
        if drift:
            raise HostError(host.node.name, f"{drift}; or train without: require_amx: false")


def steps(node: Node, cluster: Cluster, facts: Facts) -> Sequence[Step]:
    """A step where AMX is required; where it is not, its absence is no drift.

    The kernel's version stops nobody here: the ladder asks the kernel itself.
    """
    if not cluster.require_amx:
        return ()
    verdict = judge(facts[node.name])
    if len(verdict.flags) < len(FLAGS):
        fix = f"{verdict.fix}; or train without: require_amx: false"
        return (Verdict("AMX flags", verdict.problem, fix),)
    if verdict.simulated:
        return (Verdict("AMX flags (simulated CPU)", None),)
    return (TileMultiplied(),)


PLAYBOOK = Playbook("amx", steps, tags=("verify",))

"""training_env: the same locked stack at the same path on every node, built once.

Where all nodes mount one folder it is built there before the playbooks run. Elsewhere the head builds it
and copies it to the nodes that lack it, over the mesh. Then every node's installed versions are compared
with what the stack's manifest says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.errors import HostError
from provision.facts import MANIFEST, NodeFacts
from provision.host import Host, quoted
from provision.model import Cluster, Node
from provision.play import Facts, Playbook, the_head
from provision.stacks import Stack, build_order, build_script, stack_of, version_problems
from provision.step import Step
from provision.steps.checks import Verdict

_BUILD_LIMIT_S = 1800.0


@dataclass(frozen=True)
class StackBuilt:
    """The stack is complete on the head, built there by pip."""

    stack: Stack

    @property
    def name(self) -> str:
        return f"stack {self.stack.name}"

    @property
    def probe(self) -> str:
        return quoted("[ -e %s ] && echo complete", f"{self.stack.path}/{MANIFEST}")

    def drift(self, actual: str) -> str | None:
        return None if actual.strip() == "complete" else "not built"

    def apply(self, host: Host) -> None:
        order = build_order(self.stack, self.stack.path)
        host.run("/usr/bin/python3 -c %s", build_script(), sudo=True, stdin=order, timeout_s=_BUILD_LIMIT_S)


# Unpacked beside its place and renamed: a copy that was cut off never looks complete. The key is the
# user's, so ssh and the reading run as the user; only the unpacking needs root.
_PUSH = "cd %s && tar -cf - . | ssh %s sudo -n sh -c %s"
_UNPACK = """
set -e; rm -rf %s; mkdir -p %s; tar -xf - -C %s; rm -rf %s; mv %s %s
"""


@dataclass(frozen=True)
class StackCopied:
    """The head's stack is on those workers: complete, and with the same versions."""

    stack: Stack
    workers: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"copy of the stack on {len(self.workers)} nodes" if self.workers else "copies of the stack"

    @property
    def probe(self) -> str:
        user_ssh = 'sudo -n -u "#${SUDO_UID:-0}" ssh'
        return "\n".join(
            quoted(
                f'[ "$({user_ssh} %s cat %s 2>/dev/null)" = "$(cat %s)" ] || echo lacking %s',
                worker,
                f"{self.stack.path}/{MANIFEST}",
                f"{self.stack.path}/{MANIFEST}",
                worker,
            )
            for worker in self.workers
        )

    def drift(self, actual: str) -> str | None:
        lacking = _lacking(actual)
        return f"not on {', '.join(lacking)}" if lacking else None

    def apply(self, host: Host) -> None:
        partial = f"{self.stack.path}.partial"
        unpack = quoted(_UNPACK, partial, partial, partial, self.stack.path, partial, self.stack.path)
        for worker in _lacking(host.run(self.probe, sudo=True).stdout):
            push = quoted(_PUSH, self.stack.path, worker, quoted("%s", unpack))
            # sh alone would miss a tar that failed after it had sent something.
            host.run("exec bash -o pipefail -c %s", push, timeout_s=_BUILD_LIMIT_S)


def _lacking(probed: str) -> list[str]:
    return [line.split()[-1] for line in probed.splitlines() if line.startswith("lacking ")]


@dataclass(frozen=True)
class StackAsLocked:
    """The versions installed in the node's stack are those of its manifest."""

    stack: Stack

    @property
    def name(self) -> str:
        return f"versions of {self.stack.name}"

    @property
    def probe(self) -> str:
        return quoted(
            "cd %s && cat %s && cd lib/python3*/site-packages && printf '%%s\\n' *-*.dist-info",
            self.stack.path,
            MANIFEST,
        )

    def drift(self, actual: str) -> str | None:
        if not actual.startswith("{"):
            return "no stack"
        problems = version_problems(actual)
        return f"versions differ: {'; '.join(problems[:4])}" if problems else None

    def apply(self, host: Host) -> None:
        drift = self.drift(host.run(self.probe, sudo=True, expect=(0, 1, 2)).stdout)
        raise HostError(
            host.node.name, f"{drift}; remove {self.stack.path} where it was built and run up again"
        )


def steps(node: Node, cluster: Cluster, facts: Facts) -> Sequence[Step]:
    """Where the stack is not shared: it is built on the head and copied to the workers that lack it."""
    stack = stack_of(cluster)
    if cluster.shared_stack or node != cluster.head:
        return ()
    present = {worker.name: facts[worker.name].stacks for worker in cluster.workers if worker.name in facts}
    # What the user's packages need is chosen by pip at the build: a new head may have built it otherwise.
    asked = tuple(name for name, stacks in present.items() if stack.packages or stack.name not in stacks)
    return (StackBuilt(stack), StackCopied(stack, asked))


def verify_steps(node: Node, cluster: Cluster, facts: Facts) -> Sequence[Step]:
    """Every node has the head's Python, and in its stack the versions that were locked."""
    problem = python_problem(facts[node.name], facts[cluster.head.name])
    return (
        Verdict("python", problem, "give all nodes the same distribution"),
        StackAsLocked(stack_of(cluster)),
    )


def python_problem(mine: NodeFacts, head: NodeFacts) -> str | None:
    """A virtual environment works under the Python minor version that made it, and no other."""
    if mine.python == head.python:
        return None
    return f"Python {mine.python or 'none'} here, {head.python} on the head {head.hostname}"


def copied_to(node: Node, cluster: Cluster) -> Sequence[Node]:
    """The head copies to workers that let its mesh key in: each must have come that far."""
    return cluster.workers if node == cluster.head and not cluster.shared_stack else ()


PLAYBOOK = Playbook("training_env", steps, tags=("stack",), after=copied_to)
# The stack comes from the head, and so does the Python that it needs.
VERIFY_PLAYBOOK = Playbook("training_env_verify", verify_steps, tags=("stack", "verify"), needs=the_head)

"""stack list, show, verify: the kinds there are, what is in one, and whether all nodes have it as locked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from provision.errors import ClusterctlError, HostError, SettingsError
from provision.host import Host
from provision.model import Cluster
from provision.stacks import (
    Stack,
    look_order,
    look_script,
    python_here,
    refuse_python,
    stack_named,
    stack_of,
)
from provision.stacks.kinds import KINDS, span
from provision.stacks.versions import (
    ACCELERATE,
    CCL,
    IPEX,
    MATCHES,
    TORCH,
    TRANSFORMERS,
    archived_in,
    mismatches,
)
from provision.state import ClusterState, recorded_names
from provision.step import run_on_hosts
from run.commands.common import count, open_hosts, print_json, print_table, standing_cluster

LOOK_LIMIT_S = 600.0
SHOWN = (TORCH, IPEX, CCL, TRANSFORMERS, ACCELERATE, "impi-rt")


def list_kinds(*, as_json: bool) -> int:
    """The kinds of stacks, and which clusters of this machine's record have them. Returns 0."""
    users = _users()
    if as_json:
        print_json([_kind_json(kind, users) for kind in KINDS])
        return 0
    rows = [
        (kind, KINDS[kind].about, span(KINDS[kind].pythons), ", ".join(users.get(kind, ())) or "-")
        for kind in KINDS
    ]
    print_table(["STACK", "WHAT", "PYTHON", "CLUSTERS"], rows)
    return 0


def _users() -> dict[str, list[str]]:
    """Names of the clusters by the kind that they have."""
    users: dict[str, list[str]] = {}
    for name in recorded_names():
        cluster = ClusterState(name).load()
        if cluster is not None:
            users.setdefault(cluster.stack, []).append(name)
    return users


def _kind_json(kind: str, users: Mapping[str, list[str]]) -> dict[str, Any]:
    stack = stack_named(kind)
    return {
        "stack": kind,
        "name": stack.name,
        "about": KINDS[kind].about,
        "pythons": stack.pythons,
        "clusters": users.get(kind, []),
    }


def show(kind: str, *, as_json: bool) -> int:
    """What is in a stack, where it comes from, and what stands against it. Returns 0."""
    stack = stack_named(kind)
    problem = _problem_here(stack)
    archived = archived_in(stack.versions)
    source = next((m.source for m in MATCHES if m.torch == stack.versions.get(TORCH)), None)
    if as_json:
        about = {
            "stack": stack.kind,
            "name": stack.name,
            "pythons": stack.pythons,
            "versions": stack.versions,
        }
        indexes = {"torch_index": stack.torch_index, "stack_index": stack.stack_index}
        notes = {"only_from_stack_index": stack.own_lines, "archived": [str(each) for each in archived]}
        print_json({**about, **indexes, **notes, "source": source, "problem_here": problem})
        return 0
    print(f"stack {stack.name}: {KINDS[kind].about if kind in KINDS else kind}")
    rows = [(package, stack.versions[package]) for package in SHOWN if package in stack.versions]
    print_table(["PACKAGE", "VERSION"], rows)
    print(f"and {count(len(stack.versions) - len(rows), 'more package')}; Python {span(stack.pythons)}")
    print("\n".join(_remarks(stack, source, problem)))
    return 0


def _remarks(stack: Stack, source: str | None, problem: str | None) -> Iterator[str]:
    yield f"torch from {stack.torch_index} (torch_index in the inventory)"
    if stack.own_lines:
        yield (
            f"{', '.join(stack.own_lines)} from {stack.stack_index} alone (stack_index in the inventory; "
            "none: built without)"
        )
    if source:
        yield f"matched versions: {source}"
    yield from (f"archived: {each}" for each in archived_in(stack.versions))
    if problem:
        yield problem


def _problem_here(stack: Stack) -> str | None:
    try:
        refuse_python(stack, python_here() or "0.0", "this machine")
    except SettingsError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Looked:
    """What one node's stack is like. `imports` is module -> {"version", "seconds"} or {"error"}."""

    problems: tuple[str, ...] = ()
    python: str = ""
    imports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def verify(name: str | None, *, as_json: bool) -> int:
    """Every node's installed versions against the lock, and imports, on all nodes at once.

    Returns 1 where anything differs on any node.
    """
    _, cluster = standing_cluster(name)
    stack = stack_of(cluster)
    with open_hosts(cluster) as hosts:
        seen = run_on_hosts(hosts, partial(_look, stack=stack))
    looked = {node: _judged(each) for node, each in seen.items()}
    if as_json:
        nodes = {node: {**vars(each), "ok": not each.problems} for node, each in looked.items()}
        print_json({"cluster": cluster.name, "stack": stack.name, "nodes": nodes})
    else:
        _tell(cluster, stack, looked)
    return 1 if any(each.problems for each in looked.values()) else 0


def _look(host: Host, stack: Stack) -> Mapping[str, Any]:
    """One exec on one node, by the stack's own Python. Raises HostError."""
    script = "[ -x %s ] || exit 90; exec %s -c %s"
    python = f"{stack.path}/bin/python"
    done = host.run(
        script,
        *(python, python, look_script()),
        stdin=look_order(stack),
        expect=(0, 90),
        timeout_s=LOOK_LIMIT_S,
    )
    if done.exit_code:
        raise HostError(host.node.name, f"no {stack.name} there; run `clusterctl up` again")
    try:
        answer: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise HostError(host.node.name, f"its stack answered {done.stdout[:80]!r}, not JSON") from None
    return answer


def _judged(seen: Mapping[str, Any] | ClusterctlError) -> Looked:
    if isinstance(seen, ClusterctlError):
        return Looked((seen.problem if isinstance(seen, HostError) else str(seen),))
    failed = [
        f"import {module}: {each['error']}" for module, each in seen["imports"].items() if "error" in each
    ]
    problems = (*seen["problems"], *mismatches(seen["versions"]), *failed)
    return Looked(problems, seen["python"], seen["imports"])


def _tell(cluster: Cluster, stack: Stack, looked: Mapping[str, Looked]) -> None:
    for node, each in looked.items():
        for problem in each.problems:
            print(f"{node}: {problem}")
    good = [node for node, each in looked.items() if not each.problems]
    if len(good) == len(looked):
        imports = next(iter(looked.values())).imports
        what = ", ".join(f"{module} {about['version']}" for module, about in imports.items())
        print(f"{count(len(good), 'node')} as locked in {stack.name}; imported on each: {what}")
    else:
        fix = f"remove {stack.path} there, and `clusterctl up` builds or copies it anew"
        print(
            f"{count(len(looked) - len(good), 'node')} of {len(looked)} not as locked in {stack.name}; {fix}"
        )

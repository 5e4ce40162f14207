"""up: bring up what is missing, record it, and run the playbooks until every step is ok."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from playbooks import amx
from provision.errors import SettingsError
from provision.inventory import DEFAULT_NAME, DEFAULT_NODES, Inventory, check_name, read_inventory
from provision.model import Cluster, Node
from provision.play import SiteResult
from provision.providers import GivesBack, Provider, Wanted, provider_named, settings_class
from provision.recorded import converge_cluster
from provision.report import Report, counts_by_node, recap_lines, report_for
from provision.stacks import python_here, refuse_python, stack_of
from provision.stacks.versions import archived_in
from provision.state import ClusterState, choose_name, recorded_names
from provision.step import Mode, StepResult
from run.commands.bake import bake
from run.commands.common import active_runs, confirm, count, failure_lines, print_json
from run.commands.making import Making, made
from run.commands.operator import Answers, Terminal
from run.commands.playbook import playbooks_of


@dataclass(frozen=True)
class UpOptions:
    """The options of `up`, as the user gave them."""

    inventory: Path | None = None
    name: str | None = None
    nodes: int | None = None
    yes: bool = False
    check: bool = False
    diff: bool = False
    as_json: bool = False
    dry_run: bool = False
    bake: bool = False
    replace: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()
    answers: Answers = field(default_factory=Answers)


def up(options: UpOptions) -> int:
    """Returns the exit code: 0 when every step is ok on every node, else 1."""
    started = time.monotonic()
    inventory, state = _wanted_inventory(options)
    stack = stack_of(inventory)
    playbooks_of(inventory.playbooks)  # what is wrong with a file is said before a node is made
    if options.dry_run:
        return _dry_run(options, inventory, state)
    with nullcontext() if options.check else state.locked():
        recorded = _without_forgotten(options, state)
        names = _node_names(options, inventory, recorded)
        provider, inventory = _settled(inventory)
        _confirm_leaving(options, recorded, names)
        if provider.stack_store() is not None:
            refuse_python(stack, python_here(), "this machine")
        with report_for(as_json=options.as_json, nodes=names) as report:
            if recorded is None or recorded.stack != inventory.stack:
                for archived in archived_in(stack.versions):
                    report.note(str(archived))
            operator = Terminal(options.answers, report)
            making = Making(provider, inventory, state, names, options.replace, operator)
            missing: tuple[StepResult, ...] = ()
            if options.check:
                cluster = _foreseen(recorded, names, report)
            else:
                if options.bake:
                    bake(making, configure, report, yes=options.yes)
                done = made(making, report, yes=options.yes)
                cluster, missing = done.cluster, done.missing
            result = configure(cluster, state, Mode(options.check, options.diff), report)
            result = replace(result, results=(*missing, *result.results))
    _tell(options, cluster, result, time.monotonic() - started)
    return 1 if result.failed else 0


def _wanted_inventory(options: UpOptions) -> tuple[Inventory, ClusterState]:
    """The inventory given, or the record's own settings where the cluster stands already."""
    inventory = read_inventory(options.inventory)
    if options.name is not None:
        check_name(options.name, "--name")
    state = ClusterState(_name(options, inventory))
    recorded = state.load()
    if recorded is not None and options.inventory is None:
        settings = settings_class(recorded.provider)(**recorded.settings)
        return Inventory(
            recorded.name,
            recorded.provider,
            None,
            recorded.require_amx,
            recorded.stack,
            settings,
            playbooks=recorded.playbooks,
            stack_index=recorded.stack_index,
            torch_index=recorded.torch_index,
            packages=recorded.packages,
        ), state
    if recorded is not None and recorded.provider != inventory.provider:
        raise SettingsError(
            f"cluster {state.name} stands with provider {recorded.provider}, the inventory says "
            f"{inventory.provider}; run `clusterctl down --name {state.name}` first, or choose another --name"
        )
    return replace(inventory, name=state.name), state


def _settled(inventory: Inventory) -> tuple[Provider, Inventory]:
    provider = provider_named(inventory.provider)
    return provider, replace(inventory, provider_settings=provider.settled(inventory.provider_settings))


def _name(options: UpOptions, inventory: Inventory) -> str:
    """--name, else the inventory's, else the cluster that stands: as every other command chooses."""
    if options.name is not None or options.inventory is not None:
        return options.name or inventory.name
    return choose_name(None) if recorded_names() else DEFAULT_NAME


def _node_names(options: UpOptions, inventory: Inventory, recorded: Cluster | None) -> tuple[str, ...]:
    """Names of all wanted nodes, the recorded ones first."""
    standing = tuple(node.name for node in recorded.nodes) if recorded else ()
    if inventory.machines:
        return _machine_names(options, inventory, len(standing))
    count = next(
        n for n in (options.nodes, inventory.nodes, len(standing) or None, DEFAULT_NODES) if n is not None
    )
    if count < 1:
        raise SettingsError(
            f"{count} nodes: a cluster has at least one, its head; `clusterctl down` removes all of it"
        )
    return (standing + tuple(f"node{number}" for number in range(len(standing) + 1, count + 1)))[:count]


def _machine_names(options: UpOptions, inventory: Inventory, standing: int) -> tuple[str, ...]:
    """The first of the machines that stand already, the head before all; all of them where nobody counts."""
    names = tuple(machine.name for machine in inventory.machines)
    before = None if options.inventory or not standing else standing
    wanted = next(n for n in (options.nodes, inventory.nodes, before, len(names)) if n is not None)
    if not 1 <= wanted <= len(names):
        raise SettingsError(f"{count(wanted, 'node')}: the inventory has {len(names)}: {', '.join(names)}")
    return names[:wanted]


def _without_forgotten(options: UpOptions, state: ClusterState) -> Cluster | None:
    """The record, without the nodes that the user gives up on: what is on them stays there."""
    recorded = state.load()
    if recorded is None or options.check or not options.forget:
        return recorded
    for name in options.forget:
        recorded.node(name)
    kept = tuple(node for node in recorded.nodes if node.name not in options.forget)
    state.save(replace(recorded, nodes=kept))
    return state.load()


def _confirm_leaving(options: UpOptions, recorded: Cluster | None, names: Sequence[str]) -> None:
    """Asks before nodes go that a person may still need. Raises SettingsError for unknown names."""
    for name in options.replace:
        if name not in names:
            raise SettingsError(f"--replace {name}: the cluster has {', '.join(names)}")
    if recorded is None or options.check:
        return
    leaving = [each.name for each in recorded.nodes if each.name not in names or each.name in options.replace]
    if leaving:
        gives_back = isinstance(provider_named(recorded.provider), GivesBack)
        remove = "Give back" if gives_back else "Remove"
        question = f"{active_runs(recorded)}{remove} {', '.join(leaving)} from cluster {recorded.name}?"
        confirm(question, yes=options.yes)


def _dry_run(options: UpOptions, inventory: Inventory, state: ClusterState) -> int:
    """What `up` would make and what that costs; nothing is made, and no key either."""
    recorded = state.load()
    names = _node_names(options, inventory, recorded)
    provider, inventory = _settled(inventory)
    wanted = Wanted(
        state.name, names, state.folder, state.identity_file, "", inventory.provider_settings,
        stack=stack_of(inventory).name, known=recorded.nodes if recorded else (),
    )  # fmt: skip
    seen = provider.forecast(wanted)
    if options.as_json:
        print_json(
            {"cluster": state.name, "nodes": names, "make": seen.make, "usd_per_hour": seen.usd_per_hour}
        )
        return 0
    would = f"would make {', '.join(seen.make)}" if seen.make else "all nodes stand"
    print("\n".join([f"cluster {state.name}, {count(len(names), 'node')}: {would}", *seen.details]))
    if seen.usd_per_hour is not None:
        print(f"${seen.usd_per_hour:,.2f} an hour for {count(len(names), 'node')}")
    print("--dry-run: nothing was made")
    return 0


def _foreseen(recorded: Cluster | None, names: Sequence[str], report: Report) -> Cluster:
    """The cluster as far as it stands; what would be made or removed is told, and done by nobody."""
    standing = {node.name: node for node in recorded.nodes} if recorded else {}
    for name in names:
        if name not in standing:
            report.note(f"{name}: would be created")
    for name in standing:
        if name not in names:
            report.note(f"{name}: would be removed")
    if recorded is None:
        return Cluster("", "", ())
    return replace(recorded, nodes=tuple(standing[name] for name in names if name in standing))


def configure(cluster: Cluster, state: ClusterState, mode: Mode, report: Report) -> SiteResult:
    if not cluster.nodes:
        return SiteResult()
    return converge_cluster(cluster, state, playbooks_of(cluster.playbooks), mode, report)


def _tell(options: UpOptions, cluster: Cluster, result: SiteResult, seconds: float) -> None:
    recap = counts_by_node(result.results)
    without_amx = [name for name, facts in result.facts.items() if amx.judge(facts).problem]
    if options.as_json:
        print_json(
            {
                "event": "recap",
                "cluster": cluster.name,
                "nodes": [_node_json(node) for node in cluster.nodes],
                "recap": recap,
                "changed": result.changed,
                "failed": failure_lines(result),
                "without_amx": without_amx,
                "seconds": round(seconds, 2),
            }
        )
        return
    if recap:
        print("\n".join(["", *recap_lines(recap)]))
    for line in failure_lines(result):
        print(f"failed: {line}")
    if without_amx and not cluster.require_amx:
        print(f"note: no AMX on {_few(without_amx)}, and none required; `clusterctl check-amx` says why")
    if cluster.nodes and not options.check:
        end = (
            "the next `clusterctl up` goes on from here"
            if result.failed
            else "`clusterctl train run_qa` trains on it"
        )
        print(f"cluster {cluster.name}: {count(len(cluster.nodes), 'node')} in {seconds:.1f} s; {end}")
        if cluster.settings.get("ttl", "none") != "none":
            ttl = cluster.settings["ttl"]
            print(f"ttl {ttl}: then its nodes end by themselves; `clusterctl extend` moves that")
    if options.check:
        print("--check: nothing was changed")


def _few(names: Sequence[str], most: int = 4) -> str:
    """Some names, and how many more.

    >>> _few(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _node_json(node: Node) -> dict[str, str]:
    return {"name": node.name, "address": node.address, "user": node.user}

"""up: bring up what is missing, record it, and run the playbooks until every step is ok."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from playbooks import amx, site
from provision.errors import SettingsError
from provision.inventory import DEFAULT_NAME, DEFAULT_NODES, Inventory, check_name, read_inventory
from provision.model import Cluster, Node
from provision.play import SiteResult, run_playbooks
from provision.providers import Provider, Wanted, provider_named, settings_class
from provision.report import Report, counts_by_node, recap_lines, report_for
from provision.stacks import stack_named
from provision.state import ClusterState, choose_name, recorded_names
from provision.step import Mode
from run.commands.bake import bake
from run.commands.common import active_runs, confirm, count, open_hosts, print_json
from run.commands.making import Making, made


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


def up(options: UpOptions) -> int:
    """Returns the exit code: 0 when every step is ok on every node, else 1."""
    started = time.monotonic()
    inventory, state = _wanted_inventory(options)
    stack_named(inventory.stack)
    if options.dry_run:
        return _dry_run(options, inventory, state)
    with nullcontext() if options.check else state.locked():
        recorded = state.load()
        names = _node_names(options, inventory, recorded)
        provider, inventory = _settled(inventory)
        _confirm_leaving(options, recorded, names)
        making = Making(provider, inventory, state, names, options.replace)
        with report_for(as_json=options.as_json, nodes=names) as report:
            if options.check:
                cluster = _foreseen(recorded, names, report)
            else:
                if options.bake:
                    bake(making, configure, report, yes=options.yes)
                cluster = made(making, report, yes=options.yes)
            result = configure(cluster, state, Mode(options.check, options.diff), report)
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
            recorded.name, recorded.provider, None, recorded.require_amx, recorded.stack, settings
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
    count = next(
        n for n in (options.nodes, inventory.nodes, len(standing) or None, DEFAULT_NODES) if n is not None
    )
    if count < 1:
        raise SettingsError(
            f"{count} nodes: a cluster has at least one, its head; `clusterctl down` removes all of it"
        )
    return (standing + tuple(f"node{number}" for number in range(len(standing) + 1, count + 1)))[:count]


def _confirm_leaving(options: UpOptions, recorded: Cluster | None, names: Sequence[str]) -> None:
    """Asks before nodes go that a person may still need. Raises SettingsError for unknown names."""
    for name in options.replace:
        if name not in names:
            raise SettingsError(f"--replace {name}: the cluster has {', '.join(names)}")
    if recorded is None or options.check:
        return
    leaving = [each.name for each in recorded.nodes if each.name not in names or each.name in options.replace]
    if leaving:
        question = f"{active_runs(recorded)}Remove {', '.join(leaving)} from cluster {recorded.name}?"
        confirm(question, yes=options.yes)


def _dry_run(options: UpOptions, inventory: Inventory, state: ClusterState) -> int:
    """What `up` would make and what that costs; nothing is made, and no key either."""
    names = _node_names(options, inventory, state.load())
    provider, inventory = _settled(inventory)
    wanted = Wanted(
        state.name, names, state.folder, state.identity_file, "", inventory.provider_settings,
        stack=stack_named(inventory.stack).name,
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
    with open_hosts(cluster) as hosts:
        result = run_playbooks(cluster, hosts, site.PLAYBOOKS, state.load_facts(), mode, report)
    if not mode.check:
        state.save_facts(result.fact_texts)
    return result


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
                "failed": [f"{r.node}: {r.play}: {r.step}: {r.detail}" for r in result.failed],
                "without_amx": without_amx,
                "seconds": round(seconds, 2),
            }
        )
        return
    if recap:
        print("\n".join(["", *recap_lines(recap)]))
    for failure in result.failed:
        why = failure.detail.removeprefix(f"{failure.node}: ")
        print(f"failed: {failure.node}: {failure.play}: {failure.step}: {why}")
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
            print(f"ttl {ttl}: then its nodes end by themselves; `clusterctl extend` moves it")
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

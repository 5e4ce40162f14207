"""One launch: lay out, check, launch on the head, follow, bring the results home."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from playbooks.amx import judge
from provision.amx import ladder_script
from provision.amx.verdict import TILE
from provision.errors import ClusterctlError, LaunchError, SettingsError
from provision.facts import NodeFacts
from provision.host import SshHost
from provision.model import Cluster, Node
from provision.play import gather
from provision.stacks import stack_of
from run.backend import GLOO, find_backend, module_from_anywhere, uses_ccl, with_backend, with_ccl_workers
from run.commands.check_amx import climb
from run.commands.common import count, open_hosts, print_json, print_table, standing_cluster
from run.commands.interrupts import counted_interrupts
from run.commands.settings import read_settings
from run.commands.tuned import layout_settings, with_kept
from run.events import Event
from run.execute import RunOutcome
from run.execute import train as execute
from run.job import LaunchPlan, TrainJob, from_anywhere, make_job
from run.launchers import docker, mpirun, torchrun
from run.launchers.common import Ground
from run.launchers.containers import ContainerSettings
from run.launchers.torchrun import Elastic
from run.layout import HEADINGS, NodeLayout, lay_out_all
from run.preflight import check
from run.program import RECIPES, find_program
from run.progress import Display, display_for
from run.proof import with_proof
from run.resume import Request, find_checkpoint, go_on_from

TUNED_LAUNCHERS = ("mpirun", "torchrun")
"""Those that train with the nodes' own stack; a container's may be fast at other things."""


@dataclass(frozen=True)
class KubernetesChoice:
    """What is asked for on Kubernetes alone; see KubernetesOptions."""

    kind: str = "pytorchjob"
    context: str | None = None
    keep: bool = False


@dataclass(frozen=True)
class TrainOptions:
    """The options of `train`, as the user gave them. `resume` is a run's id, or what tells it apart.

    `program` is a recipe's name or a path, or by `kind` a module or a bash line. `nodes` is how many take
    part: "2", or under torchrun "2:4". An empty `launcher` is mpirun, or that of the run to resume.
    `settings` are "key=value" of the launcher's settings, over those of `settings_file`. With `use_tuned` the
    run takes what --tune has kept.
    """

    program: str
    script_args: tuple[str, ...] = ()
    name: str | None = None
    ppn: int | None = None
    threads: int | None = None
    rendezvous_timeout_s: float | None = None
    runs_folder: Path = Path("runs")
    dry_run: bool = False
    as_json: bool = False
    resume: str | None = None
    replace_nodes: bool = False
    prove_amx: bool = False
    kind: str = "auto"
    launcher: str = ""
    nodes: str | None = None
    restarts: int = 0
    idle_timeout_s: float | None = None
    settings_file: Path | None = None
    settings: tuple[str, ...] = ()
    kubernetes: KubernetesChoice = KubernetesChoice()
    backend: str | None = None
    backend_module: str | None = None
    smoke: bool = False
    tune: bool = False
    use_tuned: bool = True

    @property
    def is_tunable(self) -> bool:
        """Whether what --tune keeps is for such a run: a recipe, on a number of nodes that stays the same."""
        is_range = self.nodes is not None and ":" in self.nodes
        return self.program in RECIPES and self.launcher in TUNED_LAUNCHERS and not is_range


class Onlooker(Protocol):
    """Is fed with a run's events, and ends it when it has seen enough."""

    def feed(self, event: Event) -> None: ...
    @property
    def is_over(self) -> bool: ...


@dataclass(frozen=True)
class Trial:
    """A launch that is only measured: shown in `display`, ended by `interrupts` too, and nothing of it stays
    on the nodes.
    """

    display: Display
    interrupts: list[int]


def launch(
    options: TrainOptions, onlooker: Onlooker | None = None, trial: Trial | None = None
) -> RunOutcome | None:
    """One run, from the record as it is now; None after --dry-run."""
    backend = find_backend(options.backend, options.backend_module, options.script_args)
    job = with_backend(_job(options), backend)
    _, cluster = standing_cluster(options.name)
    least, taking_part = node_range(cluster, options)
    plan = _planner(options, least)
    with open_hosts(cluster) as all_hosts:
        hosts = [host for host in all_hosts if host.node in taking_part]
        facts = fresh_facts(cluster, hosts)
        _refuse_without_amx(cluster, hosts, facts)
        as_kept = with_kept(options, cluster, facts, backend)
        if as_kept is not options:
            options, job = as_kept, with_backend(_job(as_kept), backend)
        job = replace(job, is_trial=trial is not None)
        layouts = lay_out_all(facts, layout_settings(options, cluster))
        stack = stack_of(cluster)
        if uses_ccl(backend, stack.versions, stack.kind):
            job, layouts = with_ccl_workers(job, layouts, facts)
        stack_dir = stack.path
        ready = check(cluster, hosts, facts, job, stack_dir=stack_dir)
        job = _from_checkpoint(options, hosts, job)
        made = plan(Ground(job, cluster, layouts, facts, stack_dir, ready.master_port))
        if options.dry_run:
            _show_plan(made, as_json=options.as_json)
            return None
        with nullcontext(trial.interrupts) if trial else counted_interrupts() as interrupts:
            # Counted from before it is told: a run that was told of ends as a run, with its logs.
            if not options.as_json and trial is None:
                _show_layout(made, layouts, backend.name or GLOO)
            return _run(options, hosts, made, job, onlooker, trial, interrupts)


def _planner(options: TrainOptions, least_nodes: int) -> Callable[[Ground], LaunchPlan]:
    """The launcher that was asked for, its settings read before any node is. Raises SettingsError."""
    _refuse_foreign(options)
    elastic = Elastic(options.restarts, least_nodes)
    if options.launcher == "mpirun":
        return mpirun.plan
    if options.launcher == "torchrun":
        return partial(torchrun.plan, elastic=elastic)
    settings = read_settings(ContainerSettings, options.settings_file, options.settings, {})
    return partial(docker.plan, settings=settings, elastic=elastic)


def _refuse_foreign(options: TrainOptions) -> None:
    """Options of another launcher, which would be ignored. Raises SettingsError."""
    pods = options.kubernetes
    given = [f"--context {pods.context}"] * bool(pods.context) + ["--keep"] * pods.keep
    if given:
        raise SettingsError(
            f"{given[0]}: an option of --launcher kubernetes; {options.launcher} has none such"
        )
    given = [f"--settings {options.settings_file}"] * bool(options.settings_file)
    given += [f"--set {each}" for each in options.settings]
    if given and options.launcher != "docker":
        raise SettingsError(
            f"{given[0]}: {options.launcher} has no settings; --launcher docker and kubernetes do"
        )


def parse_range(nodes: str) -> tuple[int, int]:
    """(least, most) of "2:4"; twice the same of "4". Raises SettingsError.

    >>> parse_range("2:4"), parse_range("4")
    ((2, 4), (4, 4))
    """
    match = re.fullmatch(r"(?:(\d+):)?(\d+)", nodes)
    if match is None:
        raise SettingsError(f"--nodes {nodes}: a number, or under torchrun LEAST:MOST")
    least, most = int(match[1] or match[2]), int(match[2])
    if not 1 <= least <= most:
        raise SettingsError(f"--nodes {nodes}: the smaller number comes first, and is 1 or more")
    return least, most


def node_range(cluster: Cluster, options: TrainOptions) -> tuple[int, tuple[Node, ...]]:
    """The least number of nodes to go on with, and the nodes that take part: the first ones, or all.

    Raises SettingsError for what is no range, or a range where the launcher knows none.
    """
    if options.restarts and options.launcher == "mpirun":
        raise SettingsError(f"--restarts: {options.launcher} starts ranks once; add --launcher torchrun")
    if options.nodes is None:
        return len(cluster.nodes), cluster.nodes
    least, most = parse_range(options.nodes)
    if least < most and options.launcher == "mpirun":
        raise SettingsError(
            f"--nodes {options.nodes}: {options.launcher} cannot go on with fewer; use torchrun"
        )
    if least < most and not options.restarts:
        raise SettingsError(
            f"--nodes {options.nodes}: to go on with fewer, ranks have to begin anew; add --restarts 3"
        )
    if most > len(cluster.nodes):
        there = count(len(cluster.nodes), "node")
        raise SettingsError(
            f"--nodes {options.nodes}: cluster {cluster.name} has {there}; `clusterctl up` adds more"
        )
    return least, cluster.nodes[:most]


def _job(options: TrainOptions) -> TrainJob:
    job = make_job(find_program(options.program, options.kind), options.script_args)
    if options.rendezvous_timeout_s is not None:
        job = replace(job, rendezvous_timeout_s=options.rendezvous_timeout_s)
    if options.idle_timeout_s is not None:
        job = replace(job, idle_after_s=options.idle_timeout_s)
    if not job.program.reports:
        return job  # it goes on by itself, if it can
    asked = Request(
        options.program,
        from_anywhere(options.script_args),
        options.ppn,
        options.threads,
        options.rendezvous_timeout_s,
        options.resume,
        options.launcher,
        options.nodes,
        options.restarts,
        options.backend,
        module_from_anywhere(options.backend_module),
    )
    job = replace(job, request=asked.to_json())
    return with_proof(job) if options.prove_amx else job


def _from_checkpoint(options: TrainOptions, hosts: Sequence[SshHost], job: TrainJob) -> TrainJob:
    """The job as it goes on from the run to resume, if any. Raises SettingsError where that left nothing."""
    if options.resume is None:
        return job
    found = find_checkpoint(hosts, options.runs_folder, options.resume)
    if found is None:
        raise SettingsError(
            f"{options.resume} left no whole checkpoint, neither on the nodes nor in {options.runs_folder}; "
            "without --resume it begins anew"
        )
    if options.as_json:
        print_json({"event": "resume", "run_id": found.run_id, "step": found.step, "node": found.node})
    else:
        print(f"going on from {found}")
    return go_on_from(job, found)


def fresh_facts(cluster: Cluster, hosts: Sequence[SshHost]) -> dict[str, NodeFacts]:
    """Fresh facts of every node. Raises LaunchError with a line for each node that does not answer."""
    seen = gather(cluster, hosts)
    errors = [str(each) for each in seen.values() if isinstance(each, ClusterctlError)]
    if errors:
        raise LaunchError("\n".join([*errors, "every node has to take part; run `clusterctl up` first"]))
    return {name: each for name, each in seen.items() if isinstance(each, NodeFacts)}


def _refuse_without_amx(cluster: Cluster, hosts: Sequence[SshHost], facts: Mapping[str, NodeFacts]) -> None:
    """Where AMX is required, each node multiplies a tile before anything is brought to it.

    A simulated CPU passes by its flags, as in `up`. Raises LaunchError.
    """
    if not cluster.require_amx:
        return
    simulated = {name for name, each in facts.items() if each.cpu.simulated and not judge(each).problem}
    found = climb([host for host in hosts if host.node.name not in simulated], ladder_script(), TILE)
    if found.exit_code:
        raise LaunchError("\n".join([*found.problem_lines(), _INSTEAD]))


_INSTEAD = (
    "require_amx is true, and nothing was started: take nodes with AMX (`clusterctl check-amx` shows all), "
    "or train without it: require_amx: false in the inventory, then `clusterctl up -i INVENTORY`"
)


def _show_plan(launch: LaunchPlan, *, as_json: bool) -> None:
    if as_json:
        shown = {"run_id": launch.run_id, "argv": launch.argv, "environment": dict(launch.environment)}
        print_json({**shown, "files": dict(launch.files), "python": launch.python})
    else:
        print(launch.render(), end="")


def _show_layout(launch: LaunchPlan, layouts: Mapping[str, NodeLayout], backend: str) -> None:
    where = f"{count(launch.world_size, 'rank')} on {count(len(launch.nodes), 'node')}"
    print(f"run {launch.run_id}: {where}, {launch.launcher} over ssh, {backend}")
    print_table([heading.upper() for heading in HEADINGS], [layouts[node].row() for node in launch.nodes])


def _run(
    options: TrainOptions,
    hosts: Sequence[SshHost],
    launch: LaunchPlan,
    job: TrainJob,
    onlooker: Onlooker | None,
    trial: Trial | None,
    interrupts: Sequence[int],
) -> RunOutcome:
    def note(event: Event) -> None:
        shown.show(event)
        if onlooker is not None:
            onlooker.feed(event)

    usual = display_for(as_json=options.as_json, ranks=launch.world_size, echo=not job.program.reports)
    with trial.display if trial else usual as shown:
        return execute(
            hosts,
            launch,
            job,
            on_event=note,
            stop_requests=lambda: len(interrupts) or int(onlooker is not None and onlooker.is_over),
            runs_folder=options.runs_folder,
        )

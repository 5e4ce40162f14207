"""One launch: lay out, check, launch on the head, follow, bring the results home."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from playbooks.amx import judge
from provision.errors import ClusterctlError, LaunchError, SettingsError
from provision.facts import NodeFacts
from provision.host import SshHost
from provision.model import Cluster
from provision.play import gather
from provision.stacks import stack_named
from run.commands.common import count, open_hosts, print_json, print_table, standing_cluster
from run.execute import RunOutcome
from run.execute import train as execute
from run.job import LaunchPlan, TrainJob, from_anywhere, make_job
from run.launchers.mpirun import plan
from run.layout import HEADINGS, LayoutSettings, NodeLayout, lay_out_all
from run.preflight import check
from run.progress import display_for
from run.resume import Request, find_checkpoint, go_on_from


@dataclass(frozen=True)
class TrainOptions:
    """The options of `train`, as the user gave them. `resume` is a run's id, or what tells it apart."""

    recipe: str
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


def launch(options: TrainOptions) -> RunOutcome | None:
    """One run, from the record as it is now; None after --dry-run."""
    job = _job(options)
    _, cluster = standing_cluster(options.name)
    with open_hosts(cluster) as hosts:
        facts = _facts(cluster, hosts)
        _refuse_without_amx(cluster, facts)
        shares = {node.name: node.core_share for node in cluster.nodes}
        layouts = lay_out_all(facts, LayoutSettings(options.ppn, options.threads, None, shares))
        stack_dir = stack_named(cluster.stack).path
        ready = check(cluster, hosts, facts, job, stack_dir=stack_dir)
        job = _from_checkpoint(options, hosts, job)
        made = plan(job, cluster, layouts, facts, stack_dir=stack_dir, master_port=ready.master_port)
        if options.dry_run:
            _show_plan(made, as_json=options.as_json)
            return None
        if not options.as_json:
            _show_layout(made, layouts)
        return _run(options, hosts, made, job)


def _job(options: TrainOptions) -> TrainJob:
    job = make_job(options.recipe, options.script_args)
    if options.rendezvous_timeout_s is not None:
        job = replace(job, rendezvous_timeout_s=options.rendezvous_timeout_s)
    asked = Request(
        options.recipe,
        from_anywhere(options.script_args),
        options.ppn,
        options.threads,
        options.rendezvous_timeout_s,
        options.resume,
    )
    return replace(job, request=asked.to_json())


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


def _facts(cluster: Cluster, hosts: Sequence[SshHost]) -> dict[str, NodeFacts]:
    """Fresh facts of every node. Raises LaunchError with a line for each node that does not answer."""
    seen = gather(cluster, hosts)
    errors = [str(each) for each in seen.values() if isinstance(each, ClusterctlError)]
    if errors:
        raise LaunchError("\n".join([*errors, "every node has to take part; run `clusterctl up` first"]))
    return {name: each for name, each in seen.items() if isinstance(each, NodeFacts)}


def _refuse_without_amx(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> None:
    if not cluster.require_amx:
        return
    problems = [f"{name}: {problem}" for name, each in facts.items() if (problem := judge(each).problem)]
    if problems:
        raise LaunchError(
            "\n".join([*problems, "require_amx is true: use nodes with AMX, or set it to false"])
        )


def _show_plan(launch: LaunchPlan, *, as_json: bool) -> None:
    if as_json:
        shown = {"run_id": launch.run_id, "argv": launch.argv, "environment": dict(launch.environment)}
        print_json({**shown, "files": dict(launch.files), "python": launch.python})
    else:
        print(launch.render(), end="")


def _show_layout(launch: LaunchPlan, layouts: Mapping[str, NodeLayout]) -> None:
    where = f"{count(launch.world_size, 'rank')} on {count(len(launch.nodes), 'node')}"
    print(f"run {launch.run_id}: {where}, mpirun over ssh, gloo")
    print_table([heading.upper() for heading in HEADINGS], [layouts[node].row() for node in launch.nodes])


def _run(options: TrainOptions, hosts: Sequence[SshHost], launch: LaunchPlan, job: TrainJob) -> RunOutcome:
    with (
        _counted_interrupts() as interrupts,
        display_for(as_json=options.as_json, ranks=launch.world_size) as shown,
    ):
        return execute(
            hosts,
            launch,
            job,
            on_event=shown.show,
            stop_requests=lambda: len(interrupts),
            runs_folder=options.runs_folder,
        )


@contextmanager
def _counted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are counted, not raised, so that the ranks are stopped in good order."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda signum, frame: received.append(signum))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

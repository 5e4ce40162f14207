"""train: lay out, check, launch on the head, follow, bring the results home."""

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
from run.job import LaunchPlan, TrainJob, make_job
from run.launchers.mpirun import plan
from run.layout import HEADINGS, LayoutSettings, NodeLayout, lay_out_all
from run.preflight import check
from run.progress import display_for

OWN_OPTIONS = ("--name", "--ppn", "--threads", "--rendezvous-timeout", "--runs", "--dry-run", "--json")


@dataclass(frozen=True)
class TrainOptions:
    """The options of `train`, as the user gave them."""

    recipe: str
    script_args: tuple[str, ...] = ()
    name: str | None = None
    ppn: int | None = None
    threads: int | None = None
    rendezvous_timeout_s: float | None = None
    runs_folder: Path = Path("runs")
    dry_run: bool = False
    as_json: bool = False


def train(options: TrainOptions) -> int:
    """Returns the exit code: 0 when the run ended well, 130 when the user stopped it."""
    _refuse_misplaced(options)
    job = make_job(options.recipe, options.script_args)
    if options.rendezvous_timeout_s is not None:
        job = replace(job, rendezvous_timeout_s=options.rendezvous_timeout_s)
    _, cluster = standing_cluster(options.name)
    with open_hosts(cluster) as hosts:
        facts = _facts(cluster, hosts)
        _refuse_without_amx(cluster, facts)
        shares = {node.name: node.core_share for node in cluster.nodes}
        layouts = lay_out_all(facts, LayoutSettings(options.ppn, options.threads, None, shares))
        stack_dir = stack_named(cluster.stack).path
        ready = check(cluster, hosts, facts, job, stack_dir=stack_dir)
        launch = plan(job, cluster, layouts, facts, stack_dir=stack_dir, master_port=ready.master_port)
        if options.dry_run:
            _show_plan(launch, as_json=options.as_json)
            return 0
        if not options.as_json:
            _show_layout(launch, layouts)
        outcome = _run(options, hosts, launch, job)
    _tell(outcome, as_json=options.as_json)
    if outcome.missing:
        raise LaunchError(
            "\n".join(
                f"{why}; its logs are missing, all else is in {outcome.folder}" for why in outcome.missing
            )
        )
    return outcome.exit_code


def _refuse_misplaced(options: TrainOptions) -> None:
    """What was meant for clusterctl and stands after `--`, where only the recipe would see it."""
    for arg in options.script_args:
        name = arg.partition("=")[0]
        if name in OWN_OPTIONS:
            raise SettingsError(f"{name} is clusterctl's own option: put it before `--`")
        if name in ("--help", "-h"):
            raise SettingsError(
                f"the arguments of {options.recipe} are those of Hugging Face's {options.recipe}.py; "
                "README.md lists them"
            )


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


def _tell(outcome: RunOutcome, *, as_json: bool) -> None:
    if as_json:
        print_json({"event": "summary", "folder": str(outcome.folder), **outcome.summary.to_json()})
        return
    print("\n".join(["", *outcome.summary.lines()]))
    print(f"{'stopped; logs' if outcome.exit_code else 'model, metrics and logs'}: {outcome.folder}")

"""train: launch, tell what came of it, and go on where nodes were about to end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from provision.errors import ClusterctlError, LaunchError, SettingsError
from run.commands.common import open_hosts, print_json, standing_cluster
from run.commands.launch import TrainOptions, launch, parse_range
from run.commands.settings import read_settings
from run.commands.tune import tune
from run.execute import RunOutcome
from run.interruption import Notice
from run.job import shell_line
from run.preflight import NodesEnding
from run.program import RECIPES, find_program
from run.resume import choose_run, read_request, rescue
from run.smoke import Smoke

OWN_OPTIONS = (
    *("--name", "--ppn", "--threads", "--rendezvous-timeout", "--runs", "--dry-run", "--json"),
    *("--resume", "--replace", "--prove-amx", "--launcher", "--nodes", "--restarts", "--idle-timeout"),
    *("--backend", "--backend-module", "--settings", "--set", "--kind", "--context", "--keep", "--smoke"),
    *("--tune", "--no-tuned"),
)
LAUNCHERS = ("mpirun", "torchrun", "docker", "kubernetes")
STOCK = {"run_qa": "run_qa.py", "run_pretraining": "run_mlm.py"}
"""The scripts of Hugging Face whose arguments the recipes take."""
STALLED_LIMIT = 3  # interruptions in a row without a new checkpoint: nodes that do not last are not paid for


@dataclass(frozen=True)
class _Attempt:
    """One launch: its exit code, the nodes that ended it, and the run to go on from (None: begin anew), with
    the options that this run had.
    """

    code: int
    options: TrainOptions
    notices: tuple[Notice, ...] = ()
    run_id: str | None = None
    is_further: bool = False


def train(options: TrainOptions) -> int:
    """Returns the exit code: 0 when the run ended well, 130 when the user stopped it, 75 when nodes were
    about to end and it can go on (see run/interruption.py).
    """
    _refuse_misplaced(options)
    if options.tune:
        return tune(options)
    options = _with_request(options)
    if options.launcher == "kubernetes":
        return _on_kubernetes(options)
    if options.smoke:
        return _smoke(options)
    stalled = 0
    while True:
        done = _attempt(options)
        if not _may_replace(options, done.notices):
            return done.code
        stalled = 0 if done.is_further else stalled + 1
        if stalled == STALLED_LIMIT:
            raise LaunchError(
                f"{stalled} times in a row nodes ended before a checkpoint was made; choose nodes that last "
                "longer, or make checkpoints often: `-- --save_strategy steps --save_steps 50`"
            )
        _replace_nodes(options, done)
        options = replace(done.options, resume=done.run_id)


def _on_kubernetes(options: TrainOptions) -> int:
    """Pods of the cluster that kubectl knows; none of clusterctl's own takes part. Raises SettingsError."""
    from run.commands.kubernetes import KubernetesOptions, train_on_kubernetes
    from run.launchers.pod_settings import KubernetesSettings

    not_there = {"--name": options.name, "--resume": options.resume, "--backend": options.backend}
    for option, value in not_there.items():
        if value:
            raise SettingsError(f"{option}: not on Kubernetes, where no cluster of clusterctl's takes part")
    counts = {"ppn": options.ppn, "threads": options.threads, "restarts": options.restarts or None}
    extra = {key: value for key, value in counts.items() if value is not None} | _pods(options.nodes)
    settings = read_settings(KubernetesSettings, options.settings_file, options.settings, extra)
    return train_on_kubernetes(
        KubernetesOptions(
            find_program(options.program, options.kind),
            options.script_args,
            settings,
            options.kubernetes.kind,
            options.kubernetes.context,
            options.runs_folder,
            options.kubernetes.keep,
            options.dry_run,
            options.as_json,
            options.rendezvous_timeout_s,
        )
    )


def _smoke(options: TrainOptions) -> int:
    """A minute on one node, and what an epoch would take on more. Raises SettingsError for other programs."""
    if options.program not in RECIPES:
        raise SettingsError("--smoke: only recipes tell how far they are; give your script few steps instead")
    _, cluster = standing_cluster(options.name)
    smoke = Smoke(time.monotonic)
    outcome = launch(replace(options, nodes="1"), smoke)
    if outcome is None:
        return 0
    if outcome.exit_code and not smoke.is_over:
        return outcome.exit_code
    if options.as_json:
        print_json({"event": "smoke", "epoch_s": smoke.epoch_s, "folder": str(outcome.folder)})
    else:
        print("\n".join(["", *smoke.lines(len(cluster.nodes))]))
    return 0


def _pods(nodes: str | None) -> dict[str, int]:
    """The settings that "4", or "2:4", means: with most of them it begins."""
    if nodes is None:
        return {}
    least, most = parse_range(nodes)
    return {"nodes": most} if least == most else {"nodes": most, "min_nodes": least, "max_nodes": most}


def _attempt(options: TrainOptions) -> _Attempt:
    try:
        outcome = launch(options)
    except NodesEnding as error:
        if not _may_replace(options, error.notices):
            raise
        return _Attempt(error.exit_code, options, error.notices, options.resume)
    if outcome is None:
        return _Attempt(0, options)
    _tell(options, outcome)
    interruption = outcome.summary.interruption
    if interruption is None:
        return _Attempt(outcome.exit_code, options)
    if interruption.checkpoint is None:
        return _Attempt(outcome.exit_code, options, interruption.notices, options.resume)
    launched = _as_launched(options, outcome)
    return _Attempt(outcome.exit_code, launched, interruption.notices, outcome.run_id, is_further=True)


def _as_launched(options: TrainOptions, outcome: RunOutcome) -> TrainOptions:
    """The options with what --tune had kept, where the run used it: it goes on as it began."""
    asked = outcome.request
    if not asked:
        return options
    return replace(options, ppn=asked["ppn"], script_args=tuple(asked["script_args"]))


def _with_request(options: TrainOptions) -> TrainOptions:
    """With --resume: that run's arguments and options, before what was given now, which wins."""
    if options.resume is None:
        return replace(options, launcher=options.launcher or LAUNCHERS[0])
    run_id = choose_run(options.runs_folder, options.resume)
    asked = read_request(options.runs_folder, run_id)
    if asked.recipe != options.program:
        raise SettingsError(
            f"{run_id} trained {asked.recipe}: clusterctl train {asked.recipe} --resume {run_id}"
        )
    return replace(
        options,
        resume=run_id,
        script_args=(*asked.script_args, *options.script_args),
        ppn=options.ppn or asked.ppn,
        threads=options.threads or asked.threads,
        rendezvous_timeout_s=options.rendezvous_timeout_s or asked.rendezvous_timeout_s,
        launcher=options.launcher or asked.launcher,
        nodes=options.nodes or asked.nodes,
        restarts=options.restarts or asked.restarts,
        backend=options.backend or asked.backend,
        backend_module=options.backend_module or asked.backend_module,
    )


def _may_replace(options: TrainOptions, notices: Sequence[Notice]) -> bool:
    """A time to live that is over is the user's own word: no node is made against it."""
    return options.replace_nodes and bool(notices) and all(notice.is_accident for notice in notices)


def _replace_nodes(options: TrainOptions, done: _Attempt) -> None:
    """New nodes in the place of those that end. Raises LaunchError, with how to go on."""
    from run.commands.up import UpOptions, up

    names = tuple(notice.node for notice in done.notices)
    try:
        _rescue(options, done.run_id, names)
        code = up(UpOptions(name=options.name, replace=names, yes=True, as_json=options.as_json))
        problem = f"{', '.join(names)} cannot be replaced" if code else ""
    except ClusterctlError as error:
        problem = str(error)
    if problem:
        commands = _go_on(options, done.notices, done.run_id)
        raise LaunchError("\n  ".join([f"{problem}; to go on:", *commands]))


def _rescue(options: TrainOptions, run_id: str | None, leaving: Sequence[str]) -> None:
    """No node goes with the only checkpoint of the run. Raises HostError."""
    if run_id is not None:
        _, cluster = standing_cluster(options.name)
        with open_hosts(cluster) as hosts:
            rescue(hosts, options.runs_folder, run_id, leaving)


def _go_on(options: TrainOptions, notices: Sequence[Notice], run_id: str | None) -> tuple[str, ...]:
    """The commands that go on with an interrupted run."""
    name = f" --name {options.name}" if options.name else ""
    anew = "".join(f" --replace {notice.node}" for notice in notices if notice.is_accident)
    args = f" -- {shell_line(options.script_args)}" if options.script_args else ""
    resume = f" --resume {run_id}" if run_id else args
    return (f"clusterctl up{name}{anew}", f"clusterctl train {options.program}{name}{resume}")


def _refuse_misplaced(options: TrainOptions) -> None:
    """What was meant for clusterctl and stands after `--`, where only the recipe would see it."""
    if options.launcher and options.launcher not in LAUNCHERS:
        raise SettingsError(f"no launcher {options.launcher!r}; there is {', '.join(LAUNCHERS)}")
    if options.program not in RECIPES:
        if options.resume or options.replace_nodes:
            raise SettingsError("--resume and --replace are for recipes; give your script its own checkpoint")
        return
    for arg in options.script_args:
        name = arg.partition("=")[0]
        if name in OWN_OPTIONS:
            raise SettingsError(f"{name} is clusterctl's own option: put it before `--`")
        if name in ("--help", "-h"):
            raise SettingsError(
                f"the arguments of {options.program} are those of Hugging Face's {STOCK[options.program]}; "
                "README.md lists them"
            )


def _tell(options: TrainOptions, outcome: RunOutcome) -> None:
    """Raises LaunchError for nodes whose logs are missing, unless they were known to end."""
    interruption = outcome.summary.interruption
    notices = interruption.notices if interruption else ()
    about = {"event": "summary", "folder": str(outcome.folder), **outcome.summary.to_json()}
    go_on: tuple[str, ...] = ()
    if interruption is not None:
        run_id = outcome.run_id if interruption.checkpoint else options.resume
        go_on = _go_on(options, notices, run_id)
    if options.as_json:
        print_json({**about, "go_on": go_on} if go_on else about)
    else:
        print("\n".join(["", *outcome.summary.lines(), *_ending(outcome)]))
        if _may_replace(options, notices):
            print("making new nodes, and going on")
        elif go_on:
            print("\n  ".join(["go on with", *go_on]))
    missing = [f"{why}; its logs are missing, all else is in {outcome.folder}" for why in outcome.missing]
    if missing and interruption is None:
        raise LaunchError("\n".join(missing))


def _ending(outcome: RunOutcome) -> Iterator[str]:
    """What came of the run and where it lies, in lines."""
    if outcome.summary.interruption is not None:
        yield str(outcome.summary.interruption)
        yield f"interrupted; logs: {outcome.folder}"
    else:
        yield f"{'stopped; logs' if outcome.exit_code else 'model, metrics and logs'}: {outcome.folder}"

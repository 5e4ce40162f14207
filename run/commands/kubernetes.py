"""train --launcher kubernetes: create the job, follow its pods, delete it; `image`: what they run from."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from provision.errors import LaunchError, SettingsError
from provision.stacks import stack_named
from run.commands.common import count, print_json
from run.commands.interrupts import counted_interrupts
from run.events import Event
from run.follow_pods import Followed, Follower, Limits
from run.interruption import STOPPED_CODE
from run.job import LaunchPlan, RankPlacement, TrainJob, make_job
from run.kube import Kubectl, selector_of
from run.launchers.images import build_command, image_context, image_name, write_context
from run.launchers.kubernetes import manifests, render
from run.launchers.pod import Manifest, job_name, output_folder
from run.launchers.pod_settings import KubernetesSettings
from run.podlogs import PodLogs
from run.pods import Pod
from run.program import Program
from run.progress import Display, PlainDisplay, display_for
from run.summary import RunSummary, summarise

DELETE_S = 60.0
"""For pods to be gone: they are given 30 s to end, and the kubelet takes its time."""


@dataclass(frozen=True)
class KubernetesOptions:
    """What the user asked for. `kind` is pytorchjob or trainjob, `context` one of kubectl's or its current.

    `keep` leaves the job where it is after its end, for a look at it; Ctrl-C deletes it all the same.
    """

    program: Program
    script_args: tuple[str, ...]
    settings: KubernetesSettings
    kind: str = "pytorchjob"
    context: str | None = None
    runs_folder: Path = Path("runs")
    keep: bool = False
    dry_run: bool = False
    as_json: bool = False
    rendezvous_timeout_s: float | None = None
    limits: Limits = field(default_factory=Limits)


def train_on_kubernetes(options: KubernetesOptions) -> int:
    """Returns the exit code: 0 when the job ended well, 130 when the user stopped it.

    Raises SettingsError before anything is created, LaunchError when the job could not run or ended badly.
    """
    job = make_job(options.program, options.script_args)
    if options.rendezvous_timeout_s is not None:
        job = replace(job, rendezvous_timeout_s=options.rendezvous_timeout_s)
    made = manifests(job, options.settings, options.kind)
    if options.dry_run:
        _show(made, as_json=options.as_json)
        return 0
    return _Launch(options, job, made).run()


def _show(made: Sequence[Manifest], *, as_json: bool) -> None:
    if as_json:
        print_json(made)
    else:
        print(render(tuple(made)), end="")


class _Launch:
    """One job from its creation to its deletion."""

    def __init__(self, options: KubernetesOptions, job: TrainJob, made: tuple[Manifest, ...]) -> None:
        self._options, self._job, self._made = options, job, made
        self._name = job_name(job.run_id)
        self._selector = selector_of(options.kind, self._name)
        self._folder = options.runs_folder / job.run_id
        self._kubectl = Kubectl(options.settings.namespace, options.context)
        self._events: list[Event] = []
        self._pods: tuple[Pod, ...] = ()

    def run(self) -> int:
        with counted_interrupts() as interrupts:
            began_s = time.monotonic()
            created = self._kubectl.create(render(self._made))
            self._say(f"run {self._job.run_id}: {self._size()}; created {', '.join(created)}")
            problem: str | None = None
            try:
                problem = self._follow(created, interrupts)
            except LaunchError as error:
                problem = str(error)
            finally:
                left = self._clean_up(created, is_stopped=bool(interrupts))
        stopped = "stopped" if interrupts else None
        summary = self._keep_results(problem or stopped, time.monotonic() - began_s)
        self._tell(summary, left)
        if problem and not interrupts:
            raise LaunchError("\n  ".join([f"{problem}; logs are in {self._folder / 'logs'}", *left]))
        return STOPPED_CODE if interrupts else 0

    def _follow(self, created: Sequence[str], interrupts: Sequence[int]) -> str | None:
        settings = self._options.settings
        job = Followed(
            reference=created[-1],
            name=self._name,
            selector=self._selector,
            least_pods=settings.least_nodes,
            forgives=settings.is_elastic or self._options.kind == "trainjob",
        )
        logs = PodLogs(self._kubectl, self._folder / "logs")
        with self._display() as shown:
            follower = Follower(
                self._kubectl,
                job,
                logs,
                on_event=lambda event: self._take(event, shown),
                stop_requests=lambda: len(interrupts),
                limits=self._options.limits,
            )
            try:
                return follower.follow()
            finally:
                self._pods = follower.pods
                logs.close()

    def _display(self) -> Display:
        ranks = self._options.settings.nodes * self._options.settings.ppn
        if not self._options.program.reports and not self._options.as_json:
            return PlainDisplay(ranks)
        return display_for(as_json=self._options.as_json, ranks=ranks)

    def _take(self, event: Event, shown: Display) -> None:
        """A recipe's plain output is in the logs alone; that of a program of the user's is all it says."""
        if event.name not in ("output", "heartbeat", "progress"):
            self._events.append(event)
        if event.name == "output" and not self._options.program.reports and not self._options.as_json:
            print(event.text, flush=True)
        shown.show(event)

    def _clean_up(self, created: Sequence[str], *, is_stopped: bool) -> tuple[str, ...]:
        """Delete what was created; a line for each thing that remains, with how to delete it."""
        by_hand = self._kubectl.command("delete", *created)
        if self._options.keep and not is_stopped:
            return (f"kept; when you have seen it: {by_hand}",)
        self._say(f"deleting {', '.join(created)}")
        try:
            problem = self._kubectl.delete(created, DELETE_S)
            pods = [] if problem else self._await_no_pods()
        except LaunchError as error:
            problem, pods = str(error), []
        if problem:
            return (f"not deleted: {problem}; delete it by hand: {by_hand}",)
        if not pods:
            return ()
        there = ", ".join(pod.name for pod in pods)
        return (f"still ending: {there}; see {self._kubectl.command('get', 'pods', '-l', self._selector)}",)

    def _await_no_pods(self) -> tuple[Pod, ...]:
        """The pods that are left after DELETE_S."""
        deadline = time.monotonic() + DELETE_S
        while pods := self._kubectl.pods(self._selector):
            if time.monotonic() > deadline:
                return pods
            time.sleep(0.5)
        return ()

    def _keep_results(self, problem: str | None, duration_s: float) -> RunSummary:
        """The manifests and the summary beside the logs."""
        summary = summarise(self._as_plan(), self._events, duration_s, problem)
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "manifests.yaml").write_text(render(self._made))
        about = {**summary.to_json(), "pods": [asdict(pod) for pod in self._pods]}
        (self._folder / "summary.json").write_text(json.dumps(about, indent=2) + "\n")
        return summary

    def _as_plan(self) -> LaunchPlan:
        """The run as other launchers plan theirs, with pods as nodes."""
        pods = [pod.name for pod in self._pods] or [self._name]
        threads, ppn = self._options.settings.threads_a_rank, self._options.settings.ppn
        ranks = tuple(
            RankPlacement(number * ppn + local, pod, local, (), threads)
            for number, pod in enumerate(pods)
            for local in range(ppn)
        )
        return LaunchPlan(
            self._job.run_id, tuple(pods), ranks, (), {}, "", {}, {}, launcher="kubernetes",
            restarts=self._options.settings.restarts,
        )  # fmt: skip

    def _tell(self, summary: RunSummary, left: Sequence[str]) -> None:
        model = self._where_the_model_is() if summary.problem is None else ""
        if self._options.as_json:
            about = {"event": "summary", "folder": str(self._folder), **summary.to_json()}
            print_json({**about, "left": left, **({"model": model} if model else {})})
            return
        told = f"{summary.problem}; logs: {self._folder}" if summary.problem else f"logs: {self._folder}"
        lines = [] if summary.problem else ["", *summary.lines()]
        is_raised = summary.problem not in (None, "stopped")
        print("\n".join([*lines, *([] if is_raised else [told, *left]), *([model] if model else [])]))

    def _where_the_model_is(self) -> str:
        settings = self._options.settings
        if not self._options.program.reports:
            return ""
        if settings.volume is None:
            return "the model was in the pod of rank 0, and is gone with it; --set volume=CLAIM keeps it"
        return f"model and metrics: {output_folder(self._job, settings)} on the volume {settings.volume}"

    def _size(self) -> str:
        settings = self._options.settings
        ranks = count(settings.nodes * settings.ppn, "rank")
        pods = f"{count(settings.nodes, 'pod')} of {settings.cpu} CPUs and {settings.memory_gib:g} GiB"
        return f"{ranks} x {settings.threads_a_rank} threads in {pods}"

    def _say(self, text: str) -> None:
        if self._options.as_json:
            print_json({"event": "note", "text": text})
        else:
            print(text, flush=True)


# --- the image ---------------------------------------------------------------------------------


def image(
    output: Path,
    stack: str = "native",
    tag: str | None = None,
    torch_index: str | None = None,
    stack_index: str | None = None,
    packages: Sequence[str] = (),
    *,
    as_json: bool = False,
) -> int:
    """Write what an image for the pods is built from, and say how; nothing that is there is overwritten.

    The indexes and packages are as in an inventory. Raises SettingsError when a file is in the way.
    """
    chosen = stack_named(stack, torch_index, stack_index, packages)
    name = tag or image_name(chosen)
    try:
        write_context(output, image_context(chosen))
    except OSError as error:
        raise SettingsError(f"{output}: {error.strerror}; choose another folder") from error
    commands = [build_command(engine, name, output) for engine in ("docker", "podman")]
    if as_json:
        print_json({"folder": str(output), "image": name, "commands": commands})
        return 0
    print(f"{output}: build it, and push it where the nodes of your cluster find it:")
    with suppress(BrokenPipeError):
        print("\n".join(f"  {command}" for command in commands))
    return 0

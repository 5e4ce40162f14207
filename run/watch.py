"""Is a run going well, and if not, why? Fed with events and the time; touches nothing."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Container
from dataclasses import dataclass

from run.events import Event
from run.interruption import STOP_BEFORE_S, Checkpoint, Interruption, Notice, parse_notice
from run.job import LaunchPlan, TrainJob
from run.launchers.containers import remedy

FAILURE_GRACE_S = 3.0
"""After a rank's failure, so that the cause can still arrive when its victims were quicker."""
HEARTBEAT_S = 5.0
BUSY_SHARE = 0.02
"""Of a core between two heartbeats: a rank that polls, or waits in gloo, uses less (0.2 % measured)."""
READY_MARGIN_S = 30.0
"""Importing torch takes a while before the rendezvous begins, and the recipe itself names who is missing."""
SSH_FAILED = 255
OUT_OF_MEMORY = "out of memory? see `dmesg` there"
_ABORTED_AT_EXIT = "terminate called without an active exception"
AT_EXIT = (
    "Python ended under a thread of gloo's, a known fault of PyTorch's; where all the work was done, let the "
    "script end with `sys.stdout.flush(); os._exit(0)`"
)
"""Such a thread lets go of a tensor, wants the GIL for that, and is ended by an interpreter that ends. So
ended 13 of 220 ranks that had trained 20 steps with DDP on two busy cores, after destroy_process_group(),
and 6 of 120 that had deleted their model before it; none of 120 that left by os._exit.
"""
_PEER_LOST = re.compile(r"onnection (closed|reset) by peer|Broken pipe|onnection refused|Socket closed", re.I)
_HINT = re.compile(r"(Run|See) '(docker|podman) run --help'")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '\w")
_NO_PROXY = re.compile(r"[Uu]nable to run bstrap_proxy on (\S+)")


@dataclass
class _Rank:
    """What is known of one rank. `busy_s` is when it was last seen to compute or print."""

    number: int
    node: str
    heard_s: float
    busy_s: float
    started: bool = False
    ready: bool = False
    ended: bool = False
    last_line: str = ""
    cpu_s: float = 0.0

    @property
    def name(self) -> str:
        return f"rank {self.number} on {self.node}"


@dataclass(frozen=True)
class _LostAgent:
    """A node's torchrun, or container, that ended badly, and the last that it said."""

    node: str
    code: int
    said: str


@dataclass(frozen=True)
class _Failure:
    """A rank that ended badly. The most telling kind of failure sorts first, then the earliest."""

    telling: int
    order: int
    text: str


class Watch:
    """Follows the ranks of one run. Times are seconds of one clock, the first being the launch."""

    def __init__(self, plan: LaunchPlan, job: TrainJob, now_s: float) -> None:
        self._job, self._launched_s = job, now_s
        self._head = plan.nodes[0]
        self._may_restart = plan.restarts > 0
        self._renumbers = plan.launcher != "mpirun"
        self._has_image = plan.launcher not in ("mpirun", "torchrun")
        self._ranks = {place.rank: _Rank(place.rank, place.node, now_s, now_s) for place in plan.ranks}
        self._failures: list[_Failure] = []
        self._failed_s = float("inf")
        self._errors: dict[int | None, str] = {}
        self._output: deque[str] = deque(maxlen=5)
        self._lost_agents: list[_LostAgent] = []
        self._launcher_code: int | None = None
        self._verdict: str | None = None
        self._notices: dict[str, Notice] = {}
        self._stop_at_s = float("inf")
        self._out_of_time = False
        self._checkpoint: Checkpoint | None = None
        self._ended_for_notice = False

    @property
    def all_started(self) -> bool:
        return all(rank.started for rank in self._ranks.values())

    @property
    def all_done(self) -> bool:
        """Every rank reported a good end, and so did the launcher."""
        ended = all(rank.ended for rank in self._ranks.values())
        return ended and not self._failures and self._launcher_code == 0

    def feed(self, event: Event, now_s: float) -> None:
        rank = self._ranks.get(event.rank) if event.rank is not None else None
        if event.name == "start" and self._may_restart and rank is not None and rank.started:
            rank = self._begin_anew(rank, event, now_s)
        if event.name == "launcher_exit":
            self._launcher_code = int(event.data.get("code", -1))
        elif event.name == "error":
            self._errors.setdefault(event.rank, event.text)
        elif event.name == "agent_exit":
            self._lost_agents.append(_lost_agent(event))
        elif event.name == "output":
            self._take_output(event.text, now_s)
        elif event.name == "notice":
            self._take_notice(event, now_s)
        elif event.name in ("checkpoint", "interrupted"):
            self._checkpoint = Checkpoint(int(event.data.get("step", 0)), str(event.data.get("path", "")))
            self._ended_for_notice = event.name == "interrupted"
        if rank is not None and event.name != "rank_summary":  # rank 0 sends those for all
            self._take(rank, event, now_s)

    def verdict(self, now_s: float) -> str | None:
        """Why the run must be ended now; None while it may go on. Once given it stays: what comes after
        is the end's own doing.
        """
        if self._verdict is None:
            failed = self.cause() if now_s - self._failed_s > self._failure_grace_s else None
            late = self._not_started(now_s) or self._not_ready(now_s) or self._lost(now_s)
            self._verdict = failed or late or self._idle(now_s)
        return self._verdict

    def cause(self) -> str | None:
        """Why the run ended badly, once all output has come; None when it ended well."""
        if self._verdict:
            return self._verdict
        if self._failures:
            return self._most_telling()
        if self.all_done:
            return None
        if None in self._errors:
            return self._errors[None]
        return self._launcher_failed()

    def is_out_of_time(self, now_s: float) -> bool:
        """Whether the run must be stopped because a node ends and its checkpoint has not come. Once it is, it
        stays so.
        """
        self._out_of_time = self._out_of_time or (now_s >= self._stop_at_s and not self._ended_for_notice)
        return self._out_of_time

    def interruption(self, gone: Container[str] = ()) -> Interruption | None:
        """Why the run came to no end of its own, once all output has come, if that is because nodes end.

        `gone` are nodes that do not answer any more: one that ended earlier than it was told to counts too.
        """
        lost = self.cause() is not None and any(node in gone for node in self._notices)
        if not self._notices or not (self._ended_for_notice or self._out_of_time or lost):
            return None
        return Interruption(tuple(self._notices.values()), self._checkpoint, self._ended_for_notice)

    def _take_notice(self, event: Event, now_s: float) -> None:
        notice = parse_notice(event.node or "", event.data)
        if notice is not None:
            self._notices[notice.node] = notice
            left_s = float(event.data.get("left_s", 0))
            self._stop_at_s = min(self._stop_at_s, now_s + left_s - STOP_BEFORE_S)

    def _most_telling(self) -> str:
        """Of all that failed, the one that says why.

        A rank that told its error and has not ended yet is that one: its peers, told of it, may be quicker
        to end than it is.
        """
        first = min(self._failures, key=lambda failure: (failure.telling, failure.order))
        if first.telling == 0:
            return first.text
        for number, text in self._errors.items():
            if number in self._ranks and not _PEER_LOST.search(text):
                return f"{self._ranks[number].name}: {text}"
        return first.text

    def _take_output(self, text: str, now_s: float) -> None:
        if text.strip() and not _HINT.match(text):
            self._output.append(text)
        prefix = re.match(r"\[(\d+)\] ", text)
        if prefix and int(prefix[1]) in self._ranks:
            rank = self._ranks[int(prefix[1])]
            rank.last_line, rank.busy_s = text[prefix.end() :], now_s

    def _take(self, rank: _Rank, event: Event, now_s: float) -> None:
        rank.heard_s = now_s
        rank.started = True
        if event.name == "start":
            rank.node = (event.node or rank.node) if self._renumbers else rank.node
            rank.ready = not self._job.program.reports
        if event.name != "heartbeat":
            rank.busy_s = now_s
        else:
            before_s, rank.cpu_s = rank.cpu_s, float(event.data.get("cpu_s", 0))
            rank.busy_s = now_s if rank.cpu_s - before_s > BUSY_SHARE * HEARTBEAT_S else rank.busy_s
        if event.name == "ready":
            rank.ready = True
        elif event.name == "killed" and not rank.ended:
            rank.ended = True
            self._fail(now_s, 1, f"{rank.name} was killed: {OUT_OF_MEMORY}")
        elif event.name == "exit" and not rank.ended:
            rank.ended = True
            if event.data.get("code") != 0:
                self._exited(rank, event, now_s)

    def _exited(self, rank: _Rank, event: Event, now_s: float) -> None:
        code = int(event.data.get("code", -1))
        lines = event.data.get("last_lines") or ["it printed nothing"]
        told = self._errors.get(rank.number)
        why = self._with_remedy(told or str(lines[-1]))
        ending = f"ended with exit code {code}: {why}"
        if code > 128:
            ending = f"was killed by signal {code - 128}: {_hint(code - 128, why)}last output: {why}"
        telling = 3 if _PEER_LOST.search(why) else 0 if told else 1 if code > 128 else 2
        self._fail(now_s, telling, f"{rank.name} {ending}")

    def _with_remedy(self, why: str) -> str:
        if self._job.program.reports or not _NO_MODULE.search(why):
            return why
        image, inventory = "the image, `clusterctl image --package`", "`packages` of the inventory"
        return f"{why}; what pip has goes into {image if self._has_image else inventory}"

    def _fail(self, now_s: float, telling: int, text: str) -> None:
        self._failed_s = min(self._failed_s, now_s)
        self._failures.append(_Failure(telling, len(self._failures), text))

    def _not_started(self, now_s: float) -> str | None:
        missing = [rank for rank in self._ranks.values() if not rank.started]
        limit_s = self._job.start_timeout_s
        if not missing or now_s - self._launched_s < limit_s:
            return None
        return f"{_names(missing)} did not start within {limit_s:.0f} s; {self._said()}"

    def _not_ready(self, now_s: float) -> str | None:
        missing = [rank for rank in self._ranks.values() if not rank.ready and not rank.ended]
        limit_s = self._job.rendezvous_timeout_s
        if not missing or now_s - self._launched_s < limit_s + READY_MARGIN_S:
            return None
        said = missing[0].last_line or "nothing"
        return f"{_names(missing)} did not meet the others within {limit_s:.0f} s; last output: {said}"

    def _lost(self, now_s: float) -> str | None:
        running = [rank for rank in self._ranks.values() if rank.started and not rank.ended]
        limit_s = self._job.lost_after_s + (self._failure_grace_s if self._may_restart else 0)
        silent = [rank for rank in running if now_s - rank.heard_s > limit_s]
        if not silent:
            return None
        limit = f"nothing heard for {limit_s:.0f} s"
        if len(silent) == len(self._ranks) > 1:
            return (
                f"all ranks are lost ({limit}): {self._head} or the way to it fails; try `clusterctl status`"
            )
        return f"{_names(silent)} is lost ({limit}); is that node up? try `clusterctl status`"

    def _idle(self, now_s: float) -> str | None:
        """All wait, and for what will not come: a collective that one of them never enters, a lock."""
        running = [rank for rank in self._ranks.values() if rank.started and not rank.ended]
        limit_s = self._job.idle_after_s
        if not running or any(now_s - rank.busy_s <= limit_s for rank in running):
            return None
        said = next((rank.last_line for rank in running if rank.last_line), "nothing")
        return (
            f"no rank has printed or computed anything for {limit_s:.0f} s; last output: {said}; if it is to "
            "wait that long, give it more with --idle-timeout"
        )

    def _begin_anew(self, rank: _Rank, event: Event, now_s: float) -> _Rank:
        """The launcher has started the ranks again, maybe fewer of them: what was before counts no more."""
        world_size = int(event.data.get("world_size", len(self._ranks)))
        nodes = {number: each.node for number, each in self._ranks.items()}
        self._ranks = {
            number: _Rank(number, nodes.get(number, "a node"), now_s, now_s) for number in range(world_size)
        }
        self._failures, self._failed_s, self._errors = [], float("inf"), {}
        self._lost_agents = []
        self._launched_s = now_s
        return self._ranks[rank.number]

    @property
    def _failure_grace_s(self) -> float:
        """How long after a failure the run may still be saved, or its cause be told."""
        if not self._may_restart or self._launcher_code is not None:
            return FAILURE_GRACE_S
        return self._job.rendezvous_timeout_s + READY_MARGIN_S

    def _launcher_failed(self) -> str:
        said = self._said()
        blamed = _NO_PROXY.search(" ".join(self._output))
        if blamed:
            return (
                f"{blamed[1]}: {self._head} cannot start processes there over ssh; try "
                f"`ssh {blamed[1]} true` on {self._head}, and `clusterctl up` to make the mesh right"
            )
        if self._lost_agents:
            return self._agent_failed()
        if self._launcher_code is None:
            return f"{self._head}: the connection ended in the middle of the run; {said}"
        running = [rank for rank in self._ranks.values() if not rank.ended]
        who = f"; {_names(running)} never reported an end" if running else ""
        return f"{self._head}: the launcher ended with exit code {self._launcher_code}{who}; {said}"

    def _agent_failed(self) -> str:
        """The first to end is the cause, and so are others that ended alike."""
        first = self._lost_agents[0]
        alike = (each for each in self._lost_agents if (each.code, each.said) == (first.code, first.said))
        nodes = ", ".join(each.node for each in alike)
        what = "container" if self._has_image else "agent"
        ended = f"the {what} ended with exit code {first.code}"
        if first.code == SSH_FAILED:
            ended = f"the way there from {self._head} was lost"
        fix = remedy(first.said) if self._has_image else ""
        return "; ".join(filter(None, (f"{nodes}: {ended}: {first.said}", fix)))

    def _said(self) -> str:
        # The last line alone: hydra's own are many and say little.
        return f"last output: {self._output[-1][:200]}" if self._output else "there was no output"


def _lost_agent(event: Event) -> _LostAgent:
    """The last line of its own words; torchrun's banners have lines of dashes alone."""
    node, lines = event.node or "", event.data.get("last_lines") or ()
    told = [line for line in lines if re.search(r"\w", line) and not _HINT.match(line)]
    said = told[-1].removeprefix(f"{node}: ")[:300] if told else "it said nothing"
    return _LostAgent(node, int(event.data.get("code", -1)), said)


def _hint(number: int, why: str) -> str:
    """What a signal mostly means, as the beginning of a line; empty where that is not known."""
    if number == signal.SIGKILL:
        return f"{OUT_OF_MEMORY}; "
    return f"{AT_EXIT}; " if number == signal.SIGABRT and why == _ABORTED_AT_EXIT else ""


def _names(ranks: list[_Rank]) -> str:
    shown = ", ".join(rank.name for rank in ranks[:4])
    return shown if len(ranks) <= 4 else f"{shown} and {len(ranks) - 4} more"

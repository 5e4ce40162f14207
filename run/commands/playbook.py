"""playbook: list, show and run the site's playbooks and the user's own; the same path as `up`."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from playbooks import site
from provision.errors import ClusterctlError, SettingsError
from provision.facts import NodeFacts
from provision.model import Cluster, Node
from provision.play import Playbook, SiteResult, view_of
from provision.playbook_file import load_playbooks
from provision.recorded import converge_cluster, known_facts
from provision.report import counts_by_node, recap_lines, report_for
from provision.state import recorded_names
from provision.step import Mode, Status, Step
from run.commands.common import failure_lines, print_json, print_table, standing_cluster

SITE = "site"


def playbooks_of(files: Sequence[str]) -> tuple[Playbook, ...]:
    """The site's playbooks and then the user's own. Raises SettingsError, for two of one name too."""
    playbooks = (*site.PLAYBOOKS, *(each for file in files for each in load_playbooks(Path(file))))
    names = [playbook.name for playbook in playbooks]
    for playbook in playbooks:
        if names.count(playbook.name) > 1:
            there = next((each.source for each in reversed(playbooks) if each.name == playbook.name), None)
            raise SettingsError(f"{there}: there is a playbook {playbook.name!r} already; set another NAME")
    return playbooks


@dataclass(frozen=True)
class PlaybookOptions:
    """The options of `playbook run`, as the user gave them."""

    playbooks: tuple[str, ...]
    name: str | None = None
    limit: str | None = None
    tags: str | None = None
    step: str | None = None
    check: bool = False
    diff: bool = False
    as_json: bool = False


def run(options: PlaybookOptions) -> int:
    """Returns the exit code: 0 when every step is ok on every node, else 1."""
    started = time.monotonic()
    state, cluster = standing_cluster(options.name)
    playbooks = chosen(options.playbooks, cluster)
    nodes = limited(cluster, options.limit)
    selection = Selected(frozenset(_words(options.tags)), options.step)
    with (
        nullcontext() if options.check else state.locked(),
        report_for(as_json=options.as_json, nodes=[node.name for node in nodes]) as report,
    ):
        mode = Mode(options.check, options.diff)
        result = converge_cluster(cluster, state, playbooks, mode, report, nodes, selection)
    _refuse_nothing(options, result)
    _tell(options, cluster, result, time.monotonic() - started)
    return 1 if result.failed else 0


@dataclass(frozen=True)
class Selected:
    """Steps by tag (of the step or its playbook, their names counting as tags) and by name or pattern."""

    tags: frozenset[str] = frozenset()
    step: str | None = None

    def __call__(self, playbook: Playbook, step: Step) -> bool:
        own = {playbook.name, *playbook.tags, step.name, *getattr(step, "tags", ())}
        return (not self.tags or bool(self.tags & own)) and (
            self.step is None or step.name == self.step or fnmatchcase(step.name, self.step)
        )


def chosen(wanted: Sequence[str], cluster: Cluster) -> tuple[Playbook, ...]:
    """Playbooks by name, by path, or all (`site`), as given and each once.

    Raises SettingsError, naming those there are.
    """
    there = playbooks_of(cluster.playbooks)
    found: dict[str, Playbook] = {}
    for word in (word for each in wanted for word in _words(each)):
        if word == SITE:
            matching = list(there)
        elif word.endswith(".py") or "/" in word:
            matching = list(load_playbooks(Path(word).resolve()))
        else:
            matching = [playbook for playbook in there if playbook.name == word]
        if not matching:
            names = ", ".join(playbook.name for playbook in there)
            raise SettingsError(
                f"no playbook {word!r}; there is {SITE} (all), {names}, or a path of your own"
            )
        found |= {playbook.name: playbook for playbook in matching}
    return tuple(found.values())


def limited(cluster: Cluster, limit: str | None) -> tuple[Node, ...]:
    """The nodes that a --limit means: names, patterns, `head`, `workers`; all without one.

    Raises SettingsError when it matches none.
    """
    if limit is None:
        return cluster.nodes
    groups = {"head": (cluster.head,), "workers": cluster.workers}
    matching = [
        node
        for node in cluster.nodes
        for pattern in _words(limit)
        if node in groups.get(pattern, ()) or fnmatchcase(node.name, pattern) or pattern == node.address
    ]
    if not matching:
        names = ", ".join(node.name for node in cluster.nodes)
        raise SettingsError(f"--limit {limit}: no such node; there is {names} (or head, workers)")
    return tuple(dict.fromkeys(matching))


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _refuse_nothing(options: PlaybookOptions, result: SiteResult) -> None:
    """Raises SettingsError when --tags or --step left nothing to do: it was mistyped, most likely."""
    done = [each for each in result.results if each.status is not Status.SKIPPED]
    if (options.tags or options.step) and not done and result.results:
        given = " ".join(
            f"--{name} {value}" for name, value in (("tags", options.tags), ("step", options.step)) if value
        )
        raise SettingsError(f"{given}: no step is of that; `clusterctl playbook show NAME` names them")


def _tell(options: PlaybookOptions, cluster: Cluster, result: SiteResult, seconds: float) -> None:
    recap = counts_by_node(result.results)
    if options.as_json:
        print_json(
            {
                "event": "recap",
                "cluster": cluster.name,
                "recap": recap,
                "changed": result.changed,
                "failed": failure_lines(result),
                "seconds": round(seconds, 2),
            }
        )
        return
    print("\n".join(["", *recap_lines(recap), *(f"failed: {line}" for line in failure_lines(result))]))
    if not recap:
        print("nothing to do: no step is for these nodes")
    if options.check:
        print("--check: nothing was changed")


# What there is, and what it would do.


def list_all(name: str | None, *, as_json: bool) -> int:
    """The playbooks in the order in which `up` runs them. Without a cluster, the site's."""
    cluster = standing_cluster(name)[1] if name or len(recorded_names()) == 1 else None
    playbooks = playbooks_of(cluster.playbooks if cluster else ())
    if as_json:
        print_json([_listed(playbook) for playbook in playbooks])
    else:
        rows = [(each.name, ", ".join(each.tags), what(each) or str(each.source)) for each in playbooks]
        print_table(("PLAYBOOK", "TAGS", "WHAT"), rows)
    return 0


def _listed(playbook: Playbook) -> dict[str, object]:
    return {
        "name": playbook.name,
        "tags": list(playbook.tags),
        "file": str(playbook.source) if playbook.source else None,
        "what": what(playbook),
    }


def what(playbook: Playbook) -> str:
    """What a playbook is for: the first line of its file's docstring, or of its function's.

    Where a file has several playbooks, the file's is of the one named like it.
    """
    module = sys.modules[playbook.steps.__module__]
    own, of_file = _first_line(playbook.steps.__doc__), _first_line(module.__doc__)
    is_main = playbook.name == module.__name__.rpartition(".")[2]
    return (is_main and of_file) or own or of_file


def _first_line(docstring: str | None) -> str:
    """Without the name that our modules' begin with."""
    line = inspect.cleandoc(docstring or "").partition("\n")[0].rstrip(".")
    return re.sub(r"^\w+: ", "", line)


@dataclass(frozen=True)
class Shown:
    """What a playbook wants of one node; `problem` is why that cannot be told."""

    node: str
    waits_for: tuple[str, ...] = ()
    steps: tuple[tuple[str, str], ...] = ()
    problem: str = ""


def show(wanted: str, name: str | None, *, as_json: bool) -> int:
    """Each step of a playbook on each node, from the recorded facts, or fresh ones where there are none."""
    state, cluster = standing_cluster(name)
    facts = known_facts(cluster, state, cluster.nodes)
    for playbook in chosen((wanted,), cluster):
        before = _up_to(playbook, cluster)
        plans = [_plan(before, node, cluster, facts) for node in cluster.nodes]
        if as_json:
            print_json(_as_json(playbook, plans))
        else:
            print("\n".join(_in_words(playbook, plans)))
    return 0


def _up_to(playbook: Playbook, cluster: Cluster) -> tuple[Playbook, ...]:
    """The playbook after those that `up` runs before it: their waiting decides which facts it sees."""
    there = playbooks_of(cluster.playbooks)
    names = [each.name for each in there]
    return (*(there[: names.index(playbook.name)] if playbook.name in names else there), playbook)


def _plan(
    playbooks: Sequence[Playbook], node: Node, cluster: Cluster, facts: Mapping[str, NodeFacts]
) -> Shown:
    playbook = playbooks[-1]
    if node.name not in facts:
        return Shown(node.name, problem="out of reach, and never seen")
    try:
        waits = [*playbook.needs(node, cluster), *playbook.after(node, cluster)]
        waits_for = tuple(dict.fromkeys(other.name for other in waits if other != node))
        steps = playbook.steps(node, cluster, view_of(playbooks, node, cluster, facts))
    except ClusterctlError as error:
        return Shown(node.name, problem=str(error))
    return Shown(node.name, waits_for, tuple((step.name, _question(step)) for step in steps))


def _question(step: Step) -> str:
    """What a step asks of a node, in the words of its class."""
    text = _first_line(type(step).__doc__)
    return "" if text.startswith(f"{type(step).__name__}(") else text  # dataclass's own


def _in_words(playbook: Playbook, plans: Sequence[Shown]) -> Iterator[str]:
    yield f"{playbook.name}: {what(playbook)}"
    if playbook.tags:
        yield f"tags: {', '.join(playbook.tags)}"
    groups: dict[tuple[object, ...], list[str]] = {}
    for plan in plans:
        groups.setdefault((plan.waits_for, plan.steps, plan.problem), []).append(plan.node)
    for (waits_for, steps, problem), nodes in groups.items():
        assert isinstance(waits_for, tuple)
        assert isinstance(steps, tuple)
        waiting = f", when {', '.join(waits_for)} has done what comes before" if waits_for else ""
        nothing = f" {problem or 'nothing'}" if not steps else ""
        yield f"on {', '.join(nodes)}{waiting}:{nothing}"
        width = max((len(step) for step, _ in steps), default=0)
        for number, (step, question) in enumerate(steps, 1):
            yield f"  {number}. {step:<{width}}  {question}".rstrip()


def _as_json(playbook: Playbook, plans: Sequence[Shown]) -> dict[str, object]:
    return {
        "playbook": playbook.name,
        "tags": list(playbook.tags),
        "nodes": [
            {
                "node": plan.node,
                "waits_for": list(plan.waits_for),
                "steps": [{"name": step, "what": question} for step, question in plan.steps],
                "problem": plan.problem or None,
            }
            for plan in plans
        ],
    }

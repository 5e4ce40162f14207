"""Many hosts through many playbooks: each at its own speed, waiting only where a playbook says so."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from provision.errors import ConnectError, HostError, Unforeseen
from provision.model import Cluster, Node
from provision.play import Playbook, everybody, run_playbooks, the_head
from provision.step import Mode, Status
from provision.steps.checks import Verdict
from tests.shell_host import ShellHost

NAMES = ("node1", "node2", "node3")
CLUSTER = Cluster("demo", "local", tuple(Node(name, "127.0.0.1", user="root") for name in NAMES))
LIMIT_S = 20.0


class Witness:
    """A watcher that remembers who ended which playbook's step, in which order, and lets others wait."""

    def __init__(self):
        self.ended_steps = []
        self._moved = threading.Condition()

    def started(self, node, play, step): ...

    def ended(self, result):
        with self._moved:
            self.ended_steps.append((result.node, result.play))
            self._moved.notify_all()

    def wait_for(self, node, play):
        with self._moved:
            return self._moved.wait_for(lambda: (node, play) in self.ended_steps, LIMIT_S)


class TheHost(ShellHost):
    """A named host, and what it is asked to do; `dead` loses its connection."""

    def __init__(self, node):
        super().__init__(node.name)
        self._node = node
        self.dead = False
        self.scripts = []

    def run(self, script, *args, **options):
        if self.dead:
            raise ConnectError(self.node.name, "connection lost")
        self.scripts.append(script)
        return super().run(script, *args, **options)


@dataclass(frozen=True)
class Wanted:
    """A file that is to be there; `act` is called before it is made."""

    path: Path
    act: object = None

    @property
    def name(self):
        return f"file {self.path.name}"

    @property
    def probe(self):
        return f"cat {self.path}"

    def drift(self, actual):
        return None if actual.startswith("made") else "not there"

    def apply(self, host):
        if self.act:
            self.act(host)
        host.run("echo made > %s", str(self.path))


@pytest.fixture
def hosts():
    return [TheHost(node) for node in CLUSTER.nodes]


def play(hosts, playbooks, known=None, mode=Mode(), watcher=None, **options):  # noqa: B008
    return run_playbooks(CLUSTER, hosts, playbooks, known or {}, mode, watcher or Witness(), **options)


def statuses(result, node):
    return [(each.play, each.status.value) for each in result.results if each.node == node]


def files(tmp_path, name, act=None, **options):
    """A playbook that makes a file of its name on every node."""
    return Playbook(
        name,
        lambda node, cluster, facts: [Wanted(tmp_path / f"{node.name}-{name}", (act or {}).get(node.name))],
        **options,
    )


def test_a_fast_host_finishes_all_while_a_slow_one_is_at_its_first(hosts, tmp_path):
    witness = Witness()

    def slow(host):
        assert witness.wait_for("node1", "third"), "node1 waited for node2"
        assert witness.wait_for("node3", "third"), "node3 waited for node2"

    playbooks = [
        files(tmp_path, "first", {"node2": slow}),
        *(files(tmp_path, n) for n in ("second", "third")),
    ]
    result = play(hosts, playbooks, watcher=witness)

    assert not result.failed
    assert witness.ended_steps.index(("node2", "first")) > witness.ended_steps.index(("node1", "third"))
    assert [each.node for each in result.results] == [name for name in NAMES for _ in range(3)]


def test_a_host_that_does_not_even_connect_holds_nobody_up(hosts, tmp_path):
    witness = Witness()
    connect = hosts[1].run

    def late(*args, **options):
        assert witness.wait_for("node1", "only")
        return connect(*args, **options)

    hosts[1].run = late

    assert not play(hosts, [files(tmp_path, "only")], watcher=witness).failed


def test_who_needs_the_head_begins_when_the_head_has_done_all_before(hosts, tmp_path):
    witness = Witness()

    def slow(host):
        assert witness.wait_for("node2", "key")
        assert witness.wait_for("node3", "key")
        time.sleep(0.3)  # they would be through with the next one, if they did not wait

    playbooks = [files(tmp_path, "key", {"node1": slow}), files(tmp_path, "mesh", needs=the_head)]
    assert not play(hosts, playbooks, watcher=witness).failed

    order = witness.ended_steps
    assert all(order.index((node, "mesh")) > order.index(("node1", "key")) for node in NAMES)


def test_a_barrier_for_all_holds_until_the_slowest_has_come(hosts, tmp_path):
    witness = Witness()
    slow = {"node3": lambda host: witness.wait_for("node1", "first") and witness.wait_for("node2", "first")}
    playbooks = [files(tmp_path, "first", slow), files(tmp_path, "second", after=everybody)]

    assert not play(hosts, playbooks, watcher=witness).failed

    plays = [play for _, play in witness.ended_steps]
    assert plays == ["first"] * 3 + ["second"] * 3


def test_the_facts_are_those_of_the_nodes_waited_for_and_no_others(hosts):
    seen = defaultdict(dict)

    def watch(name, **options):
        def steps(node, cluster, facts):
            seen[name][node.name] = set(facts)
            return ()

        return Playbook(name, steps, **options)

    play(hosts, [watch("own"), watch("heads", needs=the_head), watch("later"), watch("all", after=everybody)])

    assert seen["own"] == {name: {name} for name in NAMES}
    assert seen["heads"] == seen["later"] == {name: {name, "node1"} for name in NAMES}
    assert seen["all"] == {name: set(NAMES) for name in NAMES}


def test_a_failed_head_ends_what_needs_it_and_nothing_else(hosts, tmp_path):
    def fail(host):
        raise HostError(host.node.name, "no space")

    playbooks = [
        files(tmp_path, "first", {"node1": fail}),
        files(tmp_path, "second"),
        files(tmp_path, "third", needs=the_head),
    ]
    result = play(hosts, playbooks)

    assert [(each.node, each.detail) for each in result.failed] == [("node1", "node1: no space")]
    for node in ("node2", "node3"):
        assert statuses(result, node) == [("first", "changed"), ("second", "changed"), ("third", "skipped")]
    assert "needs node1, which failed" in result.results[-1].detail


def test_a_failed_worker_is_absent_from_the_facts_and_the_head_goes_on(hosts, tmp_path):
    seen = {}

    def steps(node, cluster, facts):
        seen[node.name] = set(facts)
        return [Wanted(tmp_path / f"{node.name}-last")]

    hosts[2].dead = True
    result = play(hosts, [files(tmp_path, "first"), Playbook("last", steps, after=everybody)])

    assert [each.play for each in result.failed] == ["facts"]
    assert seen == {"node1": {"node1", "node2"}, "node2": {"node1", "node2"}}
    assert statuses(result, "node1") == [("first", "changed"), ("last", "changed")]


def test_nothing_drifted_costs_one_exec_a_host_and_the_first_run_few(hosts, tmp_path):
    playbooks = [files(tmp_path, n, needs=the_head) for n in ("first", "second")]
    first = play(hosts, playbooks)
    trips = [host.round_trips for host in hosts]
    again = play(hosts, playbooks, known=first.facts)

    assert {each.status for each in again.results} == {Status.OK}
    assert [host.round_trips - before for host, before in zip(hosts, trips, strict=True)] == [1, 1, 1]
    # Facts, probes; for each playbook: fix, read again, facts; and once more what the head has done since.
    assert max(trips) <= 2 + 2 * 3 + 2


def test_what_another_node_did_here_is_read_anew(hosts, tmp_path):
    """As when the head copies a stack to a worker: the worker's first answers are out of date."""
    theirs = tmp_path / "node2-copied"
    known = play(hosts, []).facts

    def head_steps(node, cluster, facts):
        copy = Wanted(tmp_path / "copy", lambda host: theirs.write_text("made"))
        return [copy] if node.name == "node1" else []

    def worker_steps(node, cluster, facts):
        absent = Verdict("copied", None)
        return [CopiedHere(theirs) if node.name == "node2" else absent]

    result = play(
        hosts, [Playbook("copy", head_steps), Playbook("verify", worker_steps, needs=the_head)], known
    )

    assert statuses(result, "node2") == [("verify", "ok")]


@dataclass(frozen=True)
class CopiedHere(Wanted):
    """Only verifies: a stale answer would fail it."""

    def apply(self, host):
        raise HostError(host.node.name, "not copied")


def test_facts_are_read_again_after_a_change(hosts, tmp_path):
    """As with the mesh key that the head makes in one playbook: it is in every node's plan of the next."""
    seen = {}

    def make(host):
        host.run = lambda *args, **options: hosts_answer(TheHost.run(host, *args, **options))

    def hosts_answer(result):
        return replace(result, stdout=result.stdout.replace("@@fact home\n/", "@@fact home\n/moved/"))

    def plan(node, cluster, facts):
        seen[node.name] = facts["node1"].home
        return ()

    play(hosts, [files(tmp_path, "key", {"node1": make}), Playbook("mesh", plan, needs=the_head)])

    assert set(seen) == set(NAMES)
    assert all(home.startswith("/moved/") for home in seen.values())


def test_more_hosts_than_slots_pass_a_barrier_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr("provision.play.FANOUT", 2)
    nodes = tuple(Node(f"n{number}", "127.0.0.1", user="root") for number in range(1, 8))
    cluster = Cluster("demo", "local", nodes)
    playbooks = [
        Playbook("first", lambda node, cluster, facts: ()),
        Playbook(
            "second", lambda node, cluster, facts: [Verdict(f"sees {len(facts)}", None)], after=everybody
        ),
        Playbook("third", lambda node, cluster, facts: [Verdict("head", None)], needs=the_head),
    ]

    result = run_playbooks(cluster, [TheHost(n) for n in nodes], playbooks, {}, Mode(), Witness())

    assert {each.step for each in result.results} == {"sees 7", "head"}
    assert len(result.results) == 14


def test_a_step_left_out_is_skipped_and_so_is_what_check_cannot_foresee(hosts, tmp_path):
    def blind(node, cluster, facts):
        raise Unforeseen("no key yet")

    playbooks = [files(tmp_path, "first"), files(tmp_path, "second"), Playbook("blind", blind)]
    result = play(
        hosts, playbooks, mode=Mode(check=True), selection=lambda playbook, step: playbook.name != "first"
    )

    assert statuses(result, "node1") == [("first", "skipped"), ("second", "changed"), ("blind", "skipped")]
    assert list(tmp_path.iterdir()) == []
    assert [each.detail for each in play(hosts, playbooks[2:]).failed] == ["no key yet"] * 3


def test_nodes_that_do_not_take_part_are_known_by_their_last_facts(hosts, tmp_path):
    known = play(hosts, []).facts

    result = play(hosts[1:2], [files(tmp_path, "mesh", needs=the_head)], known)

    assert statuses(result, "node2") == [("mesh", "changed")]
    assert len(result.results) == 1


def test_a_bug_in_a_playbook_of_ours_is_raised_and_one_of_the_users_is_told(hosts):
    def broken(node, cluster, facts):
        return facts["nobody"]

    with pytest.raises(KeyError):
        play(hosts, [Playbook("ours", broken), Playbook("later", lambda *_: (), needs=the_head)])
    result = play(hosts, [Playbook("theirs", broken, source=Path(__file__))])
    line = broken.__code__.co_firstlineno + 1
    assert [each.detail for each in result.failed] == [f"{__file__}:{line}: KeyError: 'nobody'"] * 3

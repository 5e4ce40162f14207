"""A user's own playbook is a file; whatever is wrong with it is one line that says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from playbooks import site
from provision.errors import SettingsError, StepError
from provision.inventory import dump_record, load_record, read_inventory
from provision.model import Cluster, Node
from provision.play import nobody
from provision.playbook_file import load_playbooks
from provision.steps.checks import Verdict
from run.commands.playbook import Selected, chosen, limited, playbooks_of, what
from tests.test_playbooks import CLUSTER, FACTS, NODES

GOOD = '''"""nfs: one folder that all nodes see."""
from __future__ import annotations
from dataclasses import dataclass
from provision.steps.checks import Verdict

NAME = "storage"
TAGS = ("nfs", "disk")

@dataclass(frozen=True)
class Mine:
    path: str

def needs(node, cluster):
    return (cluster.head,)

def steps(node, cluster, facts):
    return [Verdict(f"export on {node.name}", None)]
'''


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "nfs.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_file_with_steps_is_a_playbook(write):
    path = write(GOOD)
    (playbook,) = load_playbooks(path)

    assert (playbook.name, playbook.tags, playbook.source) == ("storage", ("nfs", "disk"), path)
    assert [step.name for step in playbook.steps(NODES[0], CLUSTER, FACTS)] == ["export on node1"]
    assert playbook.needs(NODES[1], CLUSTER) == (NODES[0],)
    assert playbook.after is nobody
    assert what(playbook) == "one folder that all nodes see"
    assert list(path.parent.iterdir()) == [path]  # no __pycache__


def test_name_and_tags_may_be_left_out_and_steps_may_be_a_generator(write):
    (playbook,) = load_playbooks(write("def steps(node, cluster, facts):\n    yield from ()\n"))

    assert (playbook.name, playbook.tags) == ("nfs", ())
    assert playbook.steps(NODES[0], CLUSTER, FACTS) == ()


def test_one_file_may_have_several_stages(write):
    path = write(
        "from provision.play import Playbook, the_head\n"
        "PLAYBOOKS = (Playbook('export', lambda *_: ()), Playbook('mount', lambda *_: (), needs=the_head))\n"
    )

    assert [(each.name, each.source) for each in load_playbooks(path)] == [("export", path), ("mount", path)]


WRONG_FILE = {
    "no file": (None, "nfs.py: no such playbook"),
    "no python": ("def steps(:\n", "nfs.py:1: invalid syntax"),
    "fails on import": ("x = 1\nimport nothing_like_it\n", "nfs.py:2: ModuleNotFoundError: No module named"),
    "leaves": ("import sys\nsys.exit(3)\n", "nfs.py:2: SystemExit: 3"),
    "no steps": ("NAME = 'x'\n", "nfs.py: no function steps(node, cluster, facts)"),
    "other parameters": ("\ndef steps(node):\n    return ()\n", "nfs.py:2: steps is to be steps(node, cl"),
    "a name that is none": ("NAME = 3\ndef steps(n, c, f): ...\n", "NAME is to be a text, not 3"),
    "tags in one text": ("TAGS = 'a'\ndef steps(n, c, f): ...\n", "TAGS is to be a tuple"),
    "playbooks that are none": ("PLAYBOOKS = (1,)\n", "PLAYBOOKS is to be a tuple"),
}


@pytest.mark.parametrize("case", WRONG_FILE)
def test_what_is_wrong_with_a_file_is_told_with_its_line(write, tmp_path, case):
    text, message = WRONG_FILE[case]
    if text is not None:
        write(text)

    with pytest.raises(SettingsError) as caught:
        load_playbooks(tmp_path / "nfs.py")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG_PLAN = {
    "an error": ("def steps(n, c, f):\n    helper()\ndef helper():\n    1 / 0\n", "nfs.py:2: NameError"),
    "deeper": ("def steps(n, c, f):\n    return helper()\ndef helper():\n    1 / 0\n", "nfs.py:4: ZeroDivis"),
    "others' facts": (
        "def steps(n, c, f):\n    return f['node2'].home\n",
        "nfs.py:2: KeyError: 'node2'; facts are there of the node itself, and of those that `needs`",
    ),
    "nothing": ("def steps(n, c, f):\n    pass\n", "nfs.py:1: steps returned None"),
    "texts": ("def steps(n, c, f):\n    return ['x']\n", "nfs.py:1: 'x' is no step: it has no name, probe"),
    "not frozen": (
        "class S:\n    name = probe = ''\n    def drift(self, actual): ...\n    def apply(self, host): ...\n"
        "    __hash__ = None\ndef steps(n, c, f):\n    return [S()]\n",
        "nfs.py:6: S is to be a frozen dataclass",
    ),
}


@pytest.mark.parametrize("case", WRONG_PLAN)
def test_what_goes_wrong_while_planning_is_told_with_its_line(write, case):
    text, message = WRONG_PLAN[case]
    text = (
        text.replace("    helper()\ndef helper", "    nobody()\ndef helper") if case == "an error" else text
    )
    (playbook,) = load_playbooks(write(text))

    with pytest.raises(StepError) as caught:
        playbook.steps(NODES[0], CLUSTER, {"node1": FACTS["node1"]})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_inventorys_playbooks_are_relative_to_it_and_absolute_in_the_record(write, tmp_path):
    path = write(GOOD)
    inventory = write("all: {vars: {clusterctl: {playbooks: [nfs.py]}}}\n", "here.yml")
    record = tmp_path / "record.yml"

    assert read_inventory(inventory).playbooks == (str(path),)
    record.write_text(dump_record(Cluster("demo", "local", NODES, playbooks=(str(path),))))
    assert load_record(record).playbooks == (str(path),)
    record.write_text(dump_record(CLUSTER))
    assert load_record(record).playbooks == ()


def test_a_playbook_that_is_not_there_is_told_with_the_inventorys_line(write):
    inventory = write("all:\n  vars:\n    clusterctl:\n      playbooks: [gone.py]\n", "here.yml")

    with pytest.raises(SettingsError, match=r"here\.yml:4: playbooks: gone\.py: no such file"):
        read_inventory(inventory)


def test_the_users_come_after_the_sites_and_may_not_take_their_names(write):
    path = write(GOOD)

    assert playbooks_of((str(path),))[:-1] == site.PLAYBOOKS
    path.write_text(GOOD.replace('"storage"', '"base"'))
    with pytest.raises(SettingsError, match=r"nfs\.py: there is a playbook 'base' already"):
        playbooks_of((str(path),))


def test_playbooks_are_chosen_by_name_by_path_or_all(write):
    path = write(GOOD)

    names = [each.name for each in chosen(("ssh_mesh,base", str(path)), CLUSTER)]
    assert names == ["ssh_mesh", "base", "storage"]
    assert chosen(("site",), CLUSTER) == site.PLAYBOOKS
    with pytest.raises(SettingsError, match="no playbook 'bass'; there is site"):
        chosen(("bass",), CLUSTER)


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        (None, ["node1", "node2"]),
        ("node2", ["node2"]),
        ("node*", ["node1", "node2"]),
        ("head", ["node1"]),
        ("workers", ["node2"]),
        ("10.0.0.2,node2", ["node2"]),
    ],
)
def test_limit_takes_names_patterns_groups_and_addresses(limit, found):
    assert [node.name for node in limited(CLUSTER, limit)] == found


def test_a_limit_that_matches_nothing_is_refused():
    with pytest.raises(SettingsError, match="--limit web: no such node; there is node1, node2"):
        limited(CLUSTER, "web")


@pytest.mark.parametrize(
    ("tags", "step", "is_wanted"),
    [
        ((), None, True),
        (("nfs",), None, True),
        (("storage",), None, True),
        (("clock",), None, True),
        (("other",), None, False),
        ((), "clock", True),
        ((), "cl*", True),
        ((), "lock", False),
        (("other",), "clock", False),
    ],
)
def test_tags_and_step_select(write, tags, step, is_wanted):
    (playbook,) = load_playbooks(write(GOOD))

    assert Selected(frozenset(tags), step)(playbook, Verdict("clock", None)) is is_wanted


def test_every_playbook_of_the_site_says_what_it_is_for():
    assert all(what(playbook) for playbook in site.PLAYBOOKS)
    assert Node("n", "a") not in site.PLAYBOOKS[0].needs(NODES[0], CLUSTER)

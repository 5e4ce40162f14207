"""docs/write-a-playbook.md and its examples say what is so."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import provision.steps
from provision.model import Cluster, Node
from provision.playbook_file import load_playbooks
from provision.steps import DnfPackages, Mount
from tests.shell_host import ShellHost

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "write-a-playbook.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HEAD, WORKER = Node("node1", "10.0.0.1"), Node("node2", "10.0.0.2", private_address="192.168.0.2")
CLUSTER = Cluster("lab", "static", (HEAD, WORKER))


@dataclass(frozen=True)
class Distribution:
    """As much of a node's facts as the examples ask for."""

    os_id: str = "ubuntu"
    os_like: tuple[str, ...] = ("debian",)


@pytest.fixture
def plan():
    facts = {"node1": Distribution(), "node2": Distribution("rocky", ("rhel", "centos", "fedora"))}

    def plan(example: str, node: Node):
        playbooks = load_playbooks(DOCS / "examples" / example)
        return [step for each in playbooks for step in each.steps(node, CLUSTER, facts)]

    return plan


def test_the_page_shows_the_example_as_it_is(plan):
    assert CODE[0] == (DOCS / "examples/nfs.py").read_text()
    for node in CLUSTER.nodes:
        assert [step.name for step in plan("nfs.py", node)][1:] == ["mount /mnt/data"]
    assert plan("nfs.py", WORKER)[0] == DnfPackages(("nfs-utils",))


def test_the_head_shares_before_the_workers_mount(plan):
    server, client = load_playbooks(DOCS / "examples/nfs_from_head.py")

    assert plan("nfs_from_head.py", HEAD)[2].content == "/srv/shared 192.168.0.2(rw,no_subtree_check)\n"
    assert plan("nfs_from_head.py", WORKER)[1] == Mount(
        "10.0.0.1:/srv/shared", "/srv/shared", "nfs4", ("hard",)
    )
    assert (server.needs(WORKER, CLUSTER), client.needs(WORKER, CLUSTER)) == ((), (HEAD,))


def test_the_table_names_every_step_there_is():
    table = PAGE.partition("## The steps on hand")[2].partition("## A step of your own")[0]
    named = set(re.findall(r"`([A-Z]\w+|packages_for)[.(]", table))

    assert named >= set(provision.steps.__all__) - {"AptPackages", "DnfPackages", "MeshKey", "Verdict"}
    assert named <= set(provision.steps.__all__)


def test_the_step_of_your_own_works(tmp_path):
    file = tmp_path / "pages.py"
    heading = "from dataclasses import dataclass\n\n"
    file.write_text(heading + CODE[1] + "\n\ndef steps(node, cluster, facts):\n    yield HugePages(0)\n")
    (playbook,) = load_playbooks(file)

    (step,) = playbook.steps(HEAD, CLUSTER, {})
    assert step.drift(ShellHost().run(step.probe).stdout) is None
    assert type(step)(8).drift("3\n") == "3 huge pages, wanted 8"

"""A stack built on the head and copied over the mesh: a real pip, a real copy, a tiny lock."""

from __future__ import annotations

import io
import zipfile

import pytest

from playbooks.training_env import StackAsLocked, StackBuilt, StackCopied
from provision import stacks
from provision.errors import HostError
from provision.facts import MANIFEST
from provision.host import SshHost
from provision.inventory import load_record
from provision.stacks import Stack
from provision.step import survey
from tests.local_nodes import needs_nodes

pytestmark = needs_nodes

WHEEL = "/tmp/tiny-1.0-py3-none-any.whl"


def wheel() -> bytes:
    """A package of one module."""
    about = "tiny-1.0.dist-info/"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny.py", "answer = 42\n")
        archive.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(about + "RECORD", f"tiny.py,,\n{about}METADATA,,\n{about}WHEEL,,\n{about}RECORD,,\n")
    return buffer.getvalue()


def drift(host, step):
    return step.drift(survey(host, [step])[0])


@pytest.fixture
def tiny(monkeypatch):
    """A stack with a lock of one local wheel, at a place that nodes may write."""
    monkeypatch.setattr(stacks, "STACKS", "/opt/tiny-stacks")
    return Stack("tiny", f"tiny @ file://{WHEEL}\n")


def test_built_on_the_head_copied_to_the_workers_and_verified(cluster, tiny):
    head, worker, other = (SshHost(node) for node in load_record(cluster.state / "record.yml").nodes)
    built, copied = StackBuilt(tiny), StackCopied(tiny, ("node2", "node3"))
    head.run("cat > %s", WHEEL, stdin=wheel())

    assert drift(head, built) == "not built"
    built.apply(head)
    assert drift(head, built) is None

    assert drift(head, copied) == "not on node2, node3"
    copied.apply(head)
    assert drift(head, copied) is None
    for host in (head, worker, other):
        assert drift(host, StackAsLocked(tiny)) is None

    # Built anew on another day the head may have what the workers have not; only who differs gets it again.
    worker.run("echo older > %s", f"{tiny.path}/{MANIFEST}", sudo=True)
    assert drift(head, copied) == "not on node2"
    untouched = other.run("stat -c %%i %s", tiny.path).stdout
    copied.apply(head)
    assert drift(head, copied) is None
    assert other.run("stat -c %%i %s", tiny.path).stdout == untouched
    answer = worker.run(f"{tiny.path}/bin/python -c 'import tiny; print(tiny.answer)'").stdout
    assert answer == "42\n"

    worker.run(
        f"cd {tiny.path}/lib/python3*/site-packages && mv tiny-1.0.dist-info tiny-2.0.dist-info", sudo=True
    )
    assert drift(worker, StackAsLocked(tiny)) == "versions differ: tiny 2.0, wanted 1.0"
    with pytest.raises(
        HostError, match=r"node2: versions differ: tiny 2.0, wanted 1.0; remove /opt/tiny-stacks"
    ):
        StackAsLocked(tiny).apply(worker)
    for host in (head, worker, other):
        host.close()


def test_a_build_that_cannot_find_a_package_says_which(cluster, tiny):
    head = SshHost(load_record(cluster.state / "record.yml").head)
    broken = Stack("tiny", "tiny @ file:///tmp/nowhere.whl\n")

    with pytest.raises(HostError, match=r"nowhere\.whl"):
        StackBuilt(broken).apply(head)
    assert drift(head, StackBuilt(broken)) == "not built"
    head.close()

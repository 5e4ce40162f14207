"""stack list and stack show, as they print; stack verify is tried on nodes (test_backend_nodes.py)."""

from __future__ import annotations

import json

import pytest

from provision import stacks
from provision.errors import SettingsError
from provision.stacks.kinds import KINDS
from run.commands import stack as command


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Without the clusters of this machine, on one whose Python is 3.11."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "python_here", lambda: "3.11.2")


def test_list_shows_every_kind(capsys):
    assert command.list_kinds(as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["STACK", *KINDS]
    command.list_kinds(as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in told] == [stacks.stack_named(kind).name for kind in KINDS]


def test_show_tells_where_packages_come_from_and_what_is_archived_once(capsys):
    command.show("intel", as_json=False)
    out = capsys.readouterr().out
    assert "torch                        2.8.0" in out
    assert "oneccl_bind_pt==2.8.0+cpu from https://pytorch-extension.intel.com" in out
    assert out.count("intel-extension-for-pytorch ended with 2.8.0 and is archived") == 1
    assert "needs Python" not in out
    command.show("native", as_json=False)
    assert "archived" not in capsys.readouterr().out


def test_show_says_when_this_machines_python_does_not_fit(capsys):
    command.show("article-2022", as_json=False)
    assert (
        "this machine: stack article-2022 needs Python 3.8 to 3.10, 3.11.2 is there"
        in capsys.readouterr().out
    )
    command.show("article-2022", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["problem_here"].startswith("this machine: ")
    assert told["versions"]["transformers"] == "4.24.0"
    assert len(told["only_from_stack_index"]) == 2


def test_show_refuses_what_is_no_stack():
    with pytest.raises(SettingsError, match="no stack 'x'"):
        command.show("x", as_json=False)

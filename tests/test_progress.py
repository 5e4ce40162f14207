"""What a user sees of a run, event by event."""

from __future__ import annotations

import pytest

from run.events import Event
from run.progress import PlainDisplay


def test_agents_that_end_are_news_until_the_run_is_being_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(2)
    display.show(Event("agent_exit", node="node2", data={"code": 143}))
    assert capsys.readouterr().out == "warning: node2: its agent ended with exit code 143\n"
    display.show(Event("stop", data={"text": "stop"}))
    display.show(Event("agent_exit", node="node1", data={"code": 143}))
    assert capsys.readouterr().out == "stopping the ranks on every node\n"

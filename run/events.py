"""What a run says about itself: lines `@clusterctl {json}` among the output, read into events. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "@clusterctl "
_KILLED = re.compile(r"RANK (\d+) PID \d+ RUNNING AT (\S+)")


@dataclass(frozen=True)
class Event:
    """One thing that happened. `name` is one of

    start heartbeat exit       from rank.py: rank, node, pid / code, last_lines, log
    notice                     from rank.py: the node is about to end; reason, ends_at, left_s
    killed                     from hydra's banner: a rank.py that could not say goodbye
    ready progress phase warning error rank_summary result    from the recipe
    setup                      from the recipe, before it trains: dtype, global_batch and the like
    checkpoint interrupted     from the recipe: path in the run folder, step; interrupted: it has ended there
    agent_exit                 from agents.py: an agent that failed; node, code, last_lines
    launcher_exit              from head.py: code
    output                     any other line: text
    stop sweep                 from the operator's side
    """

    name: str
    rank: int | None = None
    node: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return str(self.data.get("text", ""))


def parse_line(line: str) -> Event:
    """The event in a line of output; a line without a (whole) event is the event "output"."""
    if line.startswith(PREFIX):
        event = _parse_json(line[len(PREFIX) :])
        if event is not None:
            return event
    banner = _KILLED.search(line)
    if banner and line.startswith("="):
        return Event("killed", int(banner[1]), banner[2], {"text": line.strip("= ")})
    return Event("output", data={"text": line})


def _parse_json(text: str) -> Event | None:
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("event"), str):
        return None
    rank, node = data.pop("rank", None), data.pop("node", None)
    return Event(
        data.pop("event"),
        rank if isinstance(rank, int) else None,
        node if isinstance(node, str) else None,
        data,
    )

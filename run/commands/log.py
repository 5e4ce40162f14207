"""log: the last commands that were run on the nodes, from the files beside the record."""

from __future__ import annotations

from provision.commandlog import last_entries
from run.commands.common import print_json, standing_cluster


def log(name: str | None, node: str | None, last: int, *, as_json: bool) -> int:
    """The last entries of one node, or of each; the oldest first."""
    state, cluster = standing_cluster(name)
    nodes = [cluster.node(node)] if node else cluster.nodes
    entries = {each.name: last_entries(state.log(each.name), last) for each in nodes}
    if as_json:
        print_json([{"node": each, "entry": entry} for each, found in entries.items() for entry in found])
        return 0
    for each, found in entries.items():
        print("\n".join([f"--- {each}: {state.log(each)}", *(found or ["nothing was run on it yet"])]))
    return 0

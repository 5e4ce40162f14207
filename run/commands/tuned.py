"""What `train` makes of what --tune has kept: the same batches on the ranks that were fastest there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from provision.errors import SettingsError
from provision.facts import NodeFacts
from provision.model import Cluster
from provision.stacks import stack_of
from run.backend import GLOO, Backend
from run.commands.common import print_json
from run.kept import Key, choose, find_kept, key_of
from run.layout import LayoutSettings
from run.tune import Space, survey

if TYPE_CHECKING:
    from run.commands.launch import TrainOptions


def layout_settings(options: TrainOptions, cluster: Cluster) -> LayoutSettings:
    shares = {node.name: node.core_share for node in cluster.nodes}
    return LayoutSettings(options.ppn, options.threads, None, shares)


def space_and_key(
    options: TrainOptions, cluster: Cluster, facts: Mapping[str, NodeFacts], backend: Backend
) -> tuple[Space, Key]:
    """What --tune may try for these options, and what its result is kept under. Raises SettingsError."""
    space = survey(options.program, options.script_args, layout_settings(options, cluster), facts)
    kind = stack_of(cluster).kind
    return space, key_of(
        space, options.program, options.script_args, stack=kind, backend=backend.name or GLOO
    )


def with_kept(
    options: TrainOptions, cluster: Cluster, facts: Mapping[str, NodeFacts], backend: Backend
) -> TrainOptions:
    """The options with what --tune has kept for such nodes and this script, told in a line.

    Not where a run is gone on with: it keeps the ranks and batches that it began with.
    """
    if options.resume or not options.use_tuned or not options.is_tunable:
        return options
    try:
        space, key = space_and_key(options, cluster, facts, backend)
    except SettingsError:
        return options  # of wrong numbers, which the layout or the recipe tells
    try:
        kept = find_kept(key)
    except SettingsError as error:
        print(f"clusterctl: {error}; this run goes on untuned", file=sys.stderr)
        return options
    used = choose(space, kept) if kept else None
    if used is None:
        return options
    if options.as_json:
        print_json({"event": "tuned", **used.to_json()})
    else:
        print(f"{'# ' if options.dry_run else ''}{used}")  # what --dry-run prints may be pasted into a shell
    return replace(options, ppn=used.candidate.ppn, script_args=(*options.script_args, *used.candidate.args))

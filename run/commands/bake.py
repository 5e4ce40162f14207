"""up --bake: set up the head, make an image of it, and let every other node start from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from provision.errors import SettingsError, StepError
from provision.model import Cluster
from provision.play import SiteResult
from provision.providers import Baker
from provision.report import Report
from provision.stacks import stack_of
from provision.state import ClusterState
from provision.step import Mode
from run.commands.making import Making, made

Configure = Callable[[Cluster, ClusterState, Mode, Report], SiteResult]


def bake(making: Making, configure: Configure, report: Report, *, yes: bool) -> None:
    """Nothing to do where an image with this stack exists: it is taken anyway.

    Raises SettingsError where there are no images, StepError when the head cannot be set up.
    """
    provider = making.provider
    if not isinstance(provider, Baker):
        raise SettingsError(
            f"--bake makes an image, which provider {making.inventory.provider} does not have"
        )
    stack = stack_of(making.inventory)
    there = provider.baked(making.inventory.provider_settings, stack.name)
    if there:
        report.note(f"image {there} has stack {stack.name} already: it is used")
        return
    standing = [node.name for node in making.cluster.nodes if node.name in making.names]
    head = replace(making, names=tuple(standing) or making.names[:1])
    cluster = made(head, report, yes=yes).cluster
    result = configure(cluster, making.state, Mode(), report)
    if result.failed:
        why = "; ".join(f"{each.node}: {each.step}: {each.detail}" for each in result.failed)
        raise StepError(f"no image was made, its head is not set up: {why}")
    image = provider.bake(cluster, stack.name, report.progress)
    report.note(f"image {image} has stack {stack.name}; `clusterctl images` lists it")

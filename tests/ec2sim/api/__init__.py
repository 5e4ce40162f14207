"""moto's EC2 with what it lacks or errs in put right; see `install`.

moto 5.2.1 is pinned, as these patches replace its internals. Each module has an `install(cloud)`.
"""

from __future__ import annotations

from tests.ec2sim.api import calls, images, instances, launches, offers, placement_groups, security, spot
from tests.ec2sim.api.cloud import Cloud

__all__ = ["Cloud", "install"]


def install(cloud: Cloud) -> None:
    """Once in a process, before moto's server starts."""
    for module in (calls, launches, instances, images, offers, placement_groups, security, spot):
        module.install(cloud)

"""What a world is started with; travels to its process as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

ACCOUNT = "123456789012"
REGIONS = ("us-east-1", "us-west-2")


@dataclass(frozen=True)
class Settings:
    """Delays are EC2's minutes made short.

    `eventual_s`: so long after RunInstances its instances are not known to other requests.
    `simulate_cpu`: a CPU of the local provider's that every host shows.
    `stacks`: a folder of this machine that hosts see, read-only, at /opt/clusterctl/stacks; None for an
    ordinary empty folder there.
    """

    boot_delay_s: float = 0.3
    terminate_delay_s: float = 0.5
    eventual_s: float = 0.0
    simulate_cpu: str | None = None
    stacks: str | None = None
    disk_mib: int = 4096

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        return cls(**json.loads(text))

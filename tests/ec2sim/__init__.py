"""A simulated EC2: its API, its network, and a real Linux host behind every instance.

    with World.start(folder) as world:
        subprocess.run(world.operator("clusterctl", "up"), env=os.environ | world.environment)
        assert world.resources() == {}

README.md here says what is like EC2 and what is not. Needs root, and Debian's openssh-server, iproute2 and
nftables.
"""

from tests.ec2sim.client import World, WorldError

__all__ = ["World", "WorldError"]

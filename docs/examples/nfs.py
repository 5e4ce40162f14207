"""Mount the lab's share on every node."""

from provision.steps import Mount, packages_for

TAGS = ("storage",)
CLIENTS = {"debian": ("nfs-common",), "fedora": ("nfs-utils",)}


def steps(node, cluster, facts):
    yield packages_for(facts[node.name], CLIENTS)
    yield Mount("nas.lab:/export/data", "/mnt/data", "nfs4", ("hard", "noatime"))

"""The head shares a folder over NFS, the workers mount it at the same path."""

from provision.play import Playbook, the_head
from provision.steps import Command, Directory, Mount, Service, TextFile, packages_for

FOLDER = "/srv/shared"
EXPORTS = "/etc/exports.d/shared.exports"
SERVER = {"debian": ("nfs-kernel-server",), "fedora": ("nfs-utils",)}
CLIENT = {"debian": ("nfs-common",), "fedora": ("nfs-utils",)}


def server(node, cluster, facts):
    """On the head: the folder, and who may mount it."""
    if node != cluster.head:
        return
    allowed = " ".join(f"{worker.mesh_address}(rw,no_subtree_check)" for worker in cluster.workers)
    yield packages_for(facts[node.name], SERVER)
    yield Directory(FOLDER, owner=node.user)
    yield TextFile(EXPORTS, f"{FOLDER} {allowed}\n")
    yield Service("nfs-server")
    yield Command("export", "exportfs -ra", unless=f"exportfs -s | grep -q '^{FOLDER} '")


def client(node, cluster, facts):
    """On the workers, when the head is ready."""
    if node != cluster.head:
        yield packages_for(facts[node.name], CLIENT)
        yield Mount(f"{cluster.head.mesh_address}:{FOLDER}", FOLDER, "nfs4", ("hard",))


PLAYBOOKS = (
    Playbook("nfs_server", server, tags=("storage",)),
    Playbook("nfs_client", client, tags=("storage",), needs=the_head),
)

"""ssh_mesh: the head reaches every node without a password and without a prompt.

The key is made on the head and never leaves it. Host keys are the ones the record pinned, written to
known_hosts on every node; nowhere is strict checking switched off. Two playbooks, because the second
needs the public key that the first made.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision.errors import Unforeseen
from provision.facts import MESH_KEY
from provision.model import Cluster, Node
from provision.play import Facts, Playbook, the_head
from provision.step import Step
from provision.steps.files import Block, Directory, TextFile
from provision.steps.ssh import MeshKey


def key_steps(node: Node, cluster: Cluster, facts: Facts) -> Sequence[Step]:
    """The head's own key pair, which opens every node."""
    if node != cluster.head:
        return ()
    return (MeshKey(facts[node.name].home, cluster.name),)


def steps(node: Node, cluster: Cluster, facts: Facts) -> Sequence[Step]:
    home = facts[node.name].home
    key = facts[cluster.head.name].mesh_key
    if not key:
        raise Unforeseen(f"{cluster.head.name} has no mesh key yet; playbook ssh_mesh_key makes it")
    known_hosts = tuple(line for peer in cluster.nodes for line in known_host_lines(peer))
    everywhere: tuple[Step, ...] = (
        Directory(f"{home}/.ssh", node.user, "700"),
        Block(f"{home}/.ssh/authorized_keys", cluster.name, (key,), node.user, "600"),
        Block(f"{home}/.ssh/known_hosts", cluster.name, known_hosts, node.user, "600"),
    )
    if node != cluster.head:
        return everywhere
    return (*everywhere, mesh_config(cluster, home), hostfile(cluster, home))


def known_host_lines(node: Node) -> tuple[str, ...]:
    """The node's pinned keys for its name and its address, in OpenSSH's known_hosts format."""
    names = (node.name, node.mesh_address)
    shown = ",".join(name if node.port == 22 else f"[{name}]:{node.port}" for name in names)
    return tuple(f"{shown} {key}" for key in node.host_keys)


def mesh_config(cluster: Cluster, home: str) -> Block:
    """One Host for each node in the head's ~/.ssh/config, before the user's own lines: first match wins."""
    lines: list[str] = []
    for node in cluster.nodes:
        lines += [
            f"Host {node.name}",
            f"    HostName {node.mesh_address}",
            f"    Port {node.port}",
            f"    User {node.user}",
            f"    IdentityFile ~/{MESH_KEY}",
            "    IdentitiesOnly yes",
            "    StrictHostKeyChecking yes",
            "    BatchMode yes",
            "    ConnectTimeout 10",
        ]
    # Ends the last Host, so that the user's own global options below stay global.
    lines.append("Match all")
    return Block(f"{home}/.ssh/config", cluster.name, tuple(lines), cluster.head.user, "600", at_start=True)


def hostfile(cluster: Cluster, home: str) -> TextFile:
    """~/hosts, the file that mpirun reads: a node a line, the head first."""
    lines = "".join(f"{node.name}\n" for node in cluster.nodes)
    return TextFile(f"{home}/hosts", f"# written by clusterctl\n{lines}", cluster.head.user)


KEY_PLAYBOOK = Playbook("ssh_mesh_key", key_steps, tags=("ssh", "mesh"))
PLAYBOOK = Playbook("ssh_mesh", steps, tags=("ssh", "mesh"), needs=the_head)

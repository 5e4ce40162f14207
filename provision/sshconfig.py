"""The operator's own ssh: `ssh node2` works from the shell while the cluster stands.

~/.ssh/config gets one Include line in a managed block at its start; every other byte of it stays.
"""

from __future__ import annotations

from pathlib import Path

from provision.block import remove_block, set_block
from provision.jump import hops_of
from provision.model import Cluster, Node
from provision.openssh import Destination
from provision.state import ClusterState, replace_file


def operator_config() -> Path:
    return Path.home() / ".ssh" / "config"


def include(state: ClusterState, cluster: Cluster) -> None:
    """Write the cluster's ssh_config and known_hosts and include them. Changes nothing that is right."""
    _write_if_changed(state.known_hosts, "".join(_known_hosts(node) for node in cluster.nodes))
    _write_if_changed(state.ssh_config, render(state, cluster))
    config = operator_config()
    config.parent.mkdir(mode=0o700, exist_ok=True)
    before = config.read_text() if config.exists() else ""
    _write_if_changed(
        config, set_block(before, cluster.name, (f'Include "{state.ssh_config}"',), at_start=True)
    )


def exclude(name: str) -> None:
    """Take the Include line away again; a file that holds nothing else goes too. Tolerates absence."""
    config = operator_config()
    if not config.exists():
        return
    text = remove_block(config.read_text(), name)
    if text:
        _write_if_changed(config, text)
    else:
        config.unlink()


def render(state: ClusterState, cluster: Cluster) -> str:
    """One Host per node, by its name and by NAME.CLUSTER (for two clusters whose nodes share names).

    A jump host is a Host of its own, as the operator's configuration has it now: `ssh -F` reads no other.
    """
    ways = {node.jump: hops_of(node.jump) for node in cluster.nodes if node.jump}
    hops = dict.fromkeys(hop for way in ways.values() for hop in way)
    names = {hop: f"clusterctl-jump{number}.{cluster.name}" for number, hop in enumerate(hops, 1)}
    return "".join(_jump_host(hop, name) for hop, name in names.items()) + "".join(
        f"Host {node.name} {node.name}.{cluster.name}\n"
        f"    HostName {node.address}\n"
        f"    Port {node.port}\n"
        f"    User {node.user}\n"
        + (f'    IdentityFile "{node.identity_file}"\n    IdentitiesOnly yes\n' if node.identity_file else "")
        + (f"    ProxyJump {','.join(names[hop] for hop in ways[node.jump])}\n" if node.jump else "")
        + f'    UserKnownHostsFile "{state.known_hosts}"\n'
        "    StrictHostKeyChecking yes\n"
        for node in cluster.nodes
    )


def _jump_host(hop: Destination, name: str) -> str:
    return (
        f"Host {name}\n    HostName {hop.host}\n    Port {hop.port}\n    User {hop.user}\n"
        + "".join(f'    IdentityFile "{path}"\n' for path in hop.key_files)
        + f"    HostKeyAlias {hop.known_as if hop.port == 22 else f'[{hop.known_as}]:{hop.port}'}\n"
        + f"    UserKnownHostsFile {' '.join(quoted(path) for path in hop.known_hosts)}\n"
        + "    StrictHostKeyChecking yes\n"
    )


def quoted(path: Path) -> str:
    """A path as ssh's configuration takes it."""
    return f'"{path}"'


def _known_hosts(node: Node) -> str:
    name = node.address if node.port == 22 else f"[{node.address}]:{node.port}"
    return "".join(f"{name} {key}\n" for key in node.host_keys)


def _write_if_changed(path: Path, content: str) -> None:
    target = path.resolve()  # ~/.ssh/config is often a link into a dotfiles folder
    if target.exists() and target.read_text() == content:
        return
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    replace_file(target, content, mode)

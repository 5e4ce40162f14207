"""The operator's own ssh: `ssh node2` works from the shell while the cluster stands.

~/.ssh/config gets one Include line in a managed block at its start; every other byte of it stays.
"""

from __future__ import annotations

from pathlib import Path

from provision.block import remove_block, set_block
from provision.model import Cluster, Node
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
    """One Host per node, by its name and by NAME.CLUSTER (for two clusters whose nodes share names)."""
    return "".join(
        f"Host {node.name} {node.name}.{cluster.name}\n"
        f"    HostName {node.address}\n"
        f"    Port {node.port}\n"
        f"    User {node.user}\n"
        + (f'    IdentityFile "{node.identity_file}"\n    IdentitiesOnly yes\n' if node.identity_file else "")
        + f'    UserKnownHostsFile "{state.known_hosts}"\n'
        "    StrictHostKeyChecking yes\n"
        for node in cluster.nodes
    )


def _known_hosts(node: Node) -> str:
    name = node.address if node.port == 22 else f"[{node.address}]:{node.port}"
    return "".join(f"{name} {key}\n" for key in node.host_keys)


def _write_if_changed(path: Path, content: str) -> None:
    target = path.resolve()  # ~/.ssh/config is often a link into a dotfiles folder
    if target.exists() and target.read_text() == content:
        return
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    replace_file(target, content, mode)

"""inventory: the standing cluster as a dynamic inventory of Ansible; init: an inventory to begin with.

https://docs.ansible.com/ansible/latest/dev_guide/developing_inventory.html#inventory-script-conventions
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from provision.errors import SettingsError
from provision.inventory import host_vars
from provision.model import Cluster, Node
from provision.state import ClusterState
from provision.yamlfile import nearest
from run.commands.common import print_json, print_table, standing_cluster


@dataclass(frozen=True)
class InventoryOptions:
    """The options of `inventory`, as the user gave them."""

    name: str | None = None
    as_list: bool = False
    host: str | None = None
    script: Path | None = None


def inventory(options: InventoryOptions) -> int:
    """Returns the exit code, always 0. Raises SettingsError where no cluster stands."""
    if sum((options.as_list, options.host is not None, options.script is not None)) > 1:
        raise SettingsError("--list, --host and --script: say one of them")
    state, cluster = standing_cluster(options.name)
    if options.as_list:
        print_json(listing(state, cluster))
    elif options.host is not None:
        print_json(variables(state, cluster.node(options.host)))
    elif options.script is not None:
        write_new(options.script, script(cluster.name), mode=0o755)
        print(f"wrote {options.script}; `ansible-playbook -i {options.script} ...` runs on {cluster.name}")
    else:
        _print(cluster)
    return 0


def listing(state: ClusterState, cluster: Cluster) -> dict[str, Any]:
    """What `--list` prints: the groups head and workers, the variables of every host, and of all."""
    own = {"name": cluster.name, "provider": cluster.provider, "stack": cluster.stack}
    return {
        "_meta": {"hostvars": {node.name: variables(state, node) for node in cluster.nodes}},
        "all": {"children": ["head", "workers"], "vars": {"clusterctl": own}},
        "head": {"hosts": [cluster.head.name]},
        "workers": {"hosts": [node.name for node in cluster.workers]},
    }


def variables(state: ClusterState, node: Node) -> dict[str, Any]:
    """A node's record, and what makes Ansible's ssh hold it to its pinned host key."""
    options = [f'UserKnownHostsFile="{state.known_hosts}"', "StrictHostKeyChecking=yes"]
    options += ["IdentitiesOnly=yes"] if node.identity_file else []
    options += [f"ProxyJump={node.jump}"] if node.jump else []
    return {
        **host_vars(node),
        "ansible_host_key_checking": True,  # an ansible.cfg that turns it off would go before the arguments
        "ansible_ssh_common_args": shlex.join(word for option in options for word in ("-o", option)),
    }


def script(name: str) -> str:
    """A file that Ansible runs as an inventory; it needs neither PATH nor the virtual environment."""
    installed = Path(sys.executable).with_name("clusterctl")
    program = installed if installed.exists() else Path(sys.argv[0]).absolute()
    command = shlex.join((str(program), "inventory", "--name", name))
    return f'#!/bin/sh\nexec {command} "$@"\n'


def _print(cluster: Cluster) -> None:
    rows = [
        (node.name, "head" if node is cluster.head else "workers", node.address, str(node.port), node.user)
        for node in cluster.nodes
    ]
    print_table(("HOST", "GROUP", "ADDRESS", "PORT", "USER"), rows)


def init(kind: str, output: Path | None, *, as_json: bool) -> int:
    """Writes a commented inventory to start from; never over a file that is there."""
    files = {each.name: each for each in resources.files("provision.templates").iterdir()}
    if f"{kind}.yml" not in files:
        kinds = [name.removesuffix(".yml") for name in files if name.endswith(".yml")]
        raise SettingsError(f"no inventory {kind!r}; {nearest(kind, kinds)}")
    text = files[f"{kind}.yml"].read_text(encoding="utf-8")
    path = output or Path(f"{kind}.yml")
    write_new(path, text)
    if as_json:
        print_json({"written": str(path)})
    else:
        print(f"wrote {path}; change what is yours, then `clusterctl up -i {path}`")
    return 0


def write_new(path: Path, text: str, mode: int = 0o644) -> None:
    """Raises SettingsError when there is something already, or it cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        path.chmod(mode)
    except FileExistsError:
        raise SettingsError(f"{path} is there already and was left as it is; choose another name") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error

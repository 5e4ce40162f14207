"""The inventory is Ansible's: its hosts, or where there are none the settings by which they are made.

    all:
      vars:
        clusterctl:
          name: demo
          provider: local
          nodes: 4
          require_amx: false
          local:
            link_rate: 10gbit

The settings are one `clusterctl` variable of the group `all`; an inventory with hosts needs none. The record
of a cluster that stands is an inventory too: what clusterctl wrote, Ansible can read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from provision.ansible.groups import ALL, Variable
from provision.ansible.reading import AnsibleInventory, read_ansible
from provision.errors import SettingsError
from provision.machines import read_machines
from provision.model import Cluster, Machine, Node
from provision.providers import PROVIDERS, settings_class
from provision.typed import read_typed
from provision.yamlfile import load_yaml

DEFAULT_NAME = "default"
DEFAULT_NODES = 4
STATIC = "static"  # the provider of machines that stand already
BOUGHT_FOR_AMX = ("ec2",)  # every type there is chosen for its AMX, and paid for: nodes without are a mistake
_BLOCK = ("all", "vars", "clusterctl")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class Inventory:
    """What the user wants. `nodes` is None where the inventory leaves the number open.

    A node without AMX fails `up` and is refused by `train` where `require_amx` is true: the default on EC2,
    and nowhere else.
    `notes` says what of an Ansible inventory was left aside, a line each. `stack` is a kind, or a lock's
    path; `stack_index` and `torch_index` say where else than usual its packages come from, `packages` what a
    script needs beside it.
    """

    name: str = DEFAULT_NAME
    provider: str = "local"
    nodes: int | None = None
    require_amx: bool = False
    stack: str = "native"
    provider_settings: Any = None
    playbooks: tuple[str, ...] = ()  # the user's own, absolute paths
    notes: tuple[str, ...] = ()
    stack_index: str | None = None
    torch_index: str | None = None
    packages: tuple[str, ...] = ()

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The hosts that an inventory has, the head first; none where the provider makes its nodes."""
        return self.provider_settings.in_order if self.provider == STATIC else ()


def read_inventory(path: Path | None) -> Inventory:
    """The inventory in a file; without one, the local provider with its defaults.

    Raises SettingsError naming file and line: no YAML, an unknown key, a value of the wrong type, and what
    Ansible would do and clusterctl does not.
    """
    if path is None:
        return Inventory(provider_settings=settings_class("local")())
    ansible = read_ansible(path)
    block = _block(ansible)
    provider = _provider(ansible, block)
    settings = _provider_settings(ansible, block, provider)
    own = {key: value for key, value in block.value.items() if key not in (provider, "provider")}
    if provider == STATIC and "name" not in own and _NAME.fullmatch(path.stem):
        own["name"] = path.stem
    own.setdefault("require_amx", provider in BOUGHT_FOR_AMX)
    extra = {"provider": provider, "provider_settings": settings, "notes": ansible.notes}
    inventory: Inventory = read_typed(block.document, block.path, Inventory, own, extra)
    check_name(inventory.name, _at(block, "name"))
    _check_number(inventory, block)
    return replace(
        inventory,
        playbooks=_found_playbooks(block, path, inventory.playbooks),
        stack=_found_stack(path, inventory.stack),
    )


def _block(ansible: AnsibleInventory) -> Variable:
    """clusterctl's settings: a variable of the group `all`, in the inventory or in its group_vars."""
    name, place = _BLOCK[-1], " > ".join(_BLOCK)
    block = ansible.groups[ALL].vars.get(name)
    everywhere = [each.vars for each in ansible.groups.values()] + [each.vars for each in ansible.hosts]
    for variable in (each[name] for each in everywhere if name in each):
        if block is None or variable.at != block.at:
            raise SettingsError(f"{variable.at}: clusterctl's settings are one block, under {place}")
    if block is None and not ansible.hosts:
        raise SettingsError(f"{ansible.document.file}: neither hosts nor clusterctl's settings ({place})")
    block = block or Variable({}, ansible.document, _BLOCK)
    if not isinstance(block.value, dict | None):
        raise SettingsError(f"{block.at}: {name!r} is to be a mapping")
    return replace(block, value=block.value or {})


def _provider(ansible: AnsibleInventory, block: Variable) -> str:
    """The one that is named; else hosts stand already, and without hosts they are made here."""
    default = STATIC if ansible.hosts else "local"
    provider = block.value.get("provider", default)
    where = _at(block, "provider")
    if not isinstance(provider, str) or provider not in PROVIDERS:
        raise SettingsError(f"{where}: no provider {provider!r}; there is {', '.join(PROVIDERS)}")
    if ansible.hosts and provider != STATIC:
        raise SettingsError(
            f"{where}: provider {provider} makes its own nodes, and this inventory has hosts "
            f"({ansible.hosts[0].name} ...); say provider: static to use those, or take them out"
        )
    return provider


def _provider_settings(ansible: AnsibleInventory, block: Variable, provider: str) -> Any:
    """The provider's own dataclass; for machines that stand, with the machines."""
    kind = settings_class(provider)
    theirs = {field.name for field in fields(kind)} - {field.name for field in fields(Inventory)}
    for key in (key for key in block.value if key in theirs):
        raise SettingsError(f"{_at(block, key)}: {key!r} belongs one level down, under `{provider}:`")
    extra: dict[str, Any] = {"machines": ()} if provider == STATIC else {}
    path = (*block.path, provider)
    settings = read_typed(block.document, path, kind, block.value.get(provider) or {}, extra)
    if provider != STATIC:
        return settings
    machines = read_machines(ansible, settings.group, block.document.at((*path, "group")))
    try:
        return replace(settings, machines=machines)
    except SettingsError as error:
        raise SettingsError(f"{block.document.at((*path, 'head'))}: {error}") from error


def _check_number(inventory: Inventory, block: Variable) -> None:
    there = len(inventory.machines)
    if there and inventory.nodes is not None and inventory.nodes > there:
        raise SettingsError(f"{_at(block, 'nodes')}: {inventory.nodes} nodes of {there} machines")


def _at(block: Variable, key: str) -> str:
    return block.document.at((*block.path, key))


def _found_playbooks(block: Variable, inventory: Path, files: tuple[str, ...]) -> tuple[str, ...]:
    """Absolute paths; the inventory's are relative to itself. Raises SettingsError when one is not there."""
    found = tuple((inventory.absolute().parent / file).resolve() for file in files)
    for file, path in zip(files, found, strict=True):
        if not path.is_file():
            raise SettingsError(f"{_at(block, 'playbooks')}: playbooks: {file}: no such file")
    return tuple(map(str, found))


def _found_stack(inventory: Path, stack: str) -> str:
    """A kind as it is; the user's own lock by its absolute path."""
    if not stack.endswith(".txt"):
        return stack
    return str((inventory.absolute().parent / Path(stack).expanduser()).resolve())


def check_name(name: str, where: str) -> None:
    """Raises SettingsError unless the name can be a part of host names, file names and tags."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{where}: a cluster's name is 1 to 31 of a-z, 0-9 and -, a letter first; not {name!r}"
        )


# The record: Cluster <-> the same format.

_HOST_VARS = {
    "ansible_host": "address",
    "ansible_user": "user",
    "ansible_port": "port",
    "ansible_ssh_private_key_file": "identity_file",
    "clusterctl_private_address": "private_address",
    "clusterctl_host_keys": "host_keys",
    "clusterctl_provider_id": "provider_id",
    "clusterctl_core_share": "core_share",
    "clusterctl_jump": "jump",
}


_INDEXES = ("stack_index", "torch_index")
_LISTS = ("packages", "playbooks")


def dump_record(cluster: Cluster) -> str:
    """The record of a cluster, as an inventory that Ansible reads too."""
    block = {
        "name": cluster.name,
        "provider": cluster.provider,
        "nodes": len(cluster.nodes),
        "require_amx": cluster.require_amx,
        "stack": cluster.stack,
        "shared_stack": cluster.shared_stack,
        **{key: getattr(cluster, key) for key in _INDEXES if getattr(cluster, key) is not None},
        **{key: list(value) for key in _LISTS if (value := getattr(cluster, key))},
        cluster.provider: dict(cluster.settings),
    }
    names = [node.name for node in cluster.nodes]
    data = {
        "all": {
            "vars": {"clusterctl": block},
            "hosts": {node.name: host_vars(node) for node in cluster.nodes},
            "children": {
                "head": {"hosts": {name: {} for name in names[:1]}},
                "workers": {"hosts": {name: {} for name in names[1:]}},
            },
        }
    }
    return "# Written by clusterctl: the record of what stands. `clusterctl down` removes it.\n" + yaml.dump(
        data, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False
    )


def host_vars(node: Node) -> dict[str, Any]:
    """The variables by which Ansible, and the record, know a node."""
    values: dict[str, Any] = {}
    for name, attribute in _HOST_VARS.items():
        value = getattr(node, attribute)
        if value is None:
            continue
        values[name] = (
            list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
        )
    return values


def load_record(path: Path) -> Cluster:
    """The cluster that a record describes. Raises SettingsError when it is not one."""
    document = load_yaml(path)
    try:
        block = dict(document.data["all"]["vars"]["clusterctl"])
        hosts = document.data["all"]["hosts"] or {}
        nodes = tuple(_node(name, values) for name, values in hosts.items())
        provider = block["provider"]
        return Cluster(
            name=block["name"],
            provider=provider,
            nodes=nodes,
            require_amx=block["require_amx"],
            stack=block["stack"],
            shared_stack=block["shared_stack"],
            settings=block.get(provider) or {},
            playbooks=tuple(block.get("playbooks", ())),
            stack_index=block.get("stack_index"),
            torch_index=block.get("torch_index"),
            packages=tuple(block.get("packages", ())),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{path}: not a record of clusterctl ({error} is missing)") from error


def _node(name: str, values: Mapping[str, Any]) -> Node:
    known = {attribute: values[key] for key, attribute in _HOST_VARS.items() if key in values}
    if "identity_file" in known:
        known["identity_file"] = Path(known["identity_file"])
    known["host_keys"] = tuple(known.get("host_keys", ()))
    return Node(name=name, **known)

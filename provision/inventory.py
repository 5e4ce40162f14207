"""The inventory: Ansible's YAML, with one `clusterctl` block of settings under all.vars.

    all:
      vars:
        clusterctl:
          name: demo
          provider: local
          nodes: 4
          require_amx: false
          local:
            link_rate: 10gbit

The record of a cluster that stands is an inventory too, its hosts with ansible_host and so on: what
clusterctl wrote, Ansible can read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from provision.errors import SettingsError
from provision.model import Cluster, Node
from provision.providers import PROVIDERS, settings_class
from provision.yamlfile import Document, load_yaml, unknown_key

DEFAULT_NAME = "default"
DEFAULT_NODES = 4
_BLOCK = ("all", "vars", "clusterctl")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class Inventory:
    """What the user wants. `nodes` is None where the inventory leaves the number open."""

    name: str = DEFAULT_NAME
    provider: str = "local"
    nodes: int | None = None
    require_amx: bool = False
    stack: str = "native"
    provider_settings: Any = None


def read_inventory(path: Path | None) -> Inventory:
    """The inventory in a file; without one, the local provider with its defaults.

    Raises SettingsError naming file and line: no YAML, an unknown key, a value of the wrong type.
    """
    if path is None:
        return Inventory(provider_settings=settings_class("local")())
    document = load_yaml(path)
    _check_outline(document)
    block = document.data["all"]["vars"]["clusterctl"]
    provider = block.get("provider", "local")
    if provider not in PROVIDERS:
        raise SettingsError(
            f"{document.at((*_BLOCK, 'provider'))}: no provider {provider!r}; there is {', '.join(PROVIDERS)}"
        )
    own = {key: value for key, value in block.items() if key != provider}
    settings = _typed(document, (*_BLOCK, provider), settings_class(provider), block.get(provider) or {})
    inventory: Inventory = _typed(document, _BLOCK, Inventory, own, extra={"provider_settings": settings})
    check_name(inventory.name, document.at((*_BLOCK, "name")))
    return inventory


def check_name(name: str, where: str) -> None:
    """Raises SettingsError unless the name can be a part of host names, file names and tags."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{where}: a cluster's name is 1 to 31 of a-z, 0-9 and -, a letter first; not {name!r}"
        )


def _check_outline(document: Document) -> None:
    """all -> vars -> clusterctl, each a mapping."""
    if not isinstance(document.data, dict):
        raise SettingsError(f"{document.file}: an inventory is a mapping with `all:` at the top")
    here: Any = document.data
    for depth, key in enumerate(_BLOCK, 1):
        path = _BLOCK[:depth]
        if key not in here:
            hint = " > ".join(_BLOCK)
            raise SettingsError(
                f"{document.at(path[:-1])}: no {key!r} here; clusterctl's settings are under {hint}"
            )
        here = here[key]
        if not isinstance(here, dict):
            raise SettingsError(f"{document.at(path)}: {key!r} is to be a mapping")


def _typed(
    document: Document,
    path: tuple[str, ...],
    kind: type,
    data: Any,
    extra: Mapping[str, Any] | None = None,
) -> Any:
    """An instance of a settings dataclass from a mapping. Raises SettingsError naming key and line."""
    if not isinstance(data, dict):
        raise SettingsError(f"{document.at(path)}: {path[-1]!r} is to be a mapping")
    hints = get_type_hints(kind)
    known = tuple(name for name in hints if name not in (extra or {}))
    for key, value in data.items():
        if key not in known:
            raise unknown_key(document, (*path, str(key)), known)
        if not _fits(value, hints[key]):
            raise SettingsError(
                f"{document.at((*path, key))}: {key} is to be {_in_words(hints[key])}, not {value!r}"
            )
    missing = [
        f.name for f in fields(kind) if f.default is f.default_factory is MISSING and f.name not in data
    ]
    if missing:
        raise SettingsError(f"{document.at(path)}: {missing[0]!r} is missing")
    try:
        return kind(**{key: _frozen(value) for key, value in data.items()}, **(extra or {}))
    except SettingsError as error:
        raise SettingsError(f"{document.at(path)}: {error}") from error


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is tuple:
        return isinstance(value, list) and all(_fits(item, get_args(hint)[0]) for item in value)
    if origin is not None:
        return isinstance(value, dict)
    if hint is Any:
        return True
    if hint is int or hint is float:
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _in_words(hint: Any) -> str:
    """A type as a person says it.

    >>> _in_words(int | None)
    'a number or nothing'
    """
    words = {int: "a number", float: "a number", str: "a text", bool: "true or false", type(None): "nothing"}
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_in_words(option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return "a list"
    return words.get(hint, "a mapping")


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
}


def dump_record(cluster: Cluster) -> str:
    """The record of a cluster, as an inventory that Ansible reads too."""
    block = {
        "name": cluster.name,
        "provider": cluster.provider,
        "nodes": len(cluster.nodes),
        "require_amx": cluster.require_amx,
        "stack": cluster.stack,
        "shared_stack": cluster.shared_stack,
        cluster.provider: dict(cluster.settings),
    }
    names = [node.name for node in cluster.nodes]
    data = {
        "all": {
            "vars": {"clusterctl": block},
            "hosts": {node.name: _host_vars(node) for node in cluster.nodes},
            "children": {
                "head": {"hosts": {name: {} for name in names[:1]}},
                "workers": {"hosts": {name: {} for name in names[1:]}},
            },
        }
    }
    return "# Written by clusterctl: the record of what stands. `clusterctl down` removes it.\n" + yaml.dump(
        data, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False
    )


def _host_vars(node: Node) -> dict[str, Any]:
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
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{path}: not a record of clusterctl ({error} is missing)") from error


def _node(name: str, values: Mapping[str, Any]) -> Node:
    known = {attribute: values[key] for key, attribute in _HOST_VARS.items() if key in values}
    if "identity_file" in known:
        known["identity_file"] = Path(known["identity_file"])
    known["host_keys"] = tuple(known.get("host_keys", ()))
    return Node(name=name, **known)

"""A path -> the inventory that Ansible reads from it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.ansible.groups import ALL, Groups, Variable, read_groups
from provision.ansible.variables import Variables
from provision.errors import SettingsError
from provision.yamlfile import Document, Unsafe, Vaulted, parse_yaml, read_text

# What Ansible adds to every host's variables by itself and does not list:
# https://github.com/ansible/ansible/blob/stable-2.19/lib/ansible/constants.py (INTERNAL_STATIC_VARS)
_NOT_LISTED = frozenset({
    "ansible_async_path", "ansible_collection_name", "ansible_config_file", "ansible_dependent_role_names",
    "ansible_diff_mode", "ansible_facts", "ansible_forks", "ansible_inventory_sources", "ansible_limit",
    "ansible_play_batch", "ansible_play_hosts", "ansible_play_hosts_all", "ansible_play_role_names",
    "ansible_playbook_python", "ansible_role_name", "ansible_role_names", "ansible_run_tags",
    "ansible_skip_tags", "ansible_verbosity", "ansible_version", "inventory_dir", "inventory_file",
    "inventory_hostname", "inventory_hostname_short", "groups", "group_names", "hostvars", "playbook_dir",
    "play_hosts", "role_name", "role_names", "role_path", "role_uuid",
})  # fmt: skip
_INI_LINE = re.compile(r"\[[^\]]+\]\s*([#;].*)?|[^\s:]+\s+[\w.]+\s*=.*")


@dataclass(frozen=True)
class AnsibleHost:
    """A host, the variables that count for it, and where it is first named, as FILE:LINE."""

    name: str
    vars: Mapping[str, Variable]
    at: str


@dataclass(frozen=True)
class AnsibleGroup:
    """A group: the hosts and the groups named in it, in the file's order, and its own variables."""

    name: str
    hosts: tuple[str, ...]
    children: tuple[str, ...]
    vars: Mapping[str, Variable]


@dataclass(frozen=True)
class AnsibleInventory:
    """Hosts in the order in which the file first names them. `notes` says what of it was left aside."""

    document: Document
    hosts: tuple[AnsibleHost, ...]
    groups: Mapping[str, AnsibleGroup]
    notes: tuple[str, ...] = ()

    def hosts_of(self, group: str) -> tuple[AnsibleHost, ...]:
        """The hosts in a group and in those below it. Raises KeyError without such a group."""
        below = {group: self.groups[group]}
        waiting = [*below]
        while waiting:
            children = [child for child in self.groups[waiting.pop()].children if child not in below]
            below |= {child: self.groups[child] for child in children}
            waiting += children
        return tuple(host for host in self.hosts if any(host.name in each.hosts for each in below.values()))

    def listing(self) -> dict[str, Any]:
        """What `ansible-inventory --list` prints, ready for json.dumps."""
        values = {host.name: _listed(host.vars) for host in self.hosts}
        groups = {group.name: _outline(group) for group in self.groups.values()}
        hostvars = {name: each for name, each in values.items() if each}
        return {
            "_meta": {"hostvars": hostvars, "profile": "inventory_legacy"},
            **{name: outline for name, outline in groups.items() if outline},
        }


def read_ansible(path: Path) -> AnsibleInventory:
    """The inventory in a YAML file, with group_vars/ and host_vars/ beside it.

    Raises SettingsError naming file and line: what Ansible refuses too, and inventories of other kinds.
    """
    groups = read_groups(_document(path))
    variables = Variables(groups, path.parent)
    return AnsibleInventory(
        document=groups.document,
        hosts=tuple(
            AnsibleHost(name, variables.of_host(name), groups.named_at[name]) for name in groups.hosts
        ),
        groups={name: _group(groups, name, variables) for name in groups.groups},
        notes=(*groups.notes, *variables.notes),
    )


def _group(groups: Groups, name: str, variables: Variables) -> AnsibleGroup:
    group = groups.groups[name]
    return AnsibleGroup(name, tuple(group.hosts), tuple(group.children), variables.of_group(name))


def _document(path: Path) -> Document:
    """Raises SettingsError for what Ansible reads and clusterctl does not, saying how to convert it."""
    text = read_text(path)
    kind = _other_kind(path, text)
    document = parse_yaml(text, str(path)) if kind is None else Document(str(path), None, {})
    if isinstance(document.data, str):
        kind = "an INI inventory"  # a bare list of names is a text to YAML
    if isinstance(document.data, dict) and document.data.get("plugin"):
        kind = "the settings of an inventory plugin"
    if kind is not None:
        convert = f"`ansible-inventory -i {path} --list -y --output NEW.yml`"
        raise SettingsError(f"{path}: {kind}; clusterctl reads YAML ones, and {convert} makes one of it")
    if not isinstance(document.data, dict):
        raise SettingsError(f"{path}: an inventory is a mapping with `all:` at the top")
    return document


def _other_kind(path: Path, text: str) -> str | None:
    """What a file is instead of a YAML inventory, None where it may be one."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    if text.startswith("$ANSIBLE_VAULT"):
        return "an encrypted inventory"
    if path.suffix == ".toml":
        return "a TOML inventory"
    if text.startswith("#!") and path.stat().st_mode & 0o111:
        return "an inventory script"
    return "an INI inventory" if path.suffix == ".ini" or _INI_LINE.fullmatch(first) else None


def _outline(group: AnsibleGroup) -> dict[str, list[str]]:
    """Of the group `all` Ansible lists the children alone."""
    hosts = () if group.name == ALL else group.hosts
    outline = {"hosts": list(hosts), "children": list(group.children)}
    return {key: names for key, names in outline.items() if names}


def _listed(variables: Mapping[str, Variable]) -> dict[str, Any]:
    return {name: _plain(each.value) for name, each in variables.items() if name not in _NOT_LISTED}


def _plain(value: Any) -> Any:
    """A value as Ansible writes it in JSON."""
    if isinstance(value, Vaulted):
        return {"__ansible_vault": str(value)}
    if isinstance(value, Unsafe):
        return {"__ansible_unsafe": str(value)}
    if isinstance(value, dict):
        return {_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, (datetime.date, datetime.datetime)) else value


def _key(key: Any) -> str:
    """A mapping's key as json.dumps writes it.

    >>> _key(True), _key(None), _key(1.5)
    ('true', 'null', '1.5')
    """
    words: dict[Any, str] = {True: "true", False: "false", None: "null"}
    return words[key] if isinstance(key, bool) or key is None else str(key)

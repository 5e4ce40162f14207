"""One inventory file -> its groups and hosts, put together in the order and by the rules of Ansible.

Every host that is in no other group is in `ungrouped`, every group without a parent is below `all`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.ansible.patterns import parse_pattern
from provision.errors import SettingsError
from provision.yamlfile import Document, KeyPath, nearest

ALL, UNGROUPED = "all", "ungrouped"
PRIORITY = "ansible_group_priority"
_SECTIONS = ("vars", "children", "hosts")


@dataclass(frozen=True)
class Variable:
    """A value and where it was set."""

    value: Any
    document: Document
    path: KeyPath

    @property
    def at(self) -> str:
        return self.document.at(self.path)


@dataclass
class Group:
    """Hosts and child groups in the order in which they were named (dicts as ordered sets)."""

    name: str
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    vars: dict[str, Variable] = field(default_factory=dict)
    priority: int = 1


class Groups:
    """Grows while a file is read, and is only read after that."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.hosts: dict[str, dict[str, Variable]] = {}
        self.named_at: dict[str, str] = {}  # host -> FILE:LINE
        self.groups = {ALL: Group(ALL, children={UNGROUPED: None}), UNGROUPED: Group(UNGROUPED)}
        self.notes: list[str] = []
        self._parents: dict[str, list[str]] = {UNGROUPED: [ALL]}

    def parents(self, name: str) -> Sequence[str]:
        return self._parents.get(name, ())

    def ancestors(self, name: str) -> set[str]:
        found: set[str] = set()
        waiting = [*self.parents(name)]
        while waiting:
            parent = waiting.pop()
            if parent not in found:
                found.add(parent)
                waiting += self.parents(parent)
        return found

    def groups_of(self, host: str) -> set[str]:
        """The groups that name the host and all above them."""
        direct = [group.name for group in self.groups.values() if host in group.hosts]
        return set(direct).union(*(self.ancestors(name) for name in direct))

    def depths(self) -> dict[str, int]:
        """Of each group the longest way down from `all`."""
        found: dict[str, int] = {}
        waiting = {ALL: 0}
        while waiting:
            found |= waiting
            below = {
                child: depth + 1 for name, depth in waiting.items() for child in self.groups[name].children
            }
            waiting = {name: depth for name, depth in below.items() if depth > found.get(name, -1)}
        return found

    def add_child(self, name: str, child: str, path: KeyPath) -> None:
        """Ansible's rule: where no group has the child's name, a host may."""
        if child not in self.groups and child in self.hosts:
            self.groups[name].hosts[child] = None
        elif child not in self.groups:
            raise self.wrong(path, f"the group {child!r} is to be a mapping with hosts, vars or children")
        elif child == name or child in self.ancestors(name):
            raise self.wrong(path, f"{child!r} would be below itself")
        elif child not in self.groups[name].children:
            self.groups[name].children[child] = None
            self._parents.setdefault(child, []).append(name)

    def set_variable(self, name: str, key: Any, variable: Variable) -> None:
        """Of a group, else of a host: so Ansible decides where both have the name."""
        if name not in self.groups:
            self.hosts[name][str(key)] = variable
        elif key == PRIORITY:
            self.groups[name].priority = _whole_number(variable)
        else:
            self.groups[name].vars[str(key)] = variable

    def wrong(self, path: KeyPath, problem: str) -> SettingsError:
        return SettingsError(f"{self.document.at(path)}: {problem}")

    def note(self, path: KeyPath, note: str) -> None:
        self.notes.append(f"{self.document.at(path)}: {note}")


def read_groups(document: Document) -> Groups:
    """Raises SettingsError naming file and line."""
    groups = Groups(document)
    for name, data in document.data.items():
        _read_group(groups, name, data, (str(name),))
    for name in groups.groups:
        if name != ALL and not groups.parents(name):
            groups.add_child(ALL, name, (name,))
    for host in groups.hosts:
        above = groups.groups_of(host)
        if above <= {ALL}:
            groups.groups[UNGROUPED].hosts[host] = None
        elif above > {ALL, UNGROUPED}:
            groups.groups[UNGROUPED].hosts.pop(host, None)
    return groups


def _read_group(groups: Groups, name: Any, data: Any, path: KeyPath) -> None:
    if not isinstance(name, str) or not name:
        raise groups.wrong(path, f"a group's name is a text; put {name!r} in quotes")
    if not isinstance(data, (dict, type(None))):
        groups.note(path, f"{name!r} is left aside: a group is a mapping with hosts, vars or children")
        return
    groups.groups.setdefault(name, Group(name))
    sections = {key: _section(groups, key, value, (*path, str(key))) for key, value in (data or {}).items()}
    for key, section in sections.items():
        if key == "vars":
            _set_all(groups, name, section, (*path, "vars"))
        elif key == "children":
            for child, below in section.items():
                here = (*path, "children", str(child))
                _read_group(groups, child, below, here)
                groups.add_child(name, child, here)
        elif key == "hosts":
            for pattern, values in section.items():
                _read_hosts(groups, name, pattern, values or {}, (*path, "hosts", str(pattern)))


def _section(groups: Groups, key: Any, value: Any, path: KeyPath) -> Mapping[Any, Any]:
    """A section's content; empty where Ansible leaves it aside with a warning."""
    if key not in _SECTIONS:
        groups.note(path, f"{key!r} is left aside; {nearest(str(key), _SECTIONS)}")
        return {}
    if isinstance(value, str):
        return {value: None}
    if not isinstance(value, (dict, type(None))):
        raise groups.wrong(
            path, f"{key!r} is to be a mapping; write `n1:` on a line of its own and not `- n1`"
        )
    return value or {}


def _read_hosts(groups: Groups, group: str, pattern: Any, values: Any, path: KeyPath) -> None:
    if not isinstance(pattern, str) or not pattern:
        raise groups.wrong(path, f"a host's name is a text; put {pattern!r} in quotes")
    if not isinstance(values, dict):
        raise groups.wrong(path, f"the variables of {pattern!r} are to be a mapping")
    try:
        names, port = parse_pattern(pattern)
    except ValueError as error:
        raise groups.wrong(path, str(error)) from error
    if not names:
        groups.note(path, f"{pattern!r} is a range of no host: it ends before it begins")
    for name in names:
        if name not in groups.hosts:
            groups.hosts[name] = {"ansible_port": Variable(port, groups.document, path)} if port else {}
            groups.named_at[name] = groups.document.at(path)
        groups.groups[group].hosts[name] = None
        _set_all(groups, name, values, path)


def _set_all(groups: Groups, name: str, values: Mapping[Any, Any], path: KeyPath) -> None:
    for key, value in values.items():
        groups.set_variable(name, key, Variable(value, groups.document, (*path, str(key))))


def _whole_number(variable: Variable) -> int:
    try:
        return int(variable.value)
    except (TypeError, ValueError):
        raise SettingsError(f"{variable.at}: {PRIORITY} is to be a number") from None

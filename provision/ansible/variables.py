"""group_vars/ and host_vars/ beside an inventory, and which of several values counts for a host.

From weak to strong: `all` in the inventory, the other groups there, group_vars of `all`, group_vars of the
others, the host in the inventory, host_vars. Of two groups the deeper is stronger, then the one of higher
ansible_group_priority, then the later in the alphabet.
https://docs.ansible.com/ansible/latest/playbook_guide/playbooks_variables.html#understanding-variable-precedence
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from provision.ansible.groups import ALL, Groups, Variable
from provision.errors import SettingsError
from provision.yamlfile import parse_yaml, read_text

_EXTENSIONS = (".yml", ".yaml", ".json")

Values = dict[str, Variable]


class Variables:
    """The variables of groups and hosts. `notes` grows by the files that are encrypted as a whole."""

    def __init__(self, groups: Groups, folder: Path) -> None:
        self.notes: list[str] = []
        self._groups = groups
        self._folder = folder.resolve()
        self._of_groups: dict[str, Values] = {}
        self._depths = groups.depths()

    def of_host(self, name: str) -> Values:
        names = self._sorted(self._groups.groups_of(name))
        values: Values = {}
        for group in (ALL, *names):
            values |= self._groups.groups[group].vars
        for group in (ALL, *names):
            values |= self._group_files(group)
        return values | self._groups.hosts[name] | self._files("host_vars", name)

    def of_group(self, name: str) -> Values:
        return self._groups.groups[name].vars | self._group_files(name)

    def _sorted(self, names: set[str]) -> list[str]:
        """Weak to strong, without `all`."""
        priorities = {name: self._groups.groups[name].priority for name in names}
        return sorted(names - {ALL}, key=lambda name: (self._depths[name], priorities[name], name))

    def _group_files(self, name: str) -> Values:
        if name not in self._of_groups:
            self._of_groups[name] = self._files("group_vars", name)
        return self._of_groups[name]

    def _files(self, kind: str, name: str) -> Values:
        if name.startswith("/"):  # a chroot; Ansible has no files for those
            return {}
        values: Values = {}
        for path in vars_files(self._folder / kind, name):
            values |= self._load(path)
        return values

    def _load(self, path: Path) -> Values:
        text = read_text(path)
        if text.startswith("$ANSIBLE_VAULT"):
            self.notes.append(
                f"{path}:1: encrypted with Ansible Vault; what it sets is not known to clusterctl"
            )
            return {}
        document = parse_yaml(text, str(path))
        if document.data and not isinstance(document.data, dict):
            raise SettingsError(f"{path}:1: a file of variables is a mapping")
        return {
            str(key): Variable(each, document, (str(key),)) for key, each in (document.data or {}).items()
        }


def vars_files(folder: Path, name: str) -> tuple[Path, ...]:
    """The files with the variables of a host or group: NAME, NAME.yml ..., the first that exists; all
    files below it where that is a folder."""
    for extension in ("", *_EXTENSIONS):
        path = folder / f"{name}{extension}"
        if path.is_dir():
            return tuple(_files_below(path))
        if path.exists():
            return (path,)
    return ()


def _files_below(folder: Path) -> Iterator[Path]:
    """Neither hidden ones nor backups, in the order of their names."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir() and not path.suffix:
            yield from _files_below(path)
        elif path.is_file() and path.suffix in ("", *_EXTENSIONS):
            yield path

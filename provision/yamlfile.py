"""YAML with line numbers, so that a wrong key is reported where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from provision.errors import SettingsError

KeyPath = tuple[str, ...]


class Vaulted(str):
    """A value that Ansible Vault encrypted (`!vault`), as it stands in the file."""

    __slots__ = ()


class Unsafe(str):
    """A text that Ansible never takes for a template (`!unsafe`)."""

    __slots__ = ()


# libyaml where PyYAML was built with it: 64 nodes are read in 6 ms and not 25.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Plain data, and the tags that Ansible's files have."""


def _vaulted(loader: Any, node: yaml.Node) -> Vaulted:
    return Vaulted(loader.construct_scalar(node))


def _unsafe(loader: Any, node: yaml.Node) -> Any:
    """Every text in the value; numbers and the like stay what they are."""
    plain = copy(node)
    plain.tag = loader.resolve(type(node), node.value, (True, False))
    return _marked(loader.construct_object(plain, deep=True))


def _marked(value: Any) -> Any:
    if isinstance(value, str):
        return Unsafe(value)
    if isinstance(value, dict):
        return {key: _marked(each) for key, each in value.items()}
    return [_marked(each) for each in value] if isinstance(value, list) else value


_Loader.add_constructor("!vault", _vaulted)
_Loader.add_constructor("!vault-encrypted", _vaulted)
_Loader.add_constructor("!unsafe", _unsafe)


@dataclass(frozen=True)
class Document:
    """The data of a YAML file and the line (from 1) of every mapping key, by its path of keys."""

    file: str
    data: Any
    lines: Mapping[KeyPath, int]

    def at(self, path: KeyPath) -> str:
        """Where a key stands, as "FILE:LINE"."""
        return f"{self.file}:{self.lines.get(path, 1)}"


def load_yaml(path: Path) -> Document:
    """Raises SettingsError naming the file and line when it cannot be read or is not YAML."""
    return parse_yaml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Raises SettingsError naming the file when it cannot be read or is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not a text file") from error


def parse_yaml(text: str, file: str) -> Document:
    """Raises SettingsError naming the line. An empty text is an empty mapping."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            data = loader.construct_document(root) if root is not None else {}
        finally:
            loader.dispose()
        lines = dict(_lines(root, ()))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SettingsError(f"{file}:{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise SettingsError(f"{file}: nested too deeply, or an alias that holds itself") from error
    except ValueError as error:  # a date such as 2026-02-30
        raise SettingsError(f"{file}: not YAML: {error}") from error
    return Document(file, data, lines)


def _lines(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here = (*path, str(key.value))
        yield here, key.start_mark.line + 1
        yield from _lines(value, here)


def unknown_key(document: Document, path: KeyPath, known: tuple[str, ...]) -> SettingsError:
    """The error for a key that means nothing, with the nearest one that does."""
    return SettingsError(f"{document.at(path)}: unknown key {path[-1]!r}; {nearest(path[-1], known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that means nothing here.

    >>> nearest("wrokers", ["head", "workers"])
    "did you mean 'workers'?"
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"

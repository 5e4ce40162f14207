"""YAML with line numbers, so that a wrong key is reported where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from provision.errors import SettingsError

KeyPath = tuple[str, ...]
# libyaml where PyYAML was built with it: 64 nodes are read in 6 ms and not 25.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
    try:
        return parse_yaml(path.read_text(), str(path))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not a text file") from error


def parse_yaml(text: str, file: str) -> Document:
    """Raises SettingsError naming the line. An empty text is an empty mapping."""
    try:
        loader = _LOADER(text)
        try:
            root = loader.get_single_node()
            data = loader.construct_document(root) if root is not None else {}
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SettingsError(f"{file}:{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    return Document(file, data, dict(_lines(root, ())))


def _lines(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here = (*path, str(key.value))
        yield here, key.start_mark.line + 1
        yield from _lines(value, here)


def unknown_key(document: Document, path: KeyPath, known: tuple[str, ...]) -> SettingsError:
    """The error for a key that means nothing, with the nearest one that does."""
    key = path[-1]
    close = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(sorted(known))}"
    return SettingsError(f"{document.at(path)}: unknown key {key!r}; {hint}")

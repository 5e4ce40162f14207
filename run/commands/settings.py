"""Settings of a launcher: a YAML file, and single ones on the command line, which win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from provision.errors import SettingsError
from provision.typed import read_typed
from provision.yamlfile import Document, load_yaml, nearest, parse_yaml

Settings = TypeVar("Settings")
ON_COMMAND_LINE = "--set"


def read_settings(
    kind: type[Settings], file: Path | None, given: Sequence[str], extra: Mapping[str, Any]
) -> Settings:
    """An instance of `kind` from the file and from "key=value" or "key.part=value" texts.

    `extra` are fields that other options give. Raises SettingsError for what is no setting, with the nearest.
    """
    document = load_yaml(file) if file else Document(ON_COMMAND_LINE, {}, {})
    if not isinstance(document.data, dict):
        raise SettingsError(f"{file}: a mapping of settings is wanted")
    data = dict(document.data)
    for each in given:
        _set(kind, data, each, extra)
    for name in _needed(kind):
        if name not in data and name not in extra:
            raise SettingsError(f"this launcher needs its {name}: {ON_COMMAND_LINE} {name}=...")
    found: Settings = read_typed(Document(document.file, data, document.lines), (), kind, data, extra)
    return found


def _needed(kind: Any) -> list[str]:
    return [each.name for each in fields(kind) if each.default is each.default_factory is MISSING]


def _set(kind: type, data: dict[str, Any], given: str, extra: Mapping[str, Any]) -> None:
    key, equals, text = given.partition("=")
    name, dot, part = key.partition(".")
    if not equals:
        raise SettingsError(f"{ON_COMMAND_LINE} {given}: KEY=VALUE is wanted")
    known = [field for field in get_type_hints(kind) if field not in extra]
    if name not in known:
        raise SettingsError(f"{ON_COMMAND_LINE} {key}: no such setting; {nearest(name, known)}")
    value = text if dot else parse_yaml(f"v: {text}", f"{ON_COMMAND_LINE} {key}").data["v"]
    if not dot:
        data[name] = value
    elif isinstance(data.setdefault(name, {}), dict):
        data[name] = {**data[name], part: value}
    else:
        raise SettingsError(f"{ON_COMMAND_LINE} {key}: {name} has no parts")

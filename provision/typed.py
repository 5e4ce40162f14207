"""A mapping of a YAML file -> a frozen dataclass of settings, whose fields say what may stand in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from provision.ansible.groups import Variable
from provision.ansible.readable import refuse_unreadable
from provision.errors import SettingsError
from provision.yamlfile import Document, KeyPath, unknown_key


def read_typed(
    document: Document, path: KeyPath, kind: type, data: Any, extra: Mapping[str, Any] | None = None
) -> Any:
    """An instance of `kind`. Fields in `extra` get their value from there and may not stand in the file.

    Raises SettingsError naming key and line.
    """
    if not isinstance(data, dict):
        raise SettingsError(f"{document.at(path)}: {path[-1]!r} is to be a mapping")
    hints = get_type_hints(kind)
    known = tuple(name for name in hints if name not in (extra or {}))
    for key, value in data.items():
        if key not in known:
            raise unknown_key(document, (*path, str(key)), known)
        refuse_unreadable(key, Variable(value, document, (*path, key)))
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

"""Values that only Ansible can work out: templates, and what its vault encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provision.ansible.groups import Variable
from provision.errors import SettingsError
from provision.yamlfile import Unsafe, Vaulted


def refuse_unreadable(name: str, variable: Variable) -> None:
    """Raises SettingsError for a value that is, or holds, a template or an encrypted text."""
    texts = tuple(_texts(variable.value))
    if any(isinstance(text, Vaulted) for text in texts):
        raise SettingsError(
            f"{variable.at}: {name} is encrypted with Ansible Vault, which clusterctl does not open"
        )
    if any("{{" in text or "{%" in text for text in texts if not isinstance(text, Unsafe)):
        raise SettingsError(
            f"{variable.at}: {name} is a template, which clusterctl does not evaluate; write its value out"
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)

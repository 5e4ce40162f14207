"""The hosts of an Ansible inventory -> the machines that clusterctl may use, by the variables it needs.

A needed value that only Ansible can work out (a template, a vault's secret) is refused with its file and
line, and so are a password in plain text and what clusterctl does otherwise than Ansible would.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from provision.ansible.groups import ALL, Variable
from provision.ansible.readable import refuse_unreadable
from provision.ansible.reading import AnsibleHost, AnsibleInventory
from provision.ansible.ssh_args import parse_ssh_args
from provision.errors import SettingsError
from provision.model import Machine
from provision.providers.static.settings import check_machine_name
from provision.yamlfile import nearest

# Where Ansible has several names for one thing it takes the last that is set:
# https://docs.ansible.com/ansible/latest/collections/ansible/builtin/ssh_connection.html
_ADDRESS = ("ansible_host", "ansible_ssh_host")
_PORT = ("ansible_port", "ansible_ssh_port")
_USER = ("ansible_user", "ansible_ssh_user")
_KEY = ("ansible_private_key_file", "ansible_ssh_private_key_file")
_ARGS_BEFORE = ("ansible_ssh_args",)
_ARGS_AFTER = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
_PASSWORDS = (
    "ansible_password", "ansible_ssh_pass", "ansible_ssh_password",
    "ansible_become_password", "ansible_become_pass", "ansible_sudo_pass",
)  # fmt: skip
_BY_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh")
_HOST_KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-\S+|sk-\S+)\s+([A-Za-z0-9+/]+=*)(\s.*)?")
_OWN = (
    "clusterctl_private_address", "clusterctl_host_keys", "clusterctl_jump",
    "clusterctl_provider_id", "clusterctl_core_share",
)  # fmt: skip


def read_machines(inventory: AnsibleInventory, group: str | None, where: str) -> tuple[Machine, ...]:
    """The machines in a group, None for all, in the file's order. `where` is the place that names the group.

    Raises SettingsError naming file and line.
    """
    group = group or ALL
    if group not in inventory.groups:
        raise SettingsError(
            f"{where}: no group {group!r} in the inventory; {nearest(group, inventory.groups)}"
        )
    hosts = inventory.hosts_of(group)
    if not hosts:
        raise SettingsError(f"{where}: the group {group!r} has no hosts")
    machines = tuple(_machine(host) for host in hosts)
    _check_distinct(hosts, machines)
    return machines


def _machine(host: AnsibleHost) -> Machine:
    try:
        check_machine_name(host.name)
    except SettingsError as error:
        raise SettingsError(f"{host.at}: {error}") from error
    _refuse_passwords(host)
    _refuse_own_typos(host)
    _check_become(host)
    said = _ssh_args(host, _ARGS_BEFORE)
    said |= {key: each for key, each in _own_login(host).items() if key not in said}
    said |= {key: each for key, each in _ssh_args(host, _ARGS_AFTER).items() if key not in said}
    return Machine(
        name=host.name,
        address=_text(host, *_ADDRESS),
        user=said.get("user"),
        port=int(said["port"]) if "port" in said else None,
        private_address=_text(host, "clusterctl_private_address"),
        identity_file=Path(said["identity_file"]).expanduser().absolute()
        if "identity_file" in said
        else None,
        host_keys=_host_keys(host),
        jump=said.get("jump"),
        local=_is_local(host),
    )


def _own_login(host: AnsibleHost) -> dict[str, str]:
    said = {
        "user": _text(host, *_USER),
        "port": _port(host),
        "identity_file": _text(host, *_KEY),
        "jump": _text(host, "clusterctl_jump"),
    }
    return {key: value for key, value in said.items() if value is not None}


def _needed(host: AnsibleHost, *names: str) -> tuple[str, Variable] | None:
    """The last of some variables that is set, and its name. Raises SettingsError when it is not readable."""
    found = [
        (name, host.vars[name]) for name in names if name in host.vars and host.vars[name].value is not None
    ]
    if not found:
        return None
    refuse_unreadable(f"{host.name}: {found[-1][0]}", found[-1][1])
    return found[-1]


def _text(host: AnsibleHost, *names: str) -> str | None:
    found = _needed(host, *names)
    if found is None:
        return None
    if not isinstance(found[1].value, str) or not found[1].value.strip():
        raise _wrong(host, *found, f"is to be a text, not {found[1].value!r}")
    return found[1].value.strip()


def _port(host: AnsibleHost) -> str | None:
    found = _needed(host, *_PORT)
    if found is None:
        return None
    value = str(found[1].value)
    if isinstance(found[1].value, bool) or not value.isdecimal() or not 0 < int(value) < 65536:
        raise _wrong(host, *found, f"is to be a port, not {found[1].value!r}")
    return value


def _ssh_args(host: AnsibleHost, names: tuple[str, ...]) -> dict[str, str]:
    said: dict[str, str] = {}
    for name in names:
        found = _needed(host, name)
        if found is None or found[1].value == "":
            continue
        try:
            parsed = parse_ssh_args(_text(host, name) or "")
        except ValueError as error:
            raise _wrong(host, *found, str(error)) from error
        if not parsed.get("port", "1").isdecimal():
            raise _wrong(host, *found, f"port {parsed['port']} is not a number")
        said |= {key: each for key, each in parsed.items() if key not in said}
    return said


def _host_keys(host: AnsibleHost) -> tuple[str, ...]:
    """ "ssh-ed25519 AAAA..." each, without comments."""
    found = _needed(host, "clusterctl_host_keys")
    if found is None:
        return ()
    keys = [found[1].value] if isinstance(found[1].value, str) else found[1].value
    matches = [_HOST_KEY.fullmatch(str(key).strip()) for key in keys] if isinstance(keys, list) else [None]
    if not all(matches):
        raise _wrong(host, *found, "is to be a list of public keys such as ssh-ed25519 AAAA...")
    return tuple(f"{match[1]} {match[2]}" for match in matches if match)


def _is_local(host: AnsibleHost) -> bool:
    found = _needed(host, "ansible_connection")
    name = str(found[1].value).removeprefix("ansible.builtin.") if found else "ssh"
    if found and name not in (*_BY_SSH, "local"):
        raise _wrong(host, *found, f"{name} is no way that clusterctl takes; it takes ssh and local")
    return name == "local"


def _check_become(host: AnsibleHost) -> None:
    """clusterctl is root on a node, by login or by sudo; other ways are refused."""
    become = _needed(host, "ansible_become")
    if become and str(become[1].value).lower() in ("false", "no", "off", "0"):
        return
    method = _needed(host, "ansible_become_method")
    if method and str(method[1].value).removeprefix("ansible.builtin.") != "sudo":
        raise _wrong(host, *method, f"{method[1].value!r} is no way that clusterctl takes; it takes sudo")
    user = _needed(host, "ansible_become_user", "ansible_sudo_user")
    if user and user[1].value != "root":
        raise _wrong(host, *user, f"{user[1].value!r}: clusterctl sets nodes up as root")


def _refuse_passwords(host: AnsibleHost) -> None:
    """Those that are templates or a vault's are Ansible's business and pass."""
    for name in _PASSWORDS:
        if name not in host.vars or host.vars[name].value is None:
            continue
        try:
            refuse_unreadable(name, host.vars[name])
        except SettingsError:
            continue
        advice = "take it out, and give it with --ask-pass or --password-command"
        raise SettingsError(f"{host.vars[name].at}: {host.name}: {name} stands here in plain text; {advice}")


def _refuse_own_typos(host: AnsibleHost) -> None:
    for name, variable in host.vars.items():
        if name.startswith("clusterctl_") and name not in _OWN:
            raise SettingsError(
                f"{variable.at}: {host.name}: unknown variable {name!r}; {nearest(name, _OWN)}"
            )


def _check_distinct(hosts: Sequence[AnsibleHost], machines: Sequence[Machine]) -> None:
    """Two names for one machine would train it against itself."""
    seen: dict[tuple[str, int, str | None], str] = {}
    for host, machine in zip(hosts, machines, strict=True):
        place = (machine.address or machine.name, machine.port or 22, machine.jump)
        if place in seen:
            raise SettingsError(f"{host.at}: {host.name} has the address of {seen[place]}, {place[0]}")
        seen[place] = host.name


def _wrong(host: AnsibleHost, name: str, variable: Variable, problem: str) -> SettingsError:
    return SettingsError(f"{variable.at}: {host.name}: {name}: {problem}")

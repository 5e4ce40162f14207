"""ansible_ssh_common_args and its kin: the part of ssh's command line that clusterctl does too.

Where to log in, through which host, with which key. Options that only make ssh quieter, faster or pickier are
passed over; every other one would change where or how safely a login goes, and is refused by its name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath

# ssh's letters that take a value: https://man.openbsd.org/ssh.1
_WITH_VALUE = "BbcDEeFIiJLlmOoPpQRSWw"
_MEANS = {"J": "jump", "l": "user", "p": "port", "i": "identity_file"}
_OPTION_MEANS = {"proxyjump": "jump", "user": "user", "port": "port", "identityfile": "identity_file"}
_PASSED_OVER = frozenset("ACKTakntqvx")
_OPTIONS_PASSED_OVER = frozenset({
    "addkeystoagent", "batchmode", "compression", "connectionattempts", "connecttimeout", "controlmaster",
    "controlpath", "controlpersist", "forwardagent", "gssapiauthentication", "gssapidelegatecredentials",
    "identitiesonly", "kbdinteractiveauthentication", "loglevel", "passwordauthentication",
    "preferredauthentications", "pubkeyauthentication", "requesttty", "serveralivecountmax",
    "serveraliveinterval", "tcpkeepalive",
})  # fmt: skip
_HOST_KEYS = "host keys are always checked here; give them in clusterctl_host_keys or your known_hosts"
_SET = re.compile(r"^\s*(\w*)(?:\s*=\s*|\s+|$)(.*)", re.DOTALL)  # Name=value, Name = value, Name value
_HOP = re.compile(r"(?:[^@\s,/-][^@\s,/]*@)?(?:\[[0-9A-Fa-f:]+\]|[\w.][\w.-]*)(?::\d+)?")


def parse_ssh_args(text: str) -> dict[str, str]:
    """What the arguments say of `jump`, `user`, `port` and `identity_file`; the first value counts.

    Raises ValueError naming what clusterctl cannot do.

    >>> parse_ssh_args("-J ann@gate -o Port=2222 -o ControlMaster=auto")
    {'jump': 'ann@gate', 'port': '2222'}
    """
    found: dict[str, str] = {}
    for letter, value in _options(shlex.split(text)):
        name, value = _meaning(letter, value)
        if name:
            found.setdefault(name, value)
    if found.get("jump", "").lower() == "none":
        del found["jump"]
    for hop in filter(None, found.get("jump", "").split(",")):
        if not _HOP.fullmatch(hop):
            raise ValueError(f"jump host {hop!r} is not user@host:port")
    return found


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """(letter, value) of each option as getopt has them; ("", word) for what is no option."""
    waiting = iter(words)
    for word in waiting:
        letters = word[1:] if word.startswith("-") else ""
        if not letters:
            yield "", word
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in _WITH_VALUE:
                yield letter, letters or next(waiting, "")
                break
            yield letter, ""


def _meaning(letter: str, value: str) -> tuple[str, str]:
    """What an option sets and to what; ("", "") for one that is passed over."""
    if letter == "o":
        match = _SET.match(value)
        return _option_meaning(*(match.groups() if match else (value, "")))
    if letter in _MEANS:
        return _MEANS[letter], value
    if not letter or letter not in _PASSED_OVER:
        shown = f"-{letter} {value}".strip() if letter else repr(value)
        raise ValueError(f"{shown} is nothing that clusterctl can do")
    return "", ""


def _option_meaning(option: str, value: str) -> tuple[str, str]:
    name, value = option.lower(), value.strip('"')
    if name == "proxycommand":
        return "jump", _jump_of(value)
    if name == "stricthostkeychecking" and value.lower() in ("yes", "ask", "accept-new", "true"):
        return "", ""
    if name in ("stricthostkeychecking", "userknownhostsfile", "globalknownhostsfile"):
        raise ValueError(f"-o {option}={value}: {_HOST_KEYS}")
    if name in _OPTION_MEANS:
        return _OPTION_MEANS[name], value
    if name not in _OPTIONS_PASSED_OVER:
        raise ValueError(f"-o {option}={value} is nothing that clusterctl can do")
    return "", ""


def _jump_of(command: str) -> str:
    """The jump host of the old way to say it, `ssh -W %h:%p -q user@gate`.

    >>> _jump_of("ssh -p 2222 -W %h:%p -q ann@gate")
    'ann@gate:2222'
    """
    program, *words = shlex.split(command) or [""]
    said = dict(_options(words))
    target, host, port, user = (said.pop(letter, "") for letter in ("W", "", "p", "l"))
    is_jump = PurePath(program).name == "ssh" and target in ("%h:%p", "[%h]:%p") and host
    if not is_jump or not set(said) <= _PASSED_OVER:
        raise ValueError(
            f"-o ProxyCommand={command} is nothing that clusterctl can do; say -J user@host:port"
        )
    return (f"{user}@" if user else "") + host + (f":{port}" if port else "")

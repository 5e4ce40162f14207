"""What a machine was like before: kept on it at first contact, and how to bring it back.

Two stores, because a home may be shared by several machines (NFS), and root of one may not write there:

    ~/.clusterctl/originals/            of the login user's home, made by the user
    /var/lib/clusterctl/originals/      of everything else, made by root
        list            a line for each path: what it was, mode, owner, path
        files/N         the content of the file in line N
        users/NODE.CLUSTER    who counts on it; the last one to go brings back what several shared

A managed block is taken out of what the file is now, so that the owner's later edits stay.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from provision.block import remove_block
from provision.errors import CommandError, HostError
from provision.facts import MESH_KEY
from provision.host import Host, quoted
from provision.line import closed
from provision.providers import Written

HOME_STORE = ".clusterctl/originals"  # in the home of the login user
ROOT_STORE = "/var/lib/clusterctl/originals"

# Debian's sudo leaves it in an administrator's home at the first success.
SUDO_MARK = "~/.sudo_as_admin_successful"


class Kind(Enum):
    """How clusterctl uses a path."""

    FOLDER = "folder"  # made where missing
    BLOCK = "block"  # a managed block in somebody's file
    WHOLE = "whole"  # written whole, over what may have been there
    OURS = "ours"  # a file that only clusterctl has
    STACK = "stack"  # a folder that only goes when asked for


class Touched(NamedTuple):
    """A path that playbooks or the first contact write."""

    path: str
    kind: Kind


def operator_block(cluster: str) -> str:
    """The name of the block with the operator's key; the mesh's own block is named as the cluster."""
    return f"{cluster} operator"


def touched_in_home() -> tuple[Touched, ...]:
    """Folders after what is in them, the way in (authorized_keys) last: the order of taking away."""
    return (
        Touched("~/.ssh/known_hosts", Kind.BLOCK),
        Touched("~/.ssh/config", Kind.BLOCK),
        Touched(f"~/{MESH_KEY}", Kind.OURS),
        Touched(f"~/{MESH_KEY}.pub", Kind.OURS),
        Touched("~/hosts", Kind.WHOLE),
        Touched("~/hosts.before-clusterctl", Kind.OURS),
        Touched(SUDO_MARK, Kind.OURS),
        Touched("~/.ssh/authorized_keys", Kind.BLOCK),
        Touched("~/.ssh", Kind.FOLDER),
    )


def touched_by_root() -> tuple[Touched, ...]:
    return (
        Touched("/etc/hosts", Kind.BLOCK),
        Touched("/etc/security/limits.d/50-clusterctl.conf", Kind.WHOLE),
        Touched("/etc/security/limits.d/50-clusterctl.conf.before-clusterctl", Kind.OURS),
        Touched("/etc/security/limits.d", Kind.FOLDER),
        Touched("/opt/clusterctl", Kind.STACK),
    )


# Made beside its place and renamed: where the home is shared, the first machine wins, before it changes
# anything, and the others' copies are thrown away. What a full disk cut off is taken away again.
_KEEP = """
set -eu; umask 022
store=%s; user=%s; new=
trap 'rm -rf "$new"; rmdir "${store%%/*}" 2> /dev/null || :' EXIT
if [ ! -d "$store" ]; then
    mkdir -p "${store%%/*}"
    new=$(mktemp -d "$store.XXXXXX"); mkdir "$new/files" "$new/users"
    chmod 755 "$new"; chmod 700 "$new/files"
    line=0
    while IFS= read -r path; do
        line=$((line + 1))
        if [ -e "$path" ]; then
            if [ -d "$path" ]; then kind=folder
            else kind=file; cat "$path" > "$new/files/$line"; fi
            echo "$kind $(stat -L -c '%%a %%u:%%g' "$path") $path"
        else echo "absent - - $path"; fi
    done > "$new/list" << 'PATHS'
%sPATHS
    : > "$new/users/$user"
    mv -T "$new" "$store" 2> /dev/null || :
fi
: > "$store/users/$user"
"""


def keep_script(store: str, user: str, touched: Sequence[Touched]) -> str:
    """sh that keeps the originals, once; every path must be absolute."""
    paths = "".join(f"{each.path}\n" for each in touched)
    return _KEEP % (quoted("%s", store), quoted("%s", user), paths)


def keep(host: Host, script: str, *, sudo: bool = False) -> None:
    """Run a keep_script(). Raises HostError with the machine's own last words, and ConnectError."""
    try:
        host.run(script, sudo=sudo)
    except CommandError as error:
        why = error.last_lines[-1] if error.last_lines else f"exit code {error.command_exit_code}"
        raise HostError(host.node.name, f"what was there before cannot be kept: {why}") from error


_READ = """
store=%s
rm -f "$store/users/"%s
show() {
    if [ -d "$1" ]; then echo "folder $(stat -L -c '%%a %%u:%%g' "$1") $1"
    elif [ -e "$1" ]; then echo "file $(stat -L -c '%%a %%u:%%g' "$1") $1"; base64 -w 0 < "$1"; echo
    else echo "absent - - $1"; fi
}
echo '@@now'
while IFS= read -r path; do show "$path"; done << 'PATHS'
%sPATHS
echo '@@originals'
[ ! -d "$store" ] || {
    line=0
    while read -r kind mode owner path; do
        line=$((line + 1))
        echo "$kind $mode $owner $path"
        if [ "$kind" = file ]; then base64 -w 0 < "$store/files/$line"; echo; fi
    done < "$store/list"
}
echo '@@users'
[ ! -d "$store" ] || ls "$store/users"
echo '@@end'
"""


def leave_script(store: str, user: str, touched: Sequence[Touched]) -> str:
    """sh that ends the user's counting on the store, then prints what the paths are, what they were, and who
    still counts on it. In this order: of several that leave at once, one sees that it was the last."""
    paths = "".join(f"{each.path}\n" for each in touched)
    return _READ % (quoted("%s", store), quoted("%s", user), paths)


@dataclass(frozen=True)
class Entry:
    """What is at a path. `kind` is "absent", "folder" or "file"; `owner` is "uid:gid"."""

    kind: str = "absent"
    mode: str = ""
    owner: str = ""
    content: bytes = b""

    @property
    def text(self) -> str:
        return self.content.decode(errors="surrogateescape")


@dataclass(frozen=True)
class Store:
    """What read_script() printed."""

    now: Mapping[str, Entry]
    originals: Mapping[str, Entry]
    users: frozenset[str]


def parse_store(text: str) -> Store:
    """Raises ValueError when the end is missing."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("@@"):
            sections[line[2:]] = []
        elif sections:
            sections[list(sections)[-1]].append(line)
    if "end" not in sections:
        raise ValueError("the answer was cut off")
    return Store(_entries(sections["now"]), _entries(sections["originals"]), frozenset(sections["users"]))


def _entries(lines: Sequence[str]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    rest = iter(lines)
    for line in rest:
        kind, mode, owner, path = line.split(" ", 3)
        content = base64.b64decode(next(rest)) if kind == "file" else b""
        found[path] = Entry(kind, mode, owner, content)
    return found


@dataclass(frozen=True)
class Plan:
    """How a store's paths become what they were, each as sh; and what stays, for a person to know."""

    changes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def plan_return(
    store: Store, touched: Sequence[Touched], cluster: str, written: Written, *, purge: bool
) -> Plan:
    """What only one had that left the store is taken away; what several shared, when none is left."""
    others = store.users
    same_cluster = any(other.endswith(f".{cluster}") for other in others)
    changes: list[str] = []
    notes: list[str] = []
    for path, kind in touched:
        now, original = store.now.get(path, Entry()), store.originals.get(path, Entry())
        if now.kind == "absent":
            continue
        if kind is Kind.BLOCK and not same_cluster:
            changes += _without_blocks(path, now, original, cluster)
        elif kind is Kind.OURS and not others and original.kind == "absent":
            changes.append(quoted("rm -f %s", path))
        elif kind is Kind.WHOLE and not others:
            if _is_ours(now, written.get(path, frozenset())):
                changes += _as_before(path, original)
            elif now.content != original.content:
                notes.append(f"{path} was edited since and is left as it is")
        elif kind is Kind.FOLDER and not others:
            changes += _folder_as_before(path, now, original)
        elif kind is Kind.STACK and purge and not others:
            changes.append(quoted("rm -rf --one-file-system %s", path))
    return Plan(tuple(changes), tuple(notes))


def _without_blocks(path: str, now: Entry, original: Entry, cluster: str) -> list[str]:
    text = now.text
    for name in (operator_block(cluster), cluster):
        text = remove_block(text, name)
    if text == now.text:
        return []
    if not text and original.kind == "absent":
        return [quoted('rm -f "$(readlink -f %s)"', path)]
    if original.kind == "file" and text == closed(original.text):
        text = original.text  # a block at the end had to put in the newline that the last line lacked
    changes = [_write(path, text.encode(errors="surrogateescape"))]
    if original.kind == "file" and original.owner != now.owner:
        changes.append(quoted("chown %s %s 2> /dev/null || :", original.owner, path))
    return changes


def _is_ours(now: Entry, lines: frozenset[str]) -> bool:
    return now.kind == "file" and bool(lines) and all(line in lines for line in now.text.splitlines())


def _as_before(path: str, original: Entry) -> list[str]:
    if original.kind == "absent":
        return [quoted("rm -f %s", path)]
    return [
        _write(path, original.content),
        quoted("chmod %s %s; chown %s %s 2> /dev/null || :", original.mode, path, original.owner, path),
    ]


def _folder_as_before(path: str, now: Entry, original: Entry) -> list[str]:
    """One that was made and holds nothing now goes; a mode that clusterctl set becomes what it was."""
    if original.kind == "absent":
        return [quoted("rmdir %s 2> /dev/null || :", path)]
    if original.mode != now.mode and now.mode == "700":
        return [quoted("chmod %s %s", original.mode, path)]
    return []


def _write(path: str, content: bytes) -> str:
    """Through links, at once, with owner, mode and attributes of the file that is there."""
    script = quoted(
        'file=$(readlink -f %s); new=$(mktemp "$file.XXXXXX")\n'
        'cp --attributes-only --preserve=all "$file" "$new"',
        path,
    )
    encoded = base64.b64encode(content).decode()
    return f'{script}; base64 -d > "$new" << END\n{encoded}\nEND\nmv -f "$new" "$file"'

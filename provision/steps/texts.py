"""Text files on a host: read in a probe, read to the byte for an edit, written beside and renamed."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Callable
from dataclasses import dataclass

from provision.commandlog import labelled
from provision.errors import SettingsError
from provision.host import Host, quoted
from provision.step import FileProbe

# Prints "owner mode" and then the content; nothing at all when the file is not there.
_READ = "[ -e %s ] && stat -L -c '%%U %%a' %s && cat %s"

# Written beside the target and renamed over it: a full disk or a cut connection leaves the old file whole,
# and what a killed run left beside it is replaced by the next. ACLs and SELinux labels are the old file's.
# Through a symlink where the target is one. The content is only ever in a file of the right mode. The name
# beside it is the node's own: in a home that nodes share, they write the same file at once.
_WRITE = """
target=$(readlink -m %s) && folder=$(dirname "$target") && mkdir -p "$folder" || exit 1
new=$folder/.$(basename "$target").clusterctl-new-$(uname -n)
make() {
    umask 077 && rm -rf "$new" || return
    if [ -e "$target" ]; then cp --attributes-only --preserve=all "$target" "$new"; else : > "$new"; fi
}
own() { [ "$1" = keep ] && [ -e "$target" ] || { chown "$2:" "$new" && chmod "$3" "$new"; }; }
make && own %s %s %s && cat >> "$new" && mv -fT "$new" "$target" || { rm -rf "$new"; exit 1; }
"""


@dataclass(frozen=True)
class Seen:
    """A file as a probe saw it. All empty when there is none."""

    owner: str = ""
    mode: str = ""
    content: str = ""


def read_probe(path: str) -> FileProbe:
    return FileProbe(quoted(_READ, path, path, path), path)


def parse_seen(actual: str) -> Seen:
    """From what read_probe() printed.

    >>> parse_seen("root 644\\nhello\\n")
    Seen(owner='root', mode='644', content='hello\\n')
    """
    head, _, content = actual.partition("\n")
    owner, _, mode = head.partition(" ")
    return Seen(owner, mode, content)


def read_text(host: Host, path: str, user: str = "") -> str:
    """The file's content, empty when there is none; bytes that are not UTF-8 survive write_text()."""
    with labelled(host, f"content of {path}", brief=True):
        script = quoted("[ ! -e %s ] || base64 %s", path, path)
        answer = host.run(as_user(user, script), sudo=True)
    return base64.b64decode(answer.stdout).decode(errors="surrogateescape")


def write_text(
    host: Host, path: str, text: str, owner: str, mode: str, *, keep: bool = False, user: str = ""
) -> None:
    """Replace a file's content at once. Raises HostError.

    With `keep`, a file that exists keeps its owner and mode. With `user`, it is that user who writes, who
    can do no harm through links that point elsewhere.
    """
    script = quoted(_WRITE, path, "keep" if keep else "set", owner, octal(mode))
    host.run(as_user(user, script), sudo=True, stdin=text.encode(errors="surrogateescape"))


def edit_text(
    host: Host, path: str, change: Callable[[str], str], owner: str, mode: str, *, user: str = ""
) -> None:
    """Change a file's text; its other bytes, owner and mode stay. Owner and mode are for a new file."""
    before = read_text(host, path, user)
    after = change(before)
    if after != before:
        write_text(host, path, after, owner, mode, keep=True, user=user)


def as_user(user: str, script: str) -> str:
    """The script as it is for root, or run by another user."""
    return quoted("runuser -u %s -- sh -c %s", user, script) if user else script


def octal(mode: str) -> str:
    """A mode as `stat` prints it. Raises SettingsError.

    >>> octal("0644")
    '644'
    """
    try:
        return format(int(mode, 8), "o")
    except ValueError:
        raise SettingsError(f"mode {mode!r} is not octal, such as '644'") from None


def unified(before: str, after: str, path: str) -> str:
    """A unified diff without its last newline; a missing newline at the end is told as diff tells it."""
    lines = difflib.unified_diff(_shown(before), _shown(after), path, path, lineterm="")
    return "\n".join(lines)


def _shown(text: str) -> list[str]:
    lines = text.replace("\r", "^M").split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"
        return lines
    return lines[:-1]

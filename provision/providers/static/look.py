"""What a machine is like at the first login: read in one exec, before anything is changed there."""

from __future__ import annotations

from dataclasses import dataclass

# The mark before sudo is asked: its first success leaves one.
SCRIPT = """
echo "uid $(id -u)"
echo "user $(id -un)"
echo "home $(cd && pwd)"
echo "connection $SSH_CONNECTION"
[ ! -e ~/.sudo_as_admin_successful ] || echo 'sudo mark'
sudo -k -n true 2> /dev/null && echo 'root yes'
command -v sudo > /dev/null || echo 'root none'
[ "$(id -u)" != 0 ] || echo 'root self'
echo keys; cat ~/.ssh/authorized_keys 2> /dev/null || :
"""


@dataclass(frozen=True)
class Look:
    """What SCRIPT tells. `root` is "self", "yes", "password" or "none"; `address` is where its sshd is."""

    uid: int
    user: str
    home: str
    address: str
    root: str
    authorized_keys: str
    has_sudo_mark: bool = False


def parse_look(text: str) -> Look:
    """From what SCRIPT prints.

    >>> parse_look("uid 0\\nuser root\\nhome /root\\nconnection a 1 10.0.0.5 22\\nkeys\\n").address
    '10.0.0.5'
    """
    head, _, keys = text.partition("\nkeys\n")
    fields: dict[str, str] = {}
    for line in head.splitlines():
        name, _, value = line.partition(" ")
        fields[name] = value
    connection = fields.get("connection", "").split()
    return Look(
        int(fields["uid"]),
        fields["user"],
        fields["home"],
        connection[2] if len(connection) > 3 else "",
        fields.get("root", "password"),
        keys,
        "sudo" in fields,
    )

"""First contact: from a machine that the operator can log in to, to one that the cluster's key opens.

Nothing is changed on a machine before its host key is trusted, its login and its root have worked, and its
originals are kept.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from provision.block import set_block
from provision.connection import Login, shown_host_key
from provision.errors import (
    ClusterctlError,
    ConnectError,
    HostError,
    HostKeyError,
    LoginRefused,
    SettingsError,
)
from provision.host import SshHost
from provision.model import Node
from provision.openssh import known_keys
from provision.providers import NodesUnopenable, Progress, Secret, UnknownKey, Wanted
from provision.providers.static import look
from provision.providers.static.host_keys import judge
from provision.providers.static.meetings import Meeting, Meetings
from provision.providers.static.originals import (
    HOME_STORE,
    SUDO_MARK,
    Touched,
    keep,
    keep_script,
    operator_block,
    touched_by_root,
    touched_in_home,
)
from provision.providers.static.sudo import (
    SudoPasswordRefused,
    drop_in,
    keep_as_root,
    keep_by_password,
    rule,
)
from provision.providers.static.targets import Target, mesh_address

CONNECT_TIMEOUT_S = 10.0

# The way in, at once and through links; modes that sshd accepts (StrictModes).
_OPEN = """
set -eu; umask 077
mkdir -p ~/.ssh; chmod 700 ~/.ssh
file=$(readlink -f ~/.ssh/authorized_keys); new=$(mktemp "$file.XXXXXX")
[ ! -e "$file" ] || cp --attributes-only --preserve=all "$file" "$new"
cat > "$new"; mv -f "$new" "$file"
"""


class FirstContact:
    """The first contact with some machines; nodes() has those that opened, `problems` the others."""

    def __init__(self, wanted: Wanted, targets: Sequence[Target], progress: Progress) -> None:
        self._wanted = wanted
        self._progress = progress
        self._recorded = {node.name: node.host_keys for node in wanted.known}
        self._meetings = Meetings(targets, wanted.operator)

    @property
    def problems(self) -> dict[str, ClusterctlError]:
        return self._meetings.problems

    def nodes(self) -> tuple[Node, ...]:
        """Those met. Raises NodesUnopenable when another clusterctl has a cluster of that name on some."""
        try:
            self._trust_host_keys()
            self._log_in()
            self._meetings.each(self._look)
            self._not_anothers()
            self._become_root()
            if self._met:
                self._wanted.record(self._met)
            self._meetings.each(self._open)
            self._meetings.each(self._verify)
            return self._met
        finally:
            self._meetings.close()

    @property
    def _met(self) -> tuple[Node, ...]:
        return tuple(meeting.target.node for meeting in self._meetings)

    # Host keys.

    def _trust_host_keys(self) -> None:
        unknown: list[UnknownKey] = []
        for name, shown in self._meetings.each(self._shown).items():
            meeting = self._meetings[name]
            trust = judge(shown, self._recorded.get(name, ()), meeting.target.stated, meeting.known)
            if trust.problem:
                self._meetings.fail(name, HostKeyError(name, trust.problem))
                continue
            self._pin(meeting, trust.pins or (shown,))
            if not trust.pins:
                unknown.append(UnknownKey(name, meeting.target.where, shown))
        if unknown:
            self._ask_about(unknown)

    def _shown(self, meeting: Meeting) -> str:
        self._progress(meeting.name, "host key")
        target = meeting.target
        meeting.known = known_keys(target.destination)
        keys = target.stated or self._recorded.get(meeting.name, ()) or meeting.known.trusted
        return shown_host_key(target.node, CONNECT_TIMEOUT_S, [key.split()[0] for key in keys])

    def _ask_about(self, unknown: Sequence[UnknownKey]) -> None:
        try:
            accepted, why = self._wanted.operator.accepts(unknown), "its host key was not confirmed"
        except SettingsError as error:
            accepted, why = False, str(error)
        if not accepted:
            for each in unknown:
                self._meetings.fail(each.node, HostKeyError(each.node, why))

    def _pin(self, meeting: Meeting, keys: tuple[str, ...]) -> None:
        meeting.target = replace(meeting.target, node=replace(meeting.target.node, host_keys=keys))

    # Logins.

    def _log_in(self) -> None:
        """By keys and agent, else by password."""
        refused = self._meetings.attempt(self._by_keys, tuple(self._meetings))
        self._meetings.by_password(Secret.LOGIN, refused, self._by)

    def _by_keys(self, meeting: Meeting) -> None:
        self._progress(meeting.name, "first login")
        login = meeting.target.login
        files = (self._wanted.identity_file, *login.key_files)
        meeting.host = self._session(meeting, replace(login, key_files=files))

    def _by(self, meeting: Meeting, password: str) -> None:
        meeting.host = self._session(meeting, Login(password=password))
        meeting.password = password

    def _session(self, meeting: Meeting, login: Login) -> SshHost:
        host = SshHost(meeting.target.node, CONNECT_TIMEOUT_S, login)
        try:
            host.run("true")
        except LoginRefused:
            what = "the password" if login.password else "your keys"
            raise LoginRefused(meeting.name, f"{meeting.target.where} refuses {what}") from None
        return host

    # What is there, and root.

    def _look(self, meeting: Meeting) -> None:
        assert meeting.host
        seen = meeting.look = look.parse_look(meeting.host.run(look.SCRIPT).stdout)
        if seen.root == "none":
            raise HostError(meeting.name, f"{seen.user} is not root and there is no sudo; install it")
        node = meeting.target.node
        node = replace(node, private_address=mesh_address(node, seen.address))
        meeting.target = replace(meeting.target, node=node)

    def _not_anothers(self) -> None:
        theirs = [meeting.name for meeting in self._meetings if self._is_anothers(meeting)]
        if theirs and not self._wanted.may_replace:
            raise NodesUnopenable(
                f"{', '.join(theirs)}: another clusterctl has a cluster {self._wanted.name} there, or this "
                "one lost its record. Choose another --name, or take it over: its key no longer opens them",
                "Take it over?",
            )

    def _is_anothers(self, meeting: Meeting) -> bool:
        keys = meeting.open[1].authorized_keys
        block = f"# >>> clusterctl {operator_block(self._wanted.name)} >>>"
        return block in keys and self._wanted.public_key not in keys

    def _become_root(self) -> None:
        """As it is, else with the password of the login, which is sudo's for most, else with one for sudo."""
        free = [meeting for meeting in self._meetings if meeting.open[1].root != "password"]
        paid = [meeting for meeting in self._meetings if meeting.open[1].root == "password"]
        self._meetings.each(self._keep, free)
        refused = self._meetings.attempt(self._keep_by_login_password, paid)
        self._meetings.by_password(Secret.SUDO, refused, self._keep_by)

    def _keep(self, meeting: Meeting) -> None:
        keep_as_root(meeting.open[0], self._stamp(meeting), touched_by_root())

    def _keep_by_login_password(self, meeting: Meeting) -> None:
        if meeting.password is None:
            raise SudoPasswordRefused(meeting.name, "sudo asks for a password")
        self._keep_by(meeting, meeting.password)

    def _keep_by(self, meeting: Meeting, password: str) -> None:
        host, seen = meeting.open
        path = drop_in(self._wanted.name)
        sudoers = (path, rule(seen.user, seen.uid))
        keep_by_password(host, self._stamp(meeting), touched_by_root(), sudoers, password)
        said = f"until `clusterctl down`, {path} lets {seen.user} use sudo without a password"
        self._wanted.operator.tell(f"{meeting.name}: {said}")

    # The way in.

    def _open(self, meeting: Meeting) -> None:
        host, seen = meeting.open
        self._progress(meeting.name, "installing the cluster's key")
        touched = [Touched(each.path.replace("~", seen.home, 1), each.kind) for each in touched_in_home()]
        if not seen.has_sudo_mark:  # our own use of sudo has left it meanwhile
            host.run("rm -f %s", SUDO_MARK.replace("~", seen.home, 1))
        keep(host, keep_script(f"{seen.home}/{HOME_STORE}", self._stamp(meeting), touched))
        # Read again: where the home is shared, another machine's contact may have written by now.
        encoded = host.run("[ ! -e ~/.ssh/authorized_keys ] || base64 -w 0 < ~/.ssh/authorized_keys").stdout
        now = base64.b64decode(encoded).decode(errors="surrogateescape")
        keys = set_block(now, operator_block(self._wanted.name), (self._wanted.public_key,))
        if keys != now:
            host.run(_OPEN, stdin=keys.encode(errors="surrogateescape"))

    def _verify(self, meeting: Meeting) -> None:
        with SshHost(meeting.target.node, CONNECT_TIMEOUT_S) as host:
            try:
                host.run("true")
            except LoginRefused:
                raise ConnectError(
                    meeting.name,
                    "its sshd does not take the key that was put into ~/.ssh/authorized_keys; does its "
                    "AuthorizedKeysFile say another place, or is the home writable for others?",
                ) from None
            with suppress(HostError):
                host.run("true", sudo=True)
                self._progress(meeting.name, "ready")
                return
        why = "sudo still asks for a password; does /etc/sudoers read /etc/sudoers.d?"
        raise HostError(meeting.name, why)

    def _stamp(self, meeting: Meeting) -> str:
        """Who counts on the originals."""
        return f"{meeting.name}.{self._wanted.name}"

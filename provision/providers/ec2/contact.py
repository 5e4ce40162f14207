"""The first login to an instance, host key verified, and the exchange of that host key for its own.

User data gave all instances of a launch one throw-away host key; its public half pins the first login. Over
that session each instance makes a key of its own; once this machine has written that down, the instance
begins to use it. Cut off anywhere, the next `up` knows which of the two an instance may show.

The instance's console is a second witness: cloud-init prints the host keys there, and EC2 carries it on
another way than the network that ssh uses. It may lag by minutes and is not waited for.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from provision.banner import wait_for_banner
from provision.errors import ClusterctlError, ConnectError, HostKeyError, ProviderError
from provision.host import SshHost
from provision.model import Node
from provision.providers import Progress
from provision.providers.ec2.account import Account, AwsError
from provision.providers.ec2.launches import Launches
from provision.providers.ec2.standing import Instance

FIRST_SCRIPT_TIMEOUT_S = 600.0
RELOAD_TIMEOUT_S = 20.0
RELOAD_POLL_S = 0.05

# cloud-init may still be busy with apt. An image that `up --bake` made carries its first cluster's
# authorized_keys: from here on only this cluster's key opens the node.
_OWN_KEY = """
set -eu; umask 077
! command -v cloud-init > /dev/null || cloud-init status --wait > /dev/null || :
home=$(getent passwd %s | cut -d: -f6)
printf '%%s\\n' %s > "$home/.ssh/clusterctl.new"
chown %s: "$home/.ssh/clusterctl.new"
mv -f "$home/.ssh/clusterctl.new" "$home/.ssh/authorized_keys"
cd /etc/ssh
if [ ! -s clusterctl_own.pub ]; then
    rm -f clusterctl_own; ssh-keygen -q -t ed25519 -N '' -C "$(hostname)" -f clusterctl_own
fi
cat clusterctl_own.pub
"""
# Copied, then removed: cut off in between, the next time ends the same.
_USE_OWN_KEY = """
set -eu; umask 077; cd /etc/ssh
if [ -e clusterctl_own ]; then
    cp clusterctl_own ssh_host_ed25519_key.new; mv -f ssh_host_ed25519_key.new ssh_host_ed25519_key
    cp clusterctl_own.pub ssh_host_ed25519_key.pub; chmod 644 ssh_host_ed25519_key.pub
    rm -f clusterctl_own clusterctl_own.pub
fi
if [ -d /run/systemd/system ]; then systemctl reload ssh || systemctl reload sshd
else kill -HUP "$(cat /run/sshd.pid)"; fi
"""


@dataclass(frozen=True)
class Contact:
    """First contact with the instances of one create(); called from several threads."""

    account: Account
    launches: Launches
    user: str
    identity_file: Path
    public_key: str
    boot_limit_s: float
    progress: Progress

    def node(self, instance: Instance) -> Node:
        """The instance as a node with its own host key pinned, and an sshd that answers.

        Raises ProviderError or HostError: it does not answer in time, or does not show its host key.
        """
        if instance.state != "running":
            raise ProviderError(f"{instance.node}: {ended(instance)}")
        self.progress(instance.node, f"{instance.id} runs, waiting for its sshd")
        if not wait_for_banner(self._address(instance), self.boot_limit_s):
            raise ProviderError(
                f"{instance.node}: no sshd answers at {instance.address} {self.boot_limit_s:.0f} s after its "
                f"start ({instance.id}); {self._last_words(instance)}"
            )
        first = self.launches.known.first_key(instance.id)
        own = self.launches.known.host_keys.get(instance.id)
        if first is not None and not (own and self._shows(instance, own)):
            own = self._exchange(instance, first)
        if own is None:
            raise ProviderError(
                f"{instance.node}: the host key of {instance.id} is not known here; "
                f"`clusterctl up --replace {instance.node}` makes it anew"
            )
        self.progress(instance.node, "ready")
        return self.as_node(instance, own)

    def as_node(self, instance: Instance, host_key: str) -> Node:
        return Node(
            name=instance.node,
            address=self._address(instance),
            user=self.user,
            private_address=instance.private_address,
            identity_file=self.identity_file,
            host_keys=(host_key,),
            provider_id=instance.id,
        )

    def _exchange(self, instance: Instance, first: str) -> str:
        self.progress(instance.node, "first login")
        self._ask_console(instance, first)
        with SshHost(self.as_node(instance, first)) as host:
            try:
                said = host.run(
                    _OWN_KEY,
                    self.user,
                    self.public_key,
                    self.user,
                    sudo=True,
                    timeout_s=FIRST_SCRIPT_TIMEOUT_S,
                )
            except HostKeyError:
                raise ProviderError(
                    f"{instance.node}: {instance.address} does not show the host key that {instance.id} was "
                    "given at its start: somebody may answer in its place. Nothing was sent there; "
                    f"`clusterctl up --replace {instance.node}` makes it anew"
                ) from None
            own = " ".join(said.stdout.splitlines()[-1].split()[:2])
            self.launches.learn(instance.id, own)
            host.run(_USE_OWN_KEY, sudo=True)
        self._wait_for(instance, own)
        return own

    def _wait_for(self, instance: Instance, host_key: str) -> None:
        """Until sshd has read its new key: for a moment it shows the old one, or does not listen."""
        deadline = time.monotonic() + RELOAD_TIMEOUT_S
        while True:
            with contextlib.suppress(ConnectError):
                if self._shows(instance, host_key):
                    return
            if time.monotonic() > deadline:
                raise ProviderError(
                    f"{instance.node}: its sshd does not take its own host key; run `clusterctl up` again"
                )
            time.sleep(RELOAD_POLL_S)

    def _shows(self, instance: Instance, host_key: str) -> bool:
        """Does a login find this host key? Raises ConnectError when there is no login at all."""
        try:
            with SshHost(self.as_node(instance, host_key)) as host:
                host.run("true")
        except HostKeyError:
            return False
        return True

    def _ask_console(self, instance: Instance, first: str) -> None:
        """Raises ProviderError when the console shows another key than the one that was given."""
        printed = host_keys_on(console(self.account, instance.id))
        if printed and first not in printed:
            raise ProviderError(
                f"{instance.node}: the console of {instance.id} shows another host key than it was "
                f"given; its image may ignore user data. `clusterctl up --replace {instance.node}` makes "
                "it anew"
            )

    def _last_words(self, instance: Instance) -> str:
        lines = [line for line in console(self.account, instance.id).splitlines() if line.strip()]
        said = " / ".join(line.strip()[:80] for line in lines[-2:]) or "nothing yet"
        return f"its console says: {said}; `clusterctl up --replace {instance.node}` makes it anew"

    def _address(self, instance: Instance) -> str:
        if instance.address is None:
            raise ProviderError(f"{instance.node}: {instance.id} has no address")
        return instance.address


def console(account: Account, instance: str) -> str:
    """What the console shows; "" when nothing has come yet, or it may not be read.

    botocore has decoded it already. Latest needs a Nitro instance, as all with AMX are.
    """
    try:
        return str(account.ec2("get_console_output", InstanceId=instance, Latest=True).get("Output") or "")
    except AwsError:
        return ""


def host_keys_on(text: str) -> frozenset[str]:
    """ed25519 host keys that cloud-init printed on a console, without comments.

    >>> host_keys_on("-----BEGIN SSH HOST KEY KEYS-----\\nssh-ed25519 AAA root@x\\n-----END ...")
    frozenset({'ssh-ed25519 AAA'})
    """
    block = re.search(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END", text, re.S)
    return frozenset(re.findall(r"ssh-ed25519 [A-Za-z0-9+/=]+", block[1])) if block else frozenset()


def ended(instance: Instance) -> str:
    """What became of an instance that should run, in words."""
    if instance.state == "pending":
        return f"{instance.id} is still starting; run `clusterctl up` again"
    why = f": {instance.why}" if instance.why else ""
    return f"{instance.id} is {instance.state}{why}; run `clusterctl up` again to have it replaced"


def each(
    work: Callable[[Instance], Node], instances: Sequence[Instance]
) -> dict[str, Node | ClusterctlError]:
    """The work done for all instances at once; a failure is kept as its result, by node."""

    def attempt(instance: Instance) -> Node | ClusterctlError:
        try:
            return work(instance)
        except ClusterctlError as error:
            return error

    with ThreadPoolExecutor(max(1, min(64, len(instances)))) as pool:
        return dict(zip((i.node for i in instances), pool.map(attempt, instances), strict=True))

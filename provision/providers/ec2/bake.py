"""An image of the head with its stack, so that other nodes start with everything installed.

What is the cluster's own is taken out first: the mesh key, the managed blocks with its nodes' names and keys,
its runs. An instance that starts from the image gets host keys and names of its own (cloud-init), and only
its own cluster's key opens it (`contact`).
"""

from __future__ import annotations

import time

from provision.banner import wait_for_banner
from provision.errors import ProviderError
from provision.facts import MESH_KEY
from provision.host import SshHost
from provision.model import Cluster
from provision.providers import Progress
from provision.providers.ec2 import images, tags
from provision.providers.ec2.account import Account

# Snapshots of a few GB of changes take minutes.
IMAGE_TIMEOUT_S = 3600.0
POLL_S = 5.0
REBOOT_TIMEOUT_S = 600.0

_CLEAN = """
set -eu
home=$(getent passwd %s | cut -d: -f6)
rm -rf "$home/%s" "$home/%s.pub" "$home/hosts" "$home/.clusterctl"
for file in /etc/hosts "$home/.ssh/authorized_keys" "$home/.ssh/known_hosts" "$home/.ssh/config"; do
    [ ! -e "$file" ] || sed -i '/^# >>> clusterctl /,/^# <<< clusterctl /d' "$file"
done
[ ! -d /run/systemd/system ] || : > /etc/machine-id
sync
"""


def bake(account: Account, cluster: Cluster, stack: str, progress: Progress) -> str:
    """Name of the new image. Raises ProviderError when EC2 gives it up, or the head does not come back."""
    head = cluster.head
    progress(head.name, "cleaning for the image")
    with SshHost(head) as host:
        host.run(_CLEAN, head.user, MESH_KEY, MESH_KEY, sudo=True)
    name = f"clusterctl-{stack}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    labels = {
        "Name": name,
        tags.CLUSTER: cluster.name,
        tags.STACK: stack,
        tags.MADE_AT: tags.moment(time.time()),
        tags.OWNER: account.owner(),
    }
    image = images.make(account, head.provider_id or "", name, labels)
    progress(head.name, f"imaging as {image}")
    _wait_until_available(account, image)
    if not wait_for_banner(head.address, REBOOT_TIMEOUT_S):
        raise ProviderError(
            f"{head.name} did not come back after its image was made; run `clusterctl up` again"
        )
    return name


def _wait_until_available(account: Account, image: str) -> None:
    deadline = time.monotonic() + IMAGE_TIMEOUT_S
    while (state := images.state_of(account, image)) != "available":
        if state not in ("pending", "unknown") or time.monotonic() > deadline:
            raise ProviderError(f"image {image} is {state}; `clusterctl images --prune --keep 0` removes it")
        time.sleep(POLL_S)

"""Real podman in local nodes: what such a node lacks for it, an image, and the launcher's settings.

Podman is used as the launcher does by default: without root, so that the user inside is the one outside.
The image has no files of its own but folders and links; /usr and the stack are mounted from the node.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from provision.facts import STACKS
from tests.command import STACK, Command

CONF = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
[containers]
cgroups = "no-conmon"
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
"""
"""For sandboxes that may not raise a limit, and that have cgroups of both versions, which crun refuses."""
IMAGE = "localhost/train:1"
VOLUMES = {"/usr": "/usr:ro", STACKS: f"{STACKS}:ro"}
SETTINGS = tuple(
    part
    for setting in (
        *(f"image={IMAGE}", "engine=podman", "shm_gib=0.25"),
        "lock_memory=false",  # nobody may lift that limit in a sandbox
        *(f"volumes.{here}={there}" for here, there in VOLUMES.items()),
    )
    for part in ("--set", setting)
)
# A local node shows no cgroups, and of /proc a part is read-only: the kernel then lets nobody but root mount
# another. What is mounted here has to be seen by podman's own mount namespace too.
_PREPARE = f"""
set -e
mkdir -p /etc/containers /srv/proc /run/user/$SUDO_UID
cat > /etc/containers/containers.conf <<'END'
{CONF}END
mount --make-shared /
mount -t proc -o nosuid,nodev,noexec proc /srv/proc
controllers=$(awk 'NR > 1 && $2 > 0 {{ print $1 }}' /proc/cgroups)
if [ -z "$controllers" ]; then
    mount -t cgroup2 cgroup /sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 cgroups /sys/fs/cgroup
    for name in $controllers; do
        mkdir /sys/fs/cgroup/$name; mount -t cgroup -o $name $name /sys/fs/cgroup/$name
    done
fi
echo "$SUDO_USER:100000:65536" | tee /etc/subuid > /etc/subgid
chown $SUDO_UID /run/user/$SUDO_UID
"""
_IMPORT = f"""
set -e
cd $(mktemp -d); chmod 755 .
mkdir -p usr opt tmp proc sys dev run home etc root; chmod 1777 tmp
for name in bin sbin lib lib64 lib32 libx32; do if [ -L /$name ]; then cp -P /$name .; fi; done
cp /etc/passwd /etc/group etc
tar -c . | podman import -c 'ENV PATH={STACK.path}/bin:/usr/bin:/bin' -c 'ENV HOME=/tmp' - {IMAGE}
podman run --rm --network host --userns=keep-id --volume /usr:/usr:ro {IMAGE} true
"""


def problem_here() -> str | None:
    """Why no node of this machine could run podman; None when one may be able to."""
    if os.geteuid() != 0:
        return "local nodes need root"
    missing = [tool for tool in ("podman", "runc", "newuidmap") if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}: apt-get install podman runc uidmap" if missing else None


def prepare(command: Command, nodes: Sequence[str]) -> str | None:
    """Make the nodes run containers and give them the image; why one cannot, as it said itself."""
    for node in nodes:
        command.on(node, f"sudo sh -s <<'SCRIPT'\n{_PREPARE}SCRIPT")
        said = command.on(node, f"({_IMPORT}) 2>&1 && echo && echo runs || true")
        if said.splitlines()[-1] != "runs":
            return f"podman cannot start a container in {node}: {said.strip().splitlines()[-1][:200]}"
    return None


def forget_image(command: Command, node: str) -> None:
    command.on(node, f"podman rmi {IMAGE}")


def containers(command: Command, nodes: Sequence[str]) -> list[str]:
    """Names of all that are there, running or not."""
    found = [command.on(node, "podman ps --all --format '{{.Names}}'") for node in nodes]
    return "".join(found).split()

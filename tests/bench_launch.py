"""How long until all ranks run? `clusterctl train` beside the launcher's own command typed by hand.

The same script on the same local nodes, in turn; the time is from the command to the last rank's first line.
By hand the script lies on the nodes already, and is started over one ssh session (mpirun), or one a node
(torchrun; the same in a container a node, where podman runs: `docker`).

    make bench
    .venv/bin/python -m tests.bench_launch --nodes 4 --laps 3
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from provision.model import Node
from provision.state import ClusterState
from tests.command import STACK, Command, built_stack
from tests.podman_nodes import IMAGE, SETTINGS, VOLUMES, prepare, problem_here

SCRIPT = 'import os; print("started", os.environ.get("RANK", os.environ.get("PMI_RANK")), flush=True)\n'


IN_CONTAINER = (
    "podman run --rm --init --userns=keep-id --network host --shm-size 256m --volume $HOME:$HOME "
    + shlex.join(part for pair in VOLUMES.items() for part in ("--volume", ":".join(pair)))
    + f" {IMAGE}"
)


def until_started(processes: list[subprocess.Popen[str]], ranks: int) -> None:
    """Until as many lines say so, in all. Raises RuntimeError when the output ends before."""
    for process in processes:
        assert process.stdout is not None
        wanted = ranks // len(processes)
        while wanted:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"it ended before {wanted} ranks had started")
            wanted -= "started" in line


def by_hand(command: Command, nodes: list[Node], launcher: str) -> list[subprocess.Popen[str]]:
    head = nodes[0].mesh_address
    ssh = ["ssh", "-F", str(command.state / "ssh_config"), "-o", "BatchMode=yes"]
    path = f"PATH={STACK.path}/bin:$PATH"
    if launcher == "mpirun":
        line = f"{path} I_MPI_HYDRA_BOOTSTRAP=ssh mpirun -f ~/hosts -n {len(nodes)} -ppn 1 python ~/hello.py"
        lines = {nodes[0].name: line}
    else:
        torchrun = (
            f"python -m torch.distributed.run --nnodes {len(nodes)} --nproc-per-node 1 --rdzv-id x "
            f"--rdzv-backend c10d --rdzv-endpoint {head}:29511"
        )
        torchrun = f"{IN_CONTAINER} {torchrun}" if launcher == "docker" else f"{path} {torchrun}"
        lines = {
            node.name: f"{torchrun} --rdzv-conf is_host={str(node is nodes[0]).lower()} "
            f"--local-addr {node.mesh_address} $HOME/hello.py"
            for node in nodes
        }
    return [_piped([*ssh, name, line], command) for name, line in lines.items()]


def ours(command: Command, script: Path, launcher: str) -> list[subprocess.Popen[str]]:
    settings = SETTINGS if launcher == "docker" else ()
    return [command.start("train", str(script), "--launcher", launcher, *settings)]


def _piped(argv: list[str], command: Command) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=command.environment
    )


def timed(start: Callable[[], list[subprocess.Popen[str]]], ranks: int) -> float:
    began_s = time.monotonic()
    processes = start()
    until_started(processes, ranks)
    taken_s = time.monotonic() - began_s
    for process in processes:
        process.communicate(timeout=120)
    return taken_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--laps", type=int, default=3)
    options = parser.parse_args()
    built_stack()
    with tempfile.TemporaryDirectory() as folder:
        command = Command(f"bench-launch-{os.getpid()}", Path(folder))
        script = Path(folder) / "project" / "hello.py"
        script.parent.mkdir()
        script.write_text(SCRIPT)
        try:
            command.ok("up", "--nodes", str(options.nodes))
            report(command, script, options)
        finally:
            command("down", "--yes")


def report(command: Command, script: Path, options: argparse.Namespace) -> None:
    os.environ["XDG_STATE_HOME"] = command.environment["XDG_STATE_HOME"]
    cluster = ClusterState(command.name).load()
    assert cluster is not None
    nodes = list(cluster.nodes)
    for node in nodes:
        command.on(node.name, f"cat > ~/hello.py <<'END'\n{SCRIPT}END")
    problem = problem_here() or prepare(command, [node.name for node in nodes])
    if problem:
        print(f"without containers: {problem}")
    for launcher in ("mpirun", "torchrun", *([] if problem else ["docker"])):
        hand, our = [], []
        for _ in range(options.laps):
            hand.append(timed(lambda name=launcher: by_hand(command, nodes, name), len(nodes)))
            our.append(timed(lambda name=launcher: ours(command, script, name), len(nodes)))
        more = [mine - theirs for mine, theirs in zip(our, hand, strict=True)]
        print(
            f"{launcher:<9} {len(nodes)} nodes: by hand {statistics.median(hand):.2f} s, "
            f"clusterctl {statistics.median(our):.2f} s, {statistics.median(more):+.2f} s "
            f"({min(more):+.2f} to {max(more):+.2f})"
        )


if __name__ == "__main__":
    main()

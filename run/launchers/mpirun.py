"""Plan a run under Intel MPI's mpirun over the ssh mesh. Pure.

What hydra (impi-rt 2021.18) does, measured, and what follows from it:

1. It finds its own files from PATH alone; I_MPI_ROOT and LD_LIBRARY_PATH are for programs that link MPI.
2. Over ssh it hands mpirun's whole environment and its working folder to every rank; where the folder is
   missing there it goes on in another one without a word. So all paths here are absolute.
3. `-f` ignores counts (of "node1:1, node2:2" and 3 ranks, node1 got 2): uneven nodes need `-machinefile`.
4. It pins ranks even where nothing calls MPI_Init: I_MPI_PIN=off leaves that to rank.py.
5. Workers call back to the head's host name, which they may not resolve: `-iface` makes it an address.
6. It takes note of a rank that failed only once all ranks on that node have ended, and ends the others then:
   run/watch.py must see failures in rank.py's events, and end the run.
7. A node that dies silently is noticed by ssh's keep-alive only, hence ServerAlive*.
8. It has one command for all nodes, or one for each (`:`), which different home folders need.
9. Killed while it starts, it leaves a hydra_pmi_proxy on a node that computes for ever, and knows nothing of
   the environment that ranks are given. With SSH in the place of ssh each proxy is born with the run's id, by
   which the sweep finds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from run.job import RUNS_FOLDER, LaunchPlan
from run.launchers.common import SSH_OPTIONS, SYSTEM_PATH, Ground, plan_json, run_files

SSH = "ssh.sh"
_SSH = """#!/bin/sh
# As mpirun calls ssh: its options, none with a value, a node, and what to run there.
options=
while [ "${{1#-}}" != "$1" ]; do options="$options $1"; shift; done
node=$1
shift
exec ssh $options {options} "$node" env CLUSTERCTL_RUN_ID={run_id} "$@"
"""


def plan(ground: Ground) -> LaunchPlan:
    """The plan for the nodes that take part. Raises SettingsError when the head is none of them."""
    job, nodes = ground.job, ground.nodes
    hosts_argv, hostfile = _hosts(ground)
    command = (ground.python, f"{RUNS_FOLDER}/{job.run_id}/rank.py", *ground.command)
    everywhere = (
        *("-iface", ground.facts[nodes[0]].interface),
        *(part for name, value in ground.rank_environment.items() for part in ("-genv", name, value)),
    )
    if len({ground.facts[node].home for node in nodes}) == 1:
        placed = (*hosts_argv, *everywhere, *command)
    else:
        placed, hostfile = (*everywhere, *_by_node(ground, command)), {}
    argv = (f"{ground.stack_dir}/bin/mpirun", *placed)
    environment = _launcher_environment(ground.stack_dir)
    launcher = {"argv": argv, "environment": environment}
    ssh = _SSH.format(options=" ".join(SSH_OPTIONS), run_id=job.run_id)
    files = {**hostfile, SSH: ssh, "plan.json": plan_json(ground, launcher)}
    return LaunchPlan(
        job.run_id, nodes, ground.ranks, argv, environment, ground.python, files, run_files(job),
        job.head_uploads,
    )  # fmt: skip


def _hosts(ground: Ground) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """mpirun's arguments for where the ranks go, and the hostfile they need beside ~/hosts."""
    nodes = ground.nodes
    counts = [ground.layouts[node].ppn for node in nodes]
    total = ("-n", str(sum(counts)))
    if len(nodes) == len(ground.cluster.nodes) and len(set(counts)) == 1:
        return ("-f", "~/hosts", *total, "-ppn", str(counts[0])), {}
    text = "".join(f"{node}:{count}\n" for node, count in zip(nodes, counts, strict=True))
    return ("-machinefile", "hostfile", *total), {"hostfile": text}


def _by_node(ground: Ground, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command for each node, in its own home folder and as its own user."""
    parts: list[str] = []
    for node in ground.nodes:
        home, user = ground.facts[node].home, ground.cluster.node(node).user
        own = ("-env", "HOME", home, "-env", "USER", user, "-env", "LOGNAME", user)
        words = (f"{home}{word[1:]}" if word.startswith("~/") else word for word in command)
        parts += (":", "-host", node, "-n", str(ground.layouts[node].ppn), *own, *words)
    return tuple(parts[1:])


def _launcher_environment(stack_dir: str) -> dict[str, str]:
    return {
        "PATH": f"{stack_dir}/bin:{SYSTEM_PATH}",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": f"./{SSH}",
        "I_MPI_PIN": "off",
    }

"""Plan a run under torchrun: one agent a node, started over the ssh mesh, which meet at the head. Pure.

What torch's agents do (torch 2.13, torch/distributed/elastic), and what follows from it:

1. c10d's rendezvous gives ranks in the order of the agents' addresses as texts (10.0.0.10 before 10.0.0.2)
   and anew after each restart: so a rank is known by its place on its node. Rank 0 must be on the head, where
   what it wrote is fetched: the head's address is written so that it is the first (`first_of`).
2. An agent decides by its host name whether it is the one that holds the store; `is_host` tells it.
3. Without --local-addr a worker is given the head's host name, which may be 127.0.1.1 there.
4. The ranks share the agents' store, where a restart finds what the last attempt left, under a number of the
   attempt that agents count each for themselves; TORCH_DISABLE_SHARE_RDZV_TCP_STORE gives each a new one.
5. Agents of a node that is gone are missed after 15 s (keep-alive 5 s x 3); the others then go on if they are
   still as many as the least number asked for.
6. It sets OMP_NUM_THREADS to 1; rank.py, which it starts, sets each rank's own.
7. It ends at a script's argument that abbreviates several options of its own (--log, --node), unless all
   that is the script's comes after `--`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.errors import SettingsError
from run.job import LaunchPlan
from run.launchers.common import SSH_OPTIONS, SYSTEM_PATH, Ground, plan_json, run_files

OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
AGENTS = Path(__file__).parents[1] / "agents.py"


@dataclass(frozen=True)
class Elastic:
    """`restarts`: how often all ranks begin anew after one was lost. `least_nodes`: with how many nodes a run
    goes on, all of them where None.
    """

    restarts: int = 0
    least_nodes: int | None = None

    def least(self, most: int) -> int:
        """Raises SettingsError when that is no range."""
        least = most if self.least_nodes is None else self.least_nodes
        if not 1 <= least <= most:
            raise SettingsError(f"{least}:{most} nodes is no range; give the smaller number first")
        return least


AgentCommand = Callable[[int, str], tuple[str, ...]]
"""(number of the node, its name) -> what starts its agent, in its run folder."""


def plan(ground: Ground, elastic: Elastic = Elastic()) -> LaunchPlan:
    """The plan for the nodes that take part. Raises SettingsError when the head is none of them."""
    environment = {
        "PATH": f"{ground.stack_dir}/bin:{SYSTEM_PATH}",
        **OWN_STORE,
        **ground.rank_environment,
    }
    return plan_agents(
        ground,
        elastic,
        lambda number, node: torchrun_argv(ground, elastic, node, ground.python),
        name="torchrun",
        environment=environment,
    )


def plan_agents(
    ground: Ground,
    elastic: Elastic,
    start: AgentCommand,
    *,
    name: str,
    environment: Mapping[str, str],
    cleanup: Mapping[str, tuple[str, ...]] | None = None,
) -> LaunchPlan:
    """A plan in which agents.py starts one command a node.

    `cleanup` is run on a node after its agent, whatever came of that. Raises SettingsError as plan() does.
    """
    job, nodes = ground.job, ground.nodes
    argv = (ground.python, "agents.py")
    launcher = {
        "argv": argv,
        "environment": environment,
        "python": ground.python,
        "ssh": ("ssh", *SSH_OPTIONS),
        "least": elastic.least(len(nodes)),
        "agents": {node: start(number, node) for number, node in enumerate(nodes)},
        **({"cleanup": cleanup} if cleanup else {}),
    }
    files = {"plan.json": plan_json(ground, launcher, renumbers=True)}
    # A checkpoint to go on from is rank 0's to have, and that may be anywhere.
    uploads = {**run_files(job), "agents.py": AGENTS, **job.head_uploads}
    return LaunchPlan(
        job.run_id, nodes, ground.ranks, argv, environment, ground.python, files, uploads,
        launcher=name, restarts=elastic.restarts,
    )  # fmt: skip


def _local_address(ground: Ground, node: str) -> str:
    head, *others = (ground.cluster.node(each).mesh_address for each in ground.nodes)
    return first_of(head, others) if node == ground.nodes[0] else ground.cluster.node(node).mesh_address


def first_of(address: str, others: Sequence[str]) -> str:
    """An IPv4 address in a form that sorts before the others as text, and means the same to every C library.

    A name, or IPv6, is left as it is.

    >>> first_of("10.0.0.9", ["10.0.0.10"]), first_of("10.0.0.1", ["10.0.0.2"])
    ('0x0a.0.0.9', '10.0.0.1')
    """
    number, dot, rest = address.partition(".")
    if not number.isdigit() or all(address < other for other in others):
        return address
    return f"{int(number):#04x}{dot}{rest}"


def torchrun_argv(ground: Ground, elastic: Elastic, node: str, python: str) -> tuple[str, ...]:
    """The command of one node's agent."""
    head, most = ground.cluster.head, len(ground.nodes)
    is_host = str(node == head.name).lower()
    limit_s = f"{ground.job.rendezvous_timeout_s:.0f}"
    return (
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", f"{elastic.least(most)}:{most}"),
        *("--nproc-per-node", str(ground.layouts[node].ppn), "--max-restarts", str(elastic.restarts)),
        *("--rdzv-id", ground.job.run_id, "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"{head.mesh_address}:{ground.master_port}"),
        *("--rdzv-conf", f"is_host={is_host},join_timeout={limit_s},read_timeout={limit_s}"),
        *("--local-addr", _local_address(ground, node), "--monitor-interval", "0.2"),
        *("--", "rank.py", "--node", node, *ground.command),
    )

"""Ten things that a person may want of a node. Beside it: the same for pyinfra and for Ansible."""

from provision.steps import Absent, AptPackages, Block, Directory, Line, Symlink, TextFile

NAME = "ten"
PEERS = tuple(f"10.9.8.{number} peer{number}" for number in range(1, 9))
LIMITS = "# bench\n*  -  nofile  65536\n*  -  nproc  4096\n"


def steps(node, cluster, facts):
    return (
        AptPackages(("openssh-client", "python3")),
        Directory("/etc/bench", mode="755"),
        Directory("/srv/bench", mode="750"),
        TextFile("/etc/bench/node.conf", f"# bench\nname = {node.name}\naddress = {node.address}\n"),
        TextFile("/etc/security/limits.d/60-bench.conf", LIMITS),
        TextFile("/etc/sysctl.d/60-bench.conf", "# bench\nvm.swappiness = 10\n", mode="600"),
        Line("/etc/environment", "BENCH=on", match="^BENCH="),
        Block("/etc/hosts", "bench", PEERS),
        Symlink("/etc/bench/current.conf", "/etc/bench/node.conf"),
        Absent("/etc/bench-before"),
    )

"""Ten things, as in clusterctl_ten.py, in pyinfra's own operations."""

from io import StringIO

from pyinfra import host
from pyinfra.operations import apt, files

PEERS = "\n".join(f"10.9.8.{number} peer{number}" for number in range(1, 9))
BEGIN, END = "# >>> clusterctl bench >>> managed, do not edit", "# <<< clusterctl bench <<<"
NODE = f"# bench\nname = {host.name}\naddress = {host.data.ssh_hostname}\n"
LIMITS = "# bench\n*  -  nofile  65536\n*  -  nproc  4096\n"

apt.packages(packages=["openssh-client", "python3"], _sudo=True)
files.directory(path="/etc/bench", user="root", mode="755", _sudo=True)
files.directory(path="/srv/bench", user="root", mode="750", _sudo=True)
files.put(src=StringIO(NODE), dest="/etc/bench/node.conf", user="root", mode="644", _sudo=True)
files.put(
    src=StringIO(LIMITS), dest="/etc/security/limits.d/60-bench.conf", user="root", mode="644", _sudo=True
)
files.put(
    src=StringIO("# bench\nvm.swappiness = 10\n"),
    dest="/etc/sysctl.d/60-bench.conf",
    user="root",
    mode="600",
    _sudo=True,
)
files.line(path="/etc/environment", line="^BENCH=.*$", replace="BENCH=on", _sudo=True)
files.block(
    path="/etc/hosts", content=PEERS, marker="{mark}", begin=BEGIN, end=END, try_prevent_shell_expansion=True,
    _sudo=True,
)  # fmt: skip
files.link(path="/etc/bench/current.conf", target="/etc/bench/node.conf", _sudo=True)
files.file(path="/etc/bench-before", present=False, _sudo=True)

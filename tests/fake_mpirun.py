"""Stands for mpirun in tests: starts each rank's rank.py in its node's home, as the plan beside it says.

Behaves as hydra was measured to: waits for all ranks, hands SIGTERM on, takes the ranks along when killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

AS_ON = """
import runpy, socket, sys
hostname = sys.argv.pop(1)
socket.gethostname = lambda: hostname
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A script on a machine of another host name."""


def die_with_parent() -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(argv: list[str]) -> int:
    genv = {argv[i + 1]: argv[i + 2] for i, arg in enumerate(argv) if arg == "-genv"}
    start = next(i for i, arg in enumerate(argv) if arg.endswith("/rank.py"))
    if "FAKE_SAYS" in genv:
        print(genv["FAKE_SAYS"], flush=True)
        return 255
    ranks = json.loads(Path("plan.json").read_text())["ranks"]
    homes, hostnames = json.loads(genv["FAKE_HOMES"]), json.loads(genv["FAKE_HOSTNAMES"])
    started = []
    for place in ranks:
        if str(place["rank"]) == genv.get("FAKE_SKIP"):
            continue
        script = argv[start].replace(homes[ranks[0]["node"]], homes[place["node"]])
        environment = {
            **os.environ,
            **genv,
            "PMI_RANK": str(place["rank"]),
            "PMI_SIZE": str(len(ranks)),
            "MPI_LOCALRANKID": str(place["local_rank"]),
            "CLUSTERCTL_NOTICE": f"{genv['CLUSTERCTL_NOTICE']}-{place['node']}",
        }
        command = [sys.executable, "-c", AS_ON, hostnames[place["node"]], script, *argv[start + 1 :]]
        started.append(subprocess.Popen(command, env=environment, preexec_fn=die_with_parent))

    def hand_on(number: int, _frame: object) -> None:
        for rank in started:
            rank.send_signal(number)

    signal.signal(signal.SIGTERM, hand_on)
    return max((abs(rank.wait()) for rank in started), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

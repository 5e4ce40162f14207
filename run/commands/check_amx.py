"""check-amx: climb the AMX ladder on every node at once; the exit code tells whether all could."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from provision.amx import ladder_script
from provision.amx.verdict import LIBRARY, SPEED, Ladder, judge, parse_ladder
from provision.errors import ClusterctlError, FactError, HostError, SettingsError
from provision.host import Host
from provision.model import Cluster
from provision.stacks import stack_of
from provision.step import run_on_hosts
from run.commands.amx_ab import compare
from run.commands.amx_report import Found, print_found, to_json
from run.commands.common import open_hosts, print_json, standing_cluster

WATCH_S = 5.0
_RUNG_LIMIT_S = 30.0
_LIBRARY_LIMIT_S = 240.0


@dataclass(frozen=True)
class CheckOptions:
    """`rung`: how far to climb; None is 6 where a node gets that far. `speed` is rung 7."""

    name: str | None = None
    as_json: bool = False
    rung: int | None = None
    speed: bool = False
    watch: bool = False
    ab: bool = False

    @property
    def last(self) -> int:
        return SPEED if self.speed else self.rung or LIBRARY

    @property
    def beyond(self) -> bool:
        """Who asks for the library or for speed gets them from any node, with AMX or without."""
        return self.speed or (self.rung or 0) >= LIBRARY


def check_amx(options: CheckOptions) -> int:
    """Returns the exit code: 0 when no node has a problem as far as was climbed, else 1."""
    if options.ab:
        if options.rung or options.speed or options.watch:
            raise SettingsError("--ab is a measurement of its own: leave out --rung, --speed and --watch")
        return compare(options.name, as_json=options.as_json)
    _, cluster = standing_cluster(options.name)
    script = ladder_script(options.last, stack_of(cluster).path, beyond=options.beyond)
    with open_hosts(cluster) as hosts:
        found = climb(hosts, script, options.last)
        _tell(options, cluster, found)
        with contextlib.suppress(KeyboardInterrupt):
            while options.watch:
                time.sleep(WATCH_S)
                found = climb(hosts, script, options.last)
                _tell(options, cluster, found)
    return found.exit_code


def climb(hosts: Sequence[Host], script: str, last: int) -> Found:
    """One exec on every node, all at once."""
    limit_s = _RUNG_LIMIT_S if last < LIBRARY else _LIBRARY_LIMIT_S

    def one(host: Host) -> Ladder:
        # 1, 126, 127: a Python that fails or is not there, which parse_ladder() tells.
        text = host.run(script, expect=(0, 1, 126, 127), timeout_s=limit_s).output
        try:
            return parse_ladder(text)
        except FactError as error:
            raise HostError(host.node.name, str(error)) from None

    seen = run_on_hosts(hosts, one)
    ladders = {name: each for name, each in seen.items() if isinstance(each, Ladder)}
    return Found(
        ladders,
        {name: problem for name, each in ladders.items() if (problem := judge(each))},
        {name: each for name, each in seen.items() if isinstance(each, ClusterctlError)},
    )


def _tell(options: CheckOptions, cluster: Cluster, found: Found) -> None:
    if options.as_json:
        print_json(to_json(found))
        return
    if options.watch:
        again = "\033[2J\033[H" if sys.stdout.isatty() else ""
        print(f"{again}{time.strftime('%H:%M:%S')}, again every {WATCH_S:.0f} s until Ctrl-C")
    print_found(cluster, found, options.last)
    sys.stdout.flush()

"""Tell a node that its end is near, and end it when its time is over. Self-contained: needs Python 3.8.

    node_watch.py            runs on an EC2 node as root, from boot on, and never ends by itself

It keeps /run/clusterctl/notice, one JSON object {"reason": ..., "ends_at": seconds since 1970}, written
beside and renamed; while there is nothing to tell the file is absent. Two things are told:

1. A spot interruption. EC2 announces it two minutes ahead as the item spot/instance-action of the instance's
   metadata, {"action": "terminate", "time": "2026-11-21T14:03:10Z"}, which answers 404 until then; looking
   every 5 s is AWS's advice
   (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html).
   IMDSv2 wants a token with each question: PUT /latest/api/token, good for 6 hours at most
   (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html).
2. The end of the cluster's time to live, from LEAD_S before. /etc/clusterctl/ends-at holds it in seconds
   since 1970 and may be rewritten at any time; absent or empty means no end. When it has come the machine is
   powered off, whether or not anybody's laptop is awake: the instance's shutdown behaviour is "terminate".

A notice is withdrawn when what it tells no longer holds. No answer of the metadata service changes nothing.
"""

from __future__ import annotations

import argparse
import calendar
import contextlib
import ctypes
import http.client
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

NOTICE = "run/clusterctl/notice"
ENDS_AT = "etc/clusterctl/ends-at"
IMDS = "http://169.254.169.254"
POLL_S = 5.0
LEAD_S = 120.0  # as early as EC2 tells of an interruption
ANSWER_S = 2.0  # the service is on the same host; elsewhere nobody listens
TOKEN_S = 21600
AGAIN_S = 30.0  # a machine that was told to power off and still runs is told again
SPOT = "spot interruption"
TIME_IS_OVER = "time to live is over"
RB_POWER_OFF = 0x4321FEDC  # linux/reboot.h


@dataclass(frozen=True)
class Notice:
    """Why and when, in seconds since 1970, this node will end."""

    reason: str
    ends_at: float


def due(spot: Notice | None, ends_at: float | None, now_s: float) -> Notice | None:
    """What is to be told now: of an interruption and the end of the time to live the earlier one.

    >>> due(None, 1000.0, 881.0)
    Notice(reason='time to live is over', ends_at=1000.0)
    >>> due(None, 1000.0, 879.0)
    """
    over = Notice(TIME_IS_OVER, ends_at) if ends_at is not None and now_s >= ends_at - LEAD_S else None
    return min(filter(None, (spot, over)), key=lambda notice: notice.ends_at, default=None)


def parse_action(text: str) -> Notice:
    """The notice in spot/instance-action. Raises ValueError for anything else."""
    try:
        told = json.loads(text)["time"]
        return Notice(SPOT, float(calendar.timegm(time.strptime(told, "%Y-%m-%dT%H:%M:%SZ"))))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no time in {text[:80]!r}") from error


def parse_ends_at(text: str) -> float | None:
    """Seconds since 1970, None for nothing. Raises ValueError for anything else.

    >>> parse_ends_at(" 1795269790.5\\n")
    1795269790.5
    """
    if not text.strip():
        return None
    ends_at = float(text)
    if not math.isfinite(ends_at) or ends_at <= 0:
        raise ValueError(f"no time: {text!r}")
    return ends_at


class Metadata:
    """The instance metadata service, version 2."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._token, self._renew_s = "", -math.inf

    def spot_notice(self) -> Notice | None:
        """The interruption that EC2 has announced, None when it says that there is none.

        Raises OSError or ValueError when the service gives no such answer.
        """
        if time.monotonic() >= self._renew_s:
            self._take_token()
        headers = {"X-aws-ec2-metadata-token": self._token}
        status, text = self._ask("GET", "/latest/meta-data/spot/instance-action", headers)
        if status == 404:
            return None
        if status != 200:
            self._renew_s = -math.inf  # 401: the token is not good any more
            raise OSError(f"the metadata service answered {status}")
        return parse_action(text)

    def _take_token(self) -> None:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
        status, text = self._ask("PUT", "/latest/api/token", headers)
        if status != 200:
            raise OSError(f"the metadata service gave no token: {status}")
        self._token, self._renew_s = text.strip(), time.monotonic() + TOKEN_S / 2

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._address, timeout=ANSWER_S)  # knows no proxies
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(65536).decode(errors="replace")
        except http.client.HTTPException as error:
            raise OSError(f"the metadata service answered {type(error).__name__}") from error
        finally:
            connection.close()


class Watcher:
    """Looks, tells and ends. `root` is the folder that stands for /."""

    def __init__(self, root: Path, metadata: Metadata, power_off: Callable[[], None]) -> None:
        self._notice, self._ends_at = root / NOTICE, root / ENDS_AT
        self._metadata, self._power_off = metadata, power_off
        self._power_off_s = -math.inf
        self._complained = ""
        self._told = read_notice(self._notice)  # by this script before it was started again
        self._spot = self._told if self._told and self._told.reason == SPOT else None

    def look(self, now_s: float) -> None:
        """Once; `now_s` is in seconds since 1970."""
        with contextlib.suppress(OSError, ValueError):
            self._spot = self._metadata.spot_notice()
        ends_at = self._read_ends_at()
        self._tell(due(self._spot, ends_at, now_s))
        if ends_at is not None and now_s >= ends_at and now_s >= self._power_off_s + AGAIN_S:
            self._power_off_s = now_s
            self._power_off()

    def _read_ends_at(self) -> float | None:
        try:
            text = self._ends_at.read_text(errors="replace")
            return parse_ends_at(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if str(error) != self._complained:
                self._complained = str(error)
                print(f"{self._ends_at}: {error}; no end is kept", file=sys.stderr, flush=True)
            return None

    def _tell(self, notice: Notice | None) -> None:
        if notice == self._told:
            return
        if notice is None:
            self._notice.unlink(missing_ok=True)
            print("the notice is withdrawn", file=sys.stderr, flush=True)
        else:
            write_notice(self._notice, notice)
            print(f"{notice.reason} at {notice.ends_at:.0f}", file=sys.stderr, flush=True)
        self._told = notice


def read_notice(path: Path) -> Notice | None:
    """The notice in the file, None when there is none."""
    try:
        told = json.loads(path.read_text())
        return Notice(str(told["reason"]), float(told["ends_at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_notice(path: Path, notice: Notice) -> None:
    """Whole or not at all, for everybody to read."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    aside = path.with_name(".notice.new")
    aside.write_text(json.dumps(asdict(notice)) + "\n")
    aside.chmod(0o644)
    aside.replace(path)


def power_off() -> None:
    """Through systemd where it runs, which stops what it started; else at once."""
    if Path("/run/systemd/system").is_dir():
        subprocess.run(["systemctl", "poweroff"], check=False)
    else:
        os.sync()
        ctypes.CDLL(None).reboot(RB_POWER_OFF)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="node_watch.py", description="Tell this node of its end.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="the folder that stands for /")
    parser.add_argument("--imds", default=IMDS, help="where the metadata service is")
    parser.add_argument("--poll", type=float, default=POLL_S, help="seconds between two looks")
    given = parser.parse_args(argv)
    watcher = Watcher(given.root, Metadata(given.imds), power_off)
    while True:
        try:
            watcher.look(time.time())
        except OSError as error:  # a full disk, say: the next look may do better
            print(f"node_watch: {error}", file=sys.stderr, flush=True)
        time.sleep(given.poll)


if __name__ == "__main__":
    main(sys.argv[1:])

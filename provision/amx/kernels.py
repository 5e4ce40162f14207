"""Which kernels can run AMX programs. A hint for people: the kernel's answer to arch_prctl decides."""

from __future__ import annotations

import re
from typing import NamedTuple

# "x86-fpu-2021-11-01", merged for 5.16: the commit that adds ARCH_REQ_XCOMP_PERM is db8268df0983.
MAINLINE = (5, 16)


class Known(NamedTuple):
    """A vendor's kernel older than 5.16, by its release, and whether it is known to run AMX."""

    release: str
    works: bool
    source: str


KNOWN = (
    Known(
        r"5\.14\.0-.*\.el9",
        True,
        "RHEL 9: gitlab.com/redhat/centos-stream/src/kernel/centos-stream-9/-/merge_requests/174",
    ),
    Known(
        r"4\.18\.0-(4[2-9]\d|[5-9]\d\d)\..*el8",
        True,
        "RHEL 8.7 (4.18.0-425) on: github.com/autotest/tp-qemu/pull/3428 tests AMX in its guests",
    ),
    Known(
        r"5\.15\.\d+-.*aws",
        False,
        "Ubuntu's 5.15 for AWS answers EINVAL: github.com/firecracker-microvm/firecracker/issues/5438",
    ),
)


class KernelHint(NamedTuple):
    """Its version for people, whether it should run AMX, and why so."""

    version: str
    ok: bool
    why: str


def hint(release: str) -> KernelHint:
    """What a release says of AMX before the kernel is asked.

    >>> hint("6.8.0-1019-aws")
    KernelHint(version='6.8', ok=True, why='5.16 or newer')
    """
    major, minor = version(release)
    shown = f"{major}.{minor}"
    if (major, minor) >= MAINLINE:
        return KernelHint(shown, True, "5.16 or newer")
    for known in KNOWN:
        if re.match(known.release, release):
            return KernelHint(shown, known.works, known.source.partition(":")[0])
    return KernelHint(shown, False, "older than 5.16")


def version(release: str) -> tuple[int, int]:
    """Major and minor of `uname -r`; (0, 0) when they are not there.

    >>> version("6.8.0-1019-aws")
    (6, 8)
    """
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)

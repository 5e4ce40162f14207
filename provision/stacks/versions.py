"""Which versions go together: a table with sources, and a look that says what does not and what would.

torch, Intel's extension (IPEX) and Intel's oneCCL bindings are built for one another: with another minor
version they crash, or are not found. Package names here are as pip normalises them: "oneccl-bind-pt".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from provision.errors import SettingsError

TORCH, IPEX, CCL, TRANSFORMERS, ACCELERATE = (
    *("torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "transformers", "accelerate"),
)
Version = tuple[int, ...]

_TORCH_CCL = "https://github.com/intel/torch-ccl (README, the branches and their torch)"
_GUIDE = "https://huggingface.co/docs/transformers/v4.46.0/perf_train_cpu_many"
_OLD_GUIDE = "https://huggingface.co/docs/transformers/ja/perf_train_cpu_many"


@dataclass(frozen=True)
class Match:
    """One release of torch, the bindings built for it, and the Pythons they were built for, as far as known.

    `ccl_module` is what a program imports. IPEX of a torch has its minor version: 2.8.* for 2.8.*.
    """

    torch: str
    ccl: tuple[str, ...]
    source: str
    pythons: tuple[str, str] | None = None
    ccl_module: str = "oneccl_bindings_for_pytorch"


MATCHES = (
    Match("1.10.0", ("1.10.0",), _OLD_GUIDE, ("3.6", "3.9"), "torch_ccl"),
    Match("1.11.0", ("1.11.0",), _OLD_GUIDE, ("3.7", "3.10"), "torch_ccl"),
    Match("1.12.0", ("1.12.0",), _OLD_GUIDE, ("3.7", "3.10")),
    Match("1.12.1", ("1.12.100",), _OLD_GUIDE, ("3.7", "3.10")),  # its 1.12.0 wheel does not work
    Match("1.13.0", ("1.13.0",), _OLD_GUIDE, ("3.7", "3.10")),
    Match("2.0.1", ("2.0.100",), _TORCH_CCL),
    Match("2.1.0", ("2.1.0", "2.1.100", "2.1.200", "2.1.300", "2.1.400"), _TORCH_CCL),
    Match("2.2.0", ("2.2.0",), _TORCH_CCL),
    Match("2.3.1", ("2.3.100",), _TORCH_CCL),
    Match("2.4.0", ("2.4.0",), _GUIDE),
    Match("2.5.0", ("2.5.0",), _TORCH_CCL),
    Match("2.6.0", ("2.6.0",), _TORCH_CCL),
    Match("2.7.0", ("2.7.0",), _TORCH_CCL),
    Match("2.8.0", ("2.8.0",), _TORCH_CCL, ("3.9", "3.13")),  # Pythons: IPEX's wheels
)
FIRST, LAST = MATCHES[0], MATCHES[-1]


@dataclass(frozen=True)
class Archived:
    """A package that nobody maintains any more, its last version, and what took its place."""

    package: str
    last: str
    successor: str
    source: str

    def __str__(self) -> str:
        return f"{self.package} ended with {self.last} and is archived; {self.successor} ({self.source})"


ARCHIVED = (
    Archived(
        IPEX,
        "2.8.0",
        "torch itself has its optimisations now: stack native",
        "https://github.com/intel/intel-extension-for-pytorch/issues/867",
    ),
    Archived(
        CCL,
        "2.8.0",
        "on CPUs gloo takes its place: stack native",
        "https://github.com/intel/torch-ccl/issues/80",
    ),
)


@dataclass(frozen=True)
class Limit:
    """`package` up to `last` goes with `other` from `since` on; `why` says what is missing otherwise."""

    package: str
    last: str
    other: str
    since: str
    why: str
    source: str


LIMITS = (
    Limit(
        *(TRANSFORMERS, "4.56.2", IPEX, "0", "later ones have no --use_ipex"),
        "https://github.com/huggingface/transformers/pull/40784",
    ),
    Limit(
        *(TRANSFORMERS, "4.57.6", CCL, "0", "later ones know no backend ccl"),
        "https://github.com/huggingface/transformers/pull/42852",
    ),
    Limit(
        *(ACCELERATE, "1.7.0", IPEX, "2.7", "later ones hand no model to it"),
        "accelerate 1.8.0, accelerator.py: is_torch_version('<', '2.7.0')",
    ),
)


def read_version(text: str) -> Version:
    """
    >>> read_version("2.13.0+cpu"), read_version("1.12")
    ((2, 13, 0), (1, 12))
    """
    public = text.partition("+")[0]
    return tuple(int(part) for part in public.split(".") if part.isdigit())


def require_matched(versions: Mapping[str, str], where: str) -> None:
    """Raises SettingsError with all that does not go together, and what would."""
    problems = tuple(mismatches(versions))
    if problems:
        raise SettingsError(f"{where}: {'; '.join(problems)}")


def mismatches(versions: Mapping[str, str]) -> Iterator[str]:
    """What does not go together, each as one line with what would.

    >>> list(mismatches({"torch": "2.9.0", "intel-extension-for-pytorch": "2.8.0"}))
    ['torch 2.9.0 has no intel-extension-for-pytorch: 2.8.0 is the last, for torch 2.8.0 (stack intel)']
    >>> list(mismatches({"torch": "1.12.1", "oneccl-bind-pt": "1.12.0"}))
    ['oneccl-bind-pt 1.12.0 is not for torch 1.12.1: take 1.12.100, or torch 1.12.0']
    """
    torch = versions.get(TORCH)
    if torch is not None:
        if IPEX in versions:
            yield from _ipex_problem(torch, versions[IPEX])
        if CCL in versions:
            yield from _ccl_problem(torch, versions[CCL])
    for limit in LIMITS:
        yield from _beyond(limit, versions)


def _ipex_problem(torch: str, ipex: str) -> Iterator[str]:
    if _minor(torch) > _minor(LAST.torch):
        yield f"torch {torch} has no {IPEX}: {LAST.torch} is the last, for torch {LAST.torch} (stack intel)"
    elif _minor(torch) != _minor(ipex):
        of_torch, of_ipex = (".".join(map(str, _minor(each))) for each in (torch, ipex))
        yield f"{IPEX} {ipex} is not for torch {torch}: take {of_torch}.*, or torch {of_ipex}.*"


def _ccl_problem(torch: str, ccl: str) -> Iterator[str]:
    if _minor(torch) > _minor(LAST.torch):
        yield f"torch {torch} has no {CCL}: {LAST.ccl[-1]} is the last, for torch {LAST.torch} (stack intel)"
        return
    wanted = read_version(ccl)
    fitting = [match for match in MATCHES if wanted in map(read_version, match.ccl)]
    exact = [match for match in MATCHES if read_version(match.torch) == read_version(torch)]
    if not exact and not fitting and _minor(torch) == _minor(ccl):
        return  # neither is in the table: the minor version decides
    if exact and wanted in map(read_version, exact[0].ccl):
        return
    hints = [f"take {' or '.join(exact[0].ccl[-1:])}"] if exact else []
    hints += [f"torch {match.torch}" for match in fitting]
    would = ", or ".join(hints) or f"known are torch {FIRST.torch} to {LAST.torch}"
    yield f"{CCL} {ccl} is not for torch {torch}: {would}"


def _beyond(limit: Limit, versions: Mapping[str, str]) -> Iterator[str]:
    mine, other = versions.get(limit.package), versions.get(limit.other)
    if mine is None or other is None or read_version(other) < read_version(limit.since):
        return
    if read_version(mine) > read_version(limit.last):
        yield (f"{limit.package} {mine} is too new for {limit.other}: {limit.last} is the last, {limit.why}")


def _minor(version: str) -> Version:
    return read_version(version)[:2]


def ccl_module(torch: str) -> str:
    """What registers the backend "ccl" beside that torch.

    >>> ccl_module("1.11.0"), ccl_module("2.8.0")
    ('torch_ccl', 'oneccl_bindings_for_pytorch')
    """
    return "torch_ccl" if _minor(torch) < (1, 12) else "oneccl_bindings_for_pytorch"


def archived_in(versions: Mapping[str, str]) -> tuple[Archived, ...]:
    return tuple(each for each in ARCHIVED if each.package in versions)

"""Machines on their way from the operator's login to the cluster's key: all at once, and where something must
be asked, once for all of them. What goes wrong on one is kept as its problem, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from provision.errors import ClusterctlError, LoginRefused, SettingsError
from provision.host import SshHost
from provision.openssh import KnownKeys
from provision.providers import Operator, Secret
from provision.providers.static.look import Look
from provision.providers.static.targets import Target

FANOUT = 64
PASSWORD_TRIES = 3

T = TypeVar("T")


@dataclass
class Meeting:
    """One machine on its way; `host` is the operator's own session there, `password` what opened it."""

    target: Target
    known: KnownKeys = field(default_factory=KnownKeys)
    host: SshHost | None = None
    look: Look | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.target.node.name

    @property
    def open(self) -> tuple[SshHost, Look]:
        """Once it is logged in to and looked at."""
        assert self.host
        assert self.look
        return self.host, self.look


class Meetings:
    """Those still on their way, in the order they were given; `problems` has why the others are not."""

    def __init__(self, targets: Sequence[Target], operator: Operator) -> None:
        self._operator = operator
        self._meetings = {target.node.name: Meeting(target) for target in targets}
        self.problems: dict[str, ClusterctlError] = {}

    def __iter__(self) -> Iterator[Meeting]:
        return iter(tuple(self._meetings.values()))

    def __getitem__(self, name: str) -> Meeting:
        return self._meetings[name]

    def each(self, work: Callable[[Meeting], T], only: Sequence[Meeting] | None = None) -> dict[str, T]:
        """What the work returns, for those on which it did not fail."""
        done: dict[str, T] = {}
        for name, result in _in_parallel(work, tuple(self) if only is None else only).items():
            if isinstance(result, ClusterctlError):
                self.fail(name, result)
            else:
                done[name] = result
        return done

    def attempt(self, work: Callable[[Meeting], None], only: Sequence[Meeting]) -> dict[str, LoginRefused]:
        """The work on some; those that were refused are returned, for another way may be open."""
        refused: dict[str, LoginRefused] = {}
        for name, result in _in_parallel(work, only).items():
            if isinstance(result, LoginRefused):
                refused[name] = result
            elif isinstance(result, ClusterctlError):
                self.fail(name, result)
        return refused

    def by_password(
        self, secret: Secret, refused: Mapping[str, LoginRefused], work: Callable[[Meeting, str], None]
    ) -> None:
        """The work with one password for all that were refused; then with one for each that refuses it."""
        for number in range(PASSWORD_TRIES):
            groups = [[name] for name in refused] if number else [list(refused)] if refused else []
            left: dict[str, LoginRefused] = {}
            for names in groups:
                password = self._password(secret, names, refused, again=number > 0)
                if password is not None:
                    left |= self.attempt(_with(work, password), [self[name] for name in names])
            refused = left
        for name, error in refused.items():
            self.fail(name, error)

    def fail(self, name: str, error: ClusterctlError) -> None:
        meeting = self._meetings.pop(name)
        if meeting.host:
            meeting.host.close()
        self.problems[name] = error

    def close(self) -> None:
        for meeting in self:
            if meeting.host:
                meeting.host.close()

    def _password(
        self, secret: Secret, names: Sequence[str], why: Mapping[str, LoginRefused], *, again: bool
    ) -> str | None:
        """None, and a problem for each of them, where there is no password to have."""
        places = [self[name].target.place for name in names]
        try:
            return self._operator.password(secret, places, refused=again)
        except SettingsError as error:
            for name in names:
                self.fail(name, LoginRefused(name, f"{why[name].problem}; {error}"))
            return None


def _with(work: Callable[[Meeting, str], None], password: str) -> Callable[[Meeting], None]:
    return lambda meeting: work(meeting, password)


def _in_parallel(work: Callable[[Meeting], T], meetings: Sequence[Meeting]) -> dict[str, T | ClusterctlError]:
    def guarded(meeting: Meeting) -> T | ClusterctlError:
        try:
            return work(meeting)
        except ClusterctlError as error:
            return error

    with ThreadPoolExecutor(max(1, min(FANOUT, len(meetings)))) as pool:
        return dict(zip((each.name for each in meetings), pool.map(guarded, meetings), strict=True))

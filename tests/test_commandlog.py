"""Every command is written down: what for, how it ended, its last lines; never what is secret."""

from __future__ import annotations

import stat
import time
from dataclasses import dataclass

import pytest

from provision.commandlog import CommandLog, LoggedHost, labelled, last_entries
from provision.errors import CommandError, ConnectError
from provision.step import Mode, Status, converge
from provision.steps.checks import Verdict
from tests.shell_host import ShellHost, SilentWatcher


@pytest.fixture
def host(tmp_path):
    host = LoggedHost(ShellHost(), CommandLog(tmp_path / "log" / "here.log"))
    yield host
    host.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log" / "here.log"


def test_an_entry_has_the_command_its_end_its_time_and_its_last_lines(host, path):
    with labelled(host, "base: file /etc/x"):
        host.run("seq %s; sleep 0.1", "9", sudo=True)

    (entry,) = last_entries(path, 5)
    first, *rest = entry.splitlines()
    assert first[:4].isdigit()
    assert " exit 0, 0.1" in first
    assert first.endswith("base: file /etc/x")
    assert rest == ["  # seq 9; sleep 0.1", *(f"  | {number}" for number in range(5, 10))]


def test_a_command_that_failed_is_there_with_its_exit_code(host, path):
    with pytest.raises(CommandError):
        host.run("echo no space >&2; exit 4")

    assert "exit 4" in path.read_text()
    assert "  | no space" in path.read_text()


def test_a_connection_that_was_lost_is_there_too(host, path):
    def lost(*args, **options):
        raise ConnectError("here", "connection lost")

    host._host.run = lost
    with pytest.raises(ConnectError):
        host.run("true")

    assert "no end" in path.read_text()
    assert "  | here: connection lost" in path.read_text()


def test_stdin_is_never_written(host, path):
    host.run("cat > /dev/null", stdin=b"the private key")

    assert "private" not in path.read_text()


@dataclass(frozen=True)
class Password(Verdict):
    """A step whose command has a secret in it."""

    name: str = "password"
    problem: str | None = "not set"
    secret: bool = True

    def apply(self, host):
        host.run("echo hunter2; exit 5")

    def diff(self, actual):
        return "+hunter2"


def test_of_a_secret_step_only_the_name_is_written_or_shown(host, path):
    (result,) = converge(host, "users", [Password()], None, Mode(diff=True), SilentWatcher())

    assert result.status is Status.FAILED
    assert "hunter2" not in path.read_text() + result.detail + result.diff
    assert "exit 5" in path.read_text()
    assert "users: password" in path.read_text()


def test_probes_are_written_without_their_text_unless_they_fail(host, path):
    with labelled(host, "probes (3)", brief=True):
        host.run("cat /etc/hostname")
        with pytest.raises(CommandError):
            host.run("echo sudo: a password is required; exit 1")

    first, second = last_entries(path, 5)
    assert len(first.splitlines()) == 1
    assert second.splitlines()[1:] == ["  | sudo: a password is required"]


def test_the_log_is_private_and_bounded(tmp_path):
    log = CommandLog(tmp_path / "log" / "n.log", max_bytes=10_000)
    for number in range(300):
        log.write(f"2026-01-01 00:00:00.000 exit 0, {number} s\n" + "  # x" * 20 + "\n")
    log.close()

    sizes = {each.name: each.stat().st_size for each in log.path.parent.iterdir()}
    assert set(sizes) == {"n.log", "n.log.1"}
    assert max(sizes.values()) <= 10_000
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.path.parent.stat().st_mode) == 0o700
    kept = [int(entry.split()[4]) for entry in last_entries(log.path, 300)]
    assert kept == list(range(300 - len(kept), 300))
    assert len(kept) > 80


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "log").write_text("a file where the folder should be")
    host = LoggedHost(ShellHost(), CommandLog(tmp_path / "log" / "here.log"))

    assert host.run("echo yes").stdout == "yes\n"


def test_an_entry_costs_less_than_a_tenth_of_a_millisecond(tmp_path):
    log = CommandLog(tmp_path / "log" / "n.log")
    entry = "2026-01-01 00:00:00.000 exit 0, 0.1 s\n" + "  # some command\n" * 20
    started = time.perf_counter()
    for _ in range(1000):
        log.write(entry)

    assert time.perf_counter() - started < 0.1

"""Services: what `systemctl show` prints, understood; and what is asked of systemctl."""

import pytest

from provision.errors import HostError
from provision.host import CommandResult
from provision.model import Node
from provision.step import Mode, Status
from provision.steps import Service, TextFile
from tests.shell_host import ShellHost
from tests.step_cases import ME, run

NOW = "Uptime=3600.00\nNow=1700003600.000000000\n"  # booted at 1700000000


def shown(**changes):
    """What systemd 252 prints of a service that runs since 60 s after the boot."""
    properties = {
        "ActiveState": "active",
        "LoadState": "loaded",
        "SubState": "running",
        "UnitFileState": "enabled",
        "NeedDaemonReload": "no",
        "ActiveEnterTimestampMonotonic": "60000000",
    }
    return "".join(f"{key}={value}\n" for key, value in (properties | changes).items()) + NOW


@pytest.mark.parametrize(
    ("changes", "drift"),
    [
        ({}, None),
        ({"ActiveState": "reloading", "SubState": "reload"}, None),
        ({"SubState": "exited", "UnitFileState": "static"}, None),
        ({"UnitFileState": "generated"}, None),
        ({"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": ""}, "no such unit"),
        ({"ActiveState": "inactive", "SubState": "dead"}, "inactive (dead), wanted running"),
        ({"ActiveState": "failed", "SubState": "failed"}, "failed (failed), wanted running"),
        ({"ActiveState": "activating", "SubState": "start"}, "activating (start), wanted running"),
        ({"UnitFileState": "disabled"}, "disabled, wanted enabled"),
        ({"UnitFileState": "enabled-runtime"}, "enabled-runtime, wanted enabled"),
        ({"UnitFileState": ""}, "not enabled, wanted enabled"),
        (
            {"LoadState": "masked", "ActiveState": "inactive", "SubState": "dead", "UnitFileState": "masked"},
            "masked, wanted enabled; inactive (dead), wanted running",
        ),
        ({"NeedDaemonReload": "yes"}, "its unit file is not the one that systemd has read"),
    ],
)  # fmt: skip
def test_a_service_that_is_to_run(changes, drift):
    assert Service("chrony").drift(shown(**changes)) == drift


@pytest.mark.parametrize(
    ("changes", "drift"),
    [
        ({}, "enabled, wanted disabled; active (running), wanted stopped"),
        ({"UnitFileState": "disabled", "ActiveState": "inactive"}, None),
        ({"UnitFileState": "masked", "ActiveState": "failed"}, None),
        ({"UnitFileState": "static", "ActiveState": "inactive"}, None),
        (
            {"UnitFileState": "disabled", "ActiveState": "activating", "SubState": "auto-restart"},
            "activating (auto-restart), wanted stopped",
        ),
    ],
)
def test_a_service_that_is_not_to_run(changes, drift):
    assert Service("chrony", enabled=False, running=False).drift(shown(**changes)) == drift


def test_what_is_left_open_is_no_drift():
    stopped = shown(ActiveState="inactive", UnitFileState="disabled")

    assert Service("chrony", enabled=None, running=None).drift(stopped) is None
    assert Service("chrony", running=None).drift(stopped) == "disabled, wanted enabled"


def test_a_file_that_changed_after_the_start_wants_a_restart():
    step = Service("chrony", restarted_after=("/etc/chrony.conf", "/etc/new file"))
    files = "File=1700000059.5 /etc/chrony.conf\nFile={} /etc/new file\n"

    assert step.drift(shown() + files.format("1700000060.01")) is None
    assert step.drift(shown() + files.format("1700000061.5")) == "runs since before /etc/new file changed"
    assert step.drift(shown() + "stat: cannot statx '/etc/chrony.conf': No such file or directory\n") is None
    stopped = shown(ActiveState="inactive", SubState="dead", ActiveEnterTimestampMonotonic="0")
    assert step.drift(stopped + files.format("1700000061.5")) == "inactive (dead), wanted running"


class Systemd:
    """A Host whose systemd answers what it is told to, and remembers what was asked of it."""

    node = Node("n01", "10.0.0.1")

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def run(self, script, *args, **options):
        if "systemctl show" not in script:
            self.asked.append(script)
        return CommandResult(0, self.answer, "")


@pytest.mark.parametrize(
    ("step", "asked"),
    [
        (Service("a b"), "systemctl daemon-reload && systemctl enable 'a b' && systemctl start 'a b'"),
        (Service("x", enabled=None), "systemctl daemon-reload && systemctl start x"),
        (
            Service("x", enabled=False, running=False),
            "systemctl daemon-reload && systemctl disable x && systemctl stop x",
        ),
        (
            Service("x", enabled=None, restarted_after=("/f",)),
            "systemctl daemon-reload && systemctl restart x && systemctl start x",
        ),
    ],
)
def test_what_is_asked_of_systemctl(step, asked):
    host = Systemd(shown() + "".join(f"File=1700003000.0 {file}\n" for file in step.restarted_after))
    step.apply(host)

    assert host.asked == [asked]


def test_without_systemd_that_is_the_drift_and_nothing_removes_it():
    step = Service("chrony")
    assert (
        step.drift("NoSystemd=yes\n") == "no systemd runs on this node, so services cannot be managed there"
    )

    with pytest.raises(HostError, match="n01: chrony: no systemd runs on this node"):
        step.apply(Systemd("NoSystemd=yes\n"))


def test_what_a_restart_depends_on_cannot_be_foreseen_behind_a_change(tmp_path):
    file = TextFile(f"{tmp_path}/conf", "x\n", ME)
    restarted = Service("none-such", restarted_after=(file.path,))

    first, second = run([file, restarted], mode=Mode(check=True))
    assert (first.status, second.status) == (Status.CHANGED, Status.SKIPPED)
    assert not restarted.foreseeable
    assert Service("x").foreseeable


def test_the_probe_is_a_script_that_sh_takes(tmp_path):
    (tmp_path / "f").touch()
    printed = (
        ShellHost().run(Service("x y", restarted_after=(f"{tmp_path}/f",)).probe, expect=range(256)).stdout
    )

    assert "NoSystemd=yes" in printed or "LoadState=" in printed
    assert f" {tmp_path}/f" in printed or "NoSystemd=yes" in printed

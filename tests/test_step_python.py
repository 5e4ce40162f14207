"""Virtual environments, built by pip from wheels made here."""

import subprocess
from pathlib import Path

import pytest

from provision.errors import SettingsError
from provision.step import Status
from provision.steps import PipEnvironment
from tests.killed_host import killed_at
from tests.shell_host import ShellHost
from tests.step_cases import CHECK, run, snapshot, statuses, wheel

CHANGED, OK, FAILED = Status.CHANGED, Status.OK, Status.FAILED


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, version in (("first", "1.0"), ("first", "2.0"), ("second", "1.0")):
        wheel(folder, name, version)
    return f"--no-index --find-links {folder}"


def versions(path: Path) -> str:
    listed = subprocess.run([f"{path}/bin/pip", "list", "--format=freeze"], capture_output=True, text=True)
    return " ".join(line for line in listed.stdout.split() if line.startswith(("first", "second")))


def test_an_environment_is_built_changed_and_mended(tmp_path, wheels):
    path = tmp_path / "deep" / "env"
    step = PipEnvironment(str(path), (wheels, "first==1.0", "second"))

    assert [result.detail for result in run([step], mode=CHECK)] == ["not built"]
    assert statuses(run([step])) == [CHANGED]
    assert statuses(run([step])) == [OK]
    assert versions(path) == "first==1.0 second==1.0"
    subprocess.run([f"{path}/bin/python", "-c", "pass"], check=True)

    newer = PipEnvironment(str(path), (wheels, "first==2.0"))
    (result,) = run([newer])
    assert result.detail == "built from other requirements"
    assert versions(path) == "first==2.0"
    assert len(list(path.parent.iterdir())) == 2

    subprocess.run([f"{path}/bin/pip", "uninstall", "-qy", "first"], check=True)
    (result,) = run([newer], mode=CHECK)
    assert result.detail == "packages changed since it was built: first-2.0"
    assert statuses(run([newer])) == [CHANGED]
    assert versions(path) == "first==2.0"


@pytest.mark.slow
def test_a_build_that_fails_or_is_killed_leaves_the_old_environment_and_the_next_one_clears_up(
    tmp_path, wheels
):
    path = tmp_path / "opt" / "env"
    run([PipEnvironment(str(path), (wheels, "first==1.0"))])
    other = path.parent / "env.settings"
    other.write_text("theirs")
    before = snapshot(tmp_path)

    (result,) = run([PipEnvironment(str(path), (wheels, "third"))])
    assert result.status is FAILED
    assert "No matching distribution found for third" in result.detail
    assert set(snapshot(tmp_path)) == set(before)

    newer = PipEnvironment(str(path), (wheels, "first==2.0"))
    seen = set()
    for at in range(1, 40):
        died = killed_at(newer, ShellHost(), str(tmp_path / "shims"), at)
        seen.add(versions(path))
        if not died:
            break
    assert seen == {"first==1.0", "first==2.0"}
    assert at > 5
    assert statuses(run([newer]))[0] in (OK, CHANGED)
    assert other.read_text() == "theirs"
    assert len([each for each in path.parent.iterdir() if each.name.startswith("env.clusterctl-")]) == 1


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_what_is_not_ours_is_not_replaced(tmp_path, wheels, make):
    make(tmp_path / "env")
    (result,) = run([PipEnvironment(f"{tmp_path}/env", (wheels, "first"))])

    assert result.status is FAILED
    assert "is no environment of clusterctl's" in result.detail


def test_one_text_is_no_list_of_lines(tmp_path):
    with pytest.raises(SettingsError, match="a tuple of requirement lines"):
        PipEnvironment(str(tmp_path / "env"), "numpy")

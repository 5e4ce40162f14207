"""Steps against real files: drift, apply, no drift; check mode writes nothing."""

import os
import stat
from pathlib import Path

import pytest

from provision.errors import CommandError
from provision.play import Playbook
from provision.step import Status, split_probes
from provision.steps import Block, Command, Directory, TextFile, Verdict
from tests.killed_host import killed_at
from tests.shell_host import ShellHost
from tests.step_cases import CASES, CHECK, ME, litter, run, snapshot, statuses


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_a_step_is_changed_once_and_ok_after(case, tmp_path):
    step = case(tmp_path)

    assert statuses(run([step])) == [Status.CHANGED]
    after = snapshot(tmp_path)
    assert statuses(run([step])) == [Status.OK]
    assert snapshot(tmp_path) == after
    assert litter(tmp_path) == []


def test_check_mode_says_changed_and_writes_nothing(case, tmp_path):
    step = case(tmp_path)
    before = snapshot(tmp_path)

    assert statuses(run([step], mode=CHECK)) == [Status.CHANGED]
    assert snapshot(tmp_path) == before


def test_applying_what_is_applied_changes_no_content(case, tmp_path):
    step = case(tmp_path)
    run([step])
    before = {path: found[1:3] + found[4:] for path, found in snapshot(tmp_path).items()}
    step.apply(ShellHost())

    after = {path: found[1:3] + found[4:] for path, found in snapshot(tmp_path).items()}
    assert after == before


def test_killed_at_any_command_a_file_is_the_old_or_the_new_one_and_the_next_run_converges(case, tmp_path):
    host = ShellHost()
    shims = tmp_path / "shims"
    for at in range(1, 40):
        folder = tmp_path / str(at)
        folder.mkdir()
        step = case(folder)
        before = whole_files(folder)
        died = killed_at(step, host, str(shims), at)
        half = whole_files(folder)
        assert statuses(run([step], host))[0] in (Status.OK, Status.CHANGED)
        after = whole_files(folder)
        for path, content in half.items():
            assert content in (before.get(path), after.get(path)), f"half of {path}, killed at {at}"
        assert statuses(run([step], host)) == [Status.OK]
        assert litter(folder) == []
        if not died:
            break
    assert at > 1


def whole_files(folder: Path):
    """Content of all files but those that are being written beside."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "clusterctl-" not in path.name
    }


def test_steps_that_are_all_ok_cost_one_round_trip(tmp_path):
    steps = [Directory(str(tmp_path), ME, oct(tmp_path.stat().st_mode & 0o777)[2:])] * 5
    host = ShellHost()

    assert set(statuses(run(steps, host))) == {Status.OK}
    assert host.round_trips == 1


def test_a_block_keeps_owner_mode_and_every_other_line(tmp_path):
    path = tmp_path / "authorized_keys"
    path.write_text("ssh-ed25519 AAAA theirs")
    path.chmod(0o640)

    run([Block(str(path), "mesh", ("ssh-ed25519 BBBB ours",), ME, "600")])

    assert path.read_text().startswith("ssh-ed25519 AAAA theirs\n")
    assert "BBBB" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_text_file_writes_through_a_link_and_keeps_somebody_elses_file_beside(tmp_path):
    real = tmp_path / "dotfiles" / "hosts"
    real.parent.mkdir()
    real.write_text("theirs\n")
    link = tmp_path / "hosts"
    link.symlink_to(real)

    run([TextFile(str(link), "# written by clusterctl\nnode1\n", ME)])

    assert link.is_symlink()
    assert real.read_text().endswith("node1\n")
    assert Path(f"{link}.before-clusterctl").read_text() == "theirs\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_fails_the_step_and_leaves_the_old_file_whole(tmp_path):
    os.system(f"mount -t tmpfs -o size=64k tmpfs {tmp_path}")
    try:
        path = tmp_path / "config"
        path.write_text("# ours\nold\n")
        results = run([TextFile(str(path), "# ours\n" + "new\n" * 40_000, ME)])
        assert statuses(results) == [Status.FAILED]
        assert "No space left" in results[0].detail
        assert path.read_text() == "# ours\nold\n"
        assert [p.name for p in tmp_path.iterdir()] == ["config"]
    finally:
        os.system(f"umount {tmp_path}")


def test_converge_reports_failed_when_drift_remains_and_stops_there(tmp_path):
    class Stubborn(Verdict):
        def apply(self, host):
            return None

    results = run([Stubborn("clock", "2 h behind"), Directory(str(tmp_path))])

    assert [(r.status, r.detail) for r in results] == [(Status.FAILED, "2 h behind")]


def test_a_verdict_says_what_a_person_can_do():
    (result,) = run([Verdict("clock", "2 h behind", "start chrony")])

    assert result.status is Status.FAILED
    assert result.detail == "here: 2 h behind; start chrony"


def test_a_later_step_sees_what_an_earlier_one_changed(tmp_path):
    folder = str(tmp_path / "new")
    steps = [Directory(folder, ME, "755"), Block(f"{folder}/f", "m", ("a",), ME)]

    assert statuses(run(steps)) == [Status.CHANGED, Status.CHANGED]


def test_probes_keep_every_byte_and_pass_over_a_banner():
    text = "Welcome!\n\n@@probe 0\nno newline\n@@probe 1\ntwo\n\n\n@@probe 2\n"

    assert split_probes(text, 3) == ["no newline", "two\n\n", ""]


def test_a_probe_that_is_missing_is_an_error():
    with pytest.raises(ValueError, match="1 of 2"):
        split_probes("\n@@probe 0\nx", 2)


def test_a_command_error_carries_the_last_lines():
    with pytest.raises(CommandError) as caught:
        ShellHost("n02").run("echo one; echo two >&2; exit 3")

    assert str(caught.value) == "n02: `echo one; echo two >&2; exit 3` ended with exit code 3: two"
    assert caught.value.last_lines == ("one", "two")


def test_a_playbook_is_a_pure_plan():
    assert Playbook("p", lambda node, cluster, facts: ()).name == "p"


def test_a_guard_behind_a_change_cannot_be_foreseen_in_check_mode(tmp_path):
    steps = [
        Command("before", "true", creates=str(tmp_path)),
        TextFile(f"{tmp_path}/new", "x\n", ME),
        Command("after", "true", unless=f"[ -e {tmp_path}/new ]"),
        Directory(str(tmp_path), ME, "700"),
    ]

    results = run(steps, mode=CHECK)
    assert statuses(results) == [Status.OK, Status.CHANGED, Status.SKIPPED, Status.OK]
    assert results[2].detail == "depends on what an earlier step would change"
    assert statuses(run(steps)) == [Status.OK, Status.CHANGED, Status.OK, Status.OK]


def test_a_guard_with_a_slip_in_its_syntax_disturbs_no_other_probe(tmp_path):
    steps = [Command("slip", "true", unless="if true; then ("), Directory(str(tmp_path), ME, "700")]

    results = run(steps, mode=CHECK)
    assert [result.detail for result in results] == ["its guard says that there is something to do", ""]


def test_a_command_whose_guard_is_not_content_after_it_has_failed(tmp_path):
    (result,) = run([Command("make", "true", creates=f"{tmp_path}/made")])

    assert (result.status, result.detail) == (Status.FAILED, f"no {tmp_path}/made")

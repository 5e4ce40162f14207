"""What is to be run, the files beside it, and how they travel."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import run.program
from provision.errors import SettingsError
from run.job import make_job
from run.launchers.common import Ground
from run.launchers.mpirun import plan
from run.parcel import LARGE_BYTES, parcel
from run.program import find_program
from tests.run_cases import STACK, TWO_CORES, cluster, facts, job, layouts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "lib/part.py", "data.json", ".env", "lib/__pycache__/part.pyc", "old/model.bin"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def test_a_script_goes_with_the_files_beside_it_but_hidden_ones(folder: Path) -> None:
    program = find_program("./train.py")

    assert program.command == ("--folder", "work", "train.py")
    assert sorted(program.files) == [
        "work/data.json",
        "work/lib/part.py",
        "work/old/model.bin",
        "work/train.py",
    ]
    assert (program.name, program.reports) == ("train", False)
    assert make_job(program, ["--lr", "1"]).script_args == ("--lr", "1")


def test_a_script_beats_the_recipe_of_its_name_when_it_is_given_by_its_path(folder: Path) -> None:
    (folder / "run_qa.py").write_text("")
    for what in ("run_qa.py", "./run_qa.py", str(folder / "run_qa.py")):
        assert find_program(what).command == ("--folder", "work", "run_qa.py")
    assert find_program("run_qa").command == ("recipe/question_answering.py",)


def test_libraries_in_a_script_are_told_that_cpus_are_meant(folder: Path) -> None:
    assert make_job(find_program("train.py"), ()).environment == {"ACCELERATE_USE_CPU": "true"}
    assert make_job(find_program("run_qa"), ()).environment == {}  # it says so itself


def test_an_ignore_file_leaves_out_names_at_any_depth_and_whole_paths(folder: Path) -> None:
    (folder / ".clusterctlignore").write_text("# large\n*.json\nold/\nlib/p*.py\n")
    assert sorted(find_program("train.py").files) == ["work/train.py"]

    (folder / ".clusterctlignore").write_text("old\n!old/model.bin\n")
    with pytest.raises(SettingsError, match=r"\.clusterctlignore:2: .*patterns only leave out"):
        find_program("train.py")


def test_a_module_a_program_and_a_bash_line(folder: Path) -> None:
    program = folder / "go.sh"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(SettingsError, match=r"chmod \+x it"):
        find_program("go.sh")
    program.chmod(0o755)

    assert find_program("go.sh").command == ("--folder", "work", "--program", "./go.sh")
    assert find_program("lib.part", "module").command == ("--folder", "work", "-m", "lib.part")
    line = "python train.py --rank $RANK"
    assert find_program(line, "bash").command == ("--folder", "work", "--program", "bash", "-c", line)
    assert find_program(line, "bash").label == "bash"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("run_aq", "did you mean run_qa?"),
        ("bert", "there is run_pretraining, run_qa; your own script is given by its path"),
        ("bert.py", "bert.py: no such file; it is looked for in"),
        ("src/bert", "src/bert: no such file"),
    ],
)
def test_what_is_not_there_is_named(folder: Path, what: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        find_program(what)
    assert said in str(caught.value)


def test_too_much_is_refused_before_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "huge").open("wb") as huge:
        huge.truncate((run.program.MOST_MIB << 20) + 1)
    with pytest.raises(SettingsError, match=r"more than 512 MiB .*clusterctlignore, a pattern a line"):
        find_program("train.py")

    (folder / "huge").unlink()
    monkeypatch.setattr(run.program, "MOST_FILES", 2)
    with pytest.raises(SettingsError, match="2 files"):
        find_program("train.py")


def test_what_earlier_runs_brought_back_is_left_out(folder: Path) -> None:
    for name in ("plan.txt", "summary.json", "output/model.bin"):
        path = folder / "results" / "20261121-101500-train-ab12" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert not [path for path in find_program("train.py").files if "results" in path]


def test_a_link_to_a_folder_is_not_followed_and_an_environment_left_out(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)
    (folder / "env").mkdir()
    (folder / "env" / "pyvenv.cfg").touch()
    (folder / "linked.json").symlink_to("data.json")
    assert {"work/loop", "work/env/pyvenv.cfg"}.isdisjoint(find_program("train.py").files)
    assert "work/linked.json" in find_program("train.py").files


def members(packed: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


def test_a_large_file_is_sent_once_to_those_that_lack_it(folder: Path) -> None:
    content = os.urandom(LARGE_BYTES)
    for name in ("model.bin", "copy.bin"):
        (folder / name).write_bytes(content)
    known = facts(TWO_CORES)
    wanted = replace(job(), uploads={"data": folder})
    made = plan(Ground(wanted, cluster(1), layouts(known), known, STACK, 1))

    packet = parcel(made)
    (digest,) = packet.digests
    there, lacking = members(packet.packed([])), members(packet.packed([digest]))
    assert lacking[f".large/{digest}"] == content
    assert set(lacking) - set(there) == {f".large/{digest}"}
    assert lacking[".large/paths"].decode() == f"{digest} data/copy.bin\n{digest} data/model.bin\n"
    assert {"plan.json", "rank.py", "data/train.py"} <= set(there)
    assert "data/copy.bin" not in there

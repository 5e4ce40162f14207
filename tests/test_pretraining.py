"""The recipe run_pretraining: text in blocks anywhere, training where a stack's Python is at hand."""

import gzip
import json
import os
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.errors import SettingsError
from run import job
from run.job import from_anywhere, make_job
from run.program import recipe_program
from run.recipes import text
from tests.command import Command
from tests.test_question_answering import finish, free_port, losses, only

RECIPES = Path(text.__file__).parent
CHECKS = Path(__file__).with_name("pretraining_checks.py")
PRETRAINING = recipe_program("run_pretraining")

# --- blocks ------------------------------------------------------------------------------------

CONTENT = st.lists(st.sampled_from(["a", "tree", "é", "木", " ", "\n", "\n\n", "\r\n"]), max_size=60).map(
    "".join
)


@settings(max_examples=300, deadline=None)
@given(st.lists(CONTENT, max_size=3), st.integers(1, 40), st.integers(5, 30))
def test_blocks_make_up_the_text_whoever_reads_them(tmp_path_factory, contents, size, reach):
    """Lines longer than `reach` are cut, at a blank or between two characters; nothing else is."""
    folder = tmp_path_factory.mktemp("text")
    files = []
    for number, content in enumerate(contents):
        files.append(folder / str(number))
        files[-1].write_bytes(content.encode())
    blocks = text.Blocks(files, size)
    parts = dict.fromkeys(files, b"")
    for block in blocks:
        with block.path.open("rb") as file:
            parts[block.path] += text.read_block(file, block, reach)
        assert "\ufffd" not in "".join(text.read_lines(block, reach))
    assert [part.decode() for part in parts.values()] == contents
    whole = [line.removesuffix("\r") for content in contents for line in lines_of(content)]
    assert [line for block in blocks for line in text.read_lines(block, 10_000)] == whole


def lines_of(content: str) -> list[str]:
    lines = content.split("\n")
    return lines if lines[-1] else lines[:-1]


def test_blocks_are_made_when_they_are_asked_for(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    blocks = text.Blocks([path, path], text.block_bytes(2 << 40))
    assert len(blocks) == 2 << 23
    assert blocks[len(blocks) - 1] == text.Block(path, (1 << 40) - (128 << 10), 1 << 40)
    with pytest.raises(IndexError):
        blocks[len(blocks)]


def test_a_byte_order_mark_and_bytes_that_are_no_text_do_not_end_the_run(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntw\xffo\n")
    assert text.read_lines(text.Block(path, 0, 100)) == ["one", "tw\ufffdo"]


# --- files -------------------------------------------------------------------------------------


def test_files_and_folders_are_found_in_order_and_each_once(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "b/c/3.txt", "b/.hidden/x", "b/.x", "a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = text.find_files([str(tmp_path / name) for name in ("b", "a.txt", "b/1.txt")])
    assert [str(path.relative_to(tmp_path)) for path in found] == ["b/1.txt", "b/2.txt", "b/c/3.txt", "a.txt"]


def test_packed_text_and_json_lines_are_unpacked_once(tmp_path):
    folder = tmp_path / "cache"
    rows = "".join(json.dumps({"text": f"line {number}\nmore", "id": 1}) + "\n" for number in range(2))
    plain, packed, both = tmp_path / "a.txt", tmp_path / "b.gz", tmp_path / "c.jsonl.gz"
    plain.write_text("one\n")
    packed.write_bytes(gzip.compress(b"two\n"))
    both.write_bytes(gzip.compress(rows.encode()))
    files = [plain, packed, both]
    assert text.lacking(files, folder) == [packed, both]
    assert list(text.unpack([packed, both], folder)) == []
    assert text.lacking(files, folder) == []
    assert sorted(path.read_text() for path in folder.iterdir()) == [
        "line 0\nmore\n\nline 1\nmore\n\n",
        "two\n",
    ]
    packed.write_bytes(gzip.compress(b"new\n"))
    list(text.unpack(text.lacking(files, folder), folder))
    assert text.plain_path(packed, folder).read_text() == "new\n"


def test_nodes_with_one_home_unpack_a_text_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "ROUND_S", 0)
    packed, lines = tmp_path / "a.gz", "".join(f"line {number}\n" for number in range(3000))
    packed.write_bytes(gzip.compress(lines.encode()))
    at_work = []
    for hostname in ("n1", "n2"):
        monkeypatch.setattr("socket.gethostname", lambda hostname=hostname: hostname)
        at_work.append(text.unpack([packed], tmp_path / "cache"))
        next(at_work[-1])
    for unpacking in reversed(at_work):
        list(unpacking)
        assert [path.read_text() for path in (tmp_path / "cache").glob("*.txt")] == [lines]
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"text": null}', '{"words": "a"}', "plain words"])
def test_a_bad_line_of_json_is_named_by_its_number(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n' + line + "\n")
    with pytest.raises(text.TextError, match=r'a\.jsonl, line 3: no \{"text"'):
        list(text.unpack([path], tmp_path / "cache"))
    assert not list((tmp_path / "cache").glob("*.txt")), "nothing half"


# --- arguments on this machine -----------------------------------------------------------------


def test_files_and_folders_travel_each_under_a_name_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("texts/a.txt", "b/a.txt", "c/a.txt", "model/tokenizer.json", "model/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    args = ["--train_file", "texts", "b/a.txt", "c/a.txt", "b/a.txt", "node:/data/wiki"]
    made = make_job(PRETRAINING, [*args, "--tokenizer_name=model", "--seed", "1"])
    assert made.script_args == (
        *("--train_file", "data/train_file/texts", "data/train_file/a.txt", "data/train_file/2/a.txt"),
        *("data/train_file/a.txt", "/data/wiki", "--tokenizer_name", "data/tokenizer_name/model"),
        *("--seed", "1", "--output_dir", "output"),
    )
    assert made.uploads == {
        "data/train_file/texts": tmp_path / "texts",
        "data/train_file/a.txt": tmp_path / "b/a.txt",
        "data/train_file/2/a.txt": tmp_path / "c/a.txt",
        "data/tokenizer_name/model": tmp_path / "model",
    }
    assert from_anywhere(args) == (
        *("--train_file", f"{tmp_path}/texts", f"{tmp_path}/b/a.txt", f"{tmp_path}/c/a.txt"),
        *(f"{tmp_path}/b/a.txt", "node:/data/wiki"),
    )
    assert make_job(PRETRAINING, ["--train_file", "."]).uploads == {
        f"data/train_file/{tmp_path.name}": tmp_path
    }


def test_what_cannot_travel_is_refused(tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"no such file on this machine; give .* or node:/path"):
        make_job(PRETRAINING, ["--train_file", f"{tmp_path}/absent"])
    with pytest.raises(SettingsError, match="run_qa takes a file"):
        make_job(recipe_program("run_qa"), ["--train_file", str(tmp_path)])
    with (tmp_path / "large").open("wb") as file:
        file.truncate(3 << 29)
    for source in (tmp_path, tmp_path / "large"):
        with pytest.raises(SettingsError, match=r"1\.5 GiB; more than 1 GiB .* give --train_file node:/path"):
            make_job(PRETRAINING, ["--train_file", str(source)])
    monkeypatch.setattr(job, "MOST_UPLOADED_GIB", 2)
    assert make_job(PRETRAINING, ["--train_file", str(tmp_path)]).uploads


# --- with torch --------------------------------------------------------------------------------


@pytest.mark.stack
@pytest.mark.parametrize("check", ["parts", "lines_once", "bad_input", "phases"])
def test_part(stack, check):
    environment = {**os.environ, "PYTHONPATH": str(RECIPES), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [f"{stack}/bin/python", str(CHECKS), check]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr


FRESH = (
    "--config_overrides",
    "num_hidden_layers=1,hidden_size=32,num_attention_heads=2,intermediate_size=32",
)
STEPS = ("--bf16", "false", "--logging_steps", 1, "--learning_rate", 3e-3, "--max_seq_length", 32)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder of three files, 70 lines of a dozen words."""
    folder, words = tmp_path_factory.mktemp("texts"), random.Random(3)
    for name, count in (("a", 40), ("b", 20), ("c", 10)):
        lines = [words.choices(("tree", "fox", "red", "runs", "the", "over"), k=12) for _ in range(count)]
        (folder / f"{name}.txt").write_text("".join(" ".join(line) + "\n" for line in lines))
    return folder


def train(stack: Path, ranks: int, output: Path, *arguments: object) -> list[dict]:
    """Events of a run of so many processes that ends well."""
    port, started = free_port(), []
    for rank in range(ranks):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        command = [f"{stack}/bin/python", RECIPES / "pretraining.py", *arguments, *FRESH, *STEPS]
        command += ["--output_dir", output, "--text_cache", output.parent / "cache"]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(list(map(str, command)), env=environment, stdout=pipe, stderr=pipe, text=True)
        )
    events = []
    for code, said, printed in map(finish, started):
        assert code == 0, printed
        events += said
    return events


SHARED = ("--per_device_train_batch_size", 4, "--gradient_accumulation_steps", 2, "--save_strategy", "steps")


@pytest.mark.stack
def test_ranks_and_workers_train_one_model_and_a_restart_does_not_show(stack, texts, tmp_path):
    """Two ranks, the second with empty rows alone in an epoch's last micro-batch; then one goes on."""
    two, one = tmp_path / "two", tmp_path / "one"
    files = ("--train_file", texts, "--validation_file", texts / "b.txt")
    files += ("--num_train_epochs", 3, "--dropout", 0)
    train(stack, 2, two, *files, *SHARED, "--save_steps", 3, "--dataloader_num_workers", 2)
    alone = ("--per_device_train_batch_size", 16, "--resume_from_checkpoint", two / "checkpoint-3")
    events = train(stack, 1, one, *files, *alone)
    assert losses(one) == pytest.approx(losses(two), rel=1e-4)
    assert losses(one)[-1] < losses(one)[0] - 0.3

    (result,) = only(events, "result")
    assert json.loads((one / "metrics.json").read_text()).items() <= result.items()
    assert (result["train_lines"], result["train_tokens"], result["train_rows"]) == (70, 840, 28)
    assert (result["parts"], result["time"]["peak_share"] > 0) == (["unpad", "cheap dropout"], True)
    assert (result["steps_per_epoch"], result["steps"], result["empty_rows_per_epoch"]) == (2, 6, 4)
    assert result["perplexity"] < 30_000
    assert "70 lines: 28 rows in 2 steps an epoch" in " ".join(e["name"] for e in only(events, "phase"))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in one.iterdir()}


@pytest.mark.slow
@pytest.mark.stack
def test_as_many_ranks_go_on_byte_for_byte(stack, texts, tmp_path):
    """With dropout, from the end of an epoch and from the middle of one, with other workers."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    args = (
        "--train_file",
        texts,
        *SHARED,
        "--save_steps",
        1,
        "--save_total_limit",
        9,
        "--num_train_epochs",
        3,
    )
    train(stack, 2, whole, *args, "--dropout", 0.1)
    for step, workers in ((2, 0), (3, 3)):
        more = ("--dataloader_num_workers", workers, "--resume_from_checkpoint", whole / f"checkpoint-{step}")
        train(stack, 2, again, *args, "--dropout", 0.1, *more)
        assert losses(again) == losses(whole)
        assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.nodes
@pytest.mark.stack
def test_nodes_pretrain_on_files_of_this_machine(cluster: Command, texts, tmp_path):
    """Each node has the index after the run, and the next run does not count again."""
    (cluster.home / "more.txt").write_text("the red fox runs over the tree\n")
    args = ("--train_file", str(texts), "more.txt", "--max_steps", "3", "--per_device_train_batch_size", "2")
    args = ("train", "run_pretraining", "--", *args, *map(str, (*STEPS, *FRESH)))
    first, second = cluster.ok(*args), cluster.ok(*args)
    assert "index the text" in first
    assert "index the text" not in second
    kept = cluster.on("node3", "ls ~/.cache/clusterctl/text")
    assert Counter(name.partition("-")[0] for name in kept.split()) == {"index": 1}
    newest = max((cluster.home / "runs").iterdir())
    metrics = json.loads((newest / "output/metrics.json").read_text())
    assert (metrics["world_size"], metrics["train_lines"], metrics["steps"]) == (3, 71, 3)

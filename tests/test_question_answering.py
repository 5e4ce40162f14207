"""The recipe run_qa: reading and scoring anywhere, training where a stack's Python is at hand."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from run.recipes import squad

RECIPES = Path(squad.__file__).parent
CHECKS = Path(__file__).with_name("recipe_checks.py")
FOX = {"id": "1", "context": "A red fox ran.", "question": "What ran?"}
FOX_ANSWERS = {"text": ["red fox"], "answer_start": [2]}


def write(folder: Path, content: object) -> Path:
    path = folder / "questions.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def nested(*answers: dict, context: str = FOX["context"]) -> dict:
    question = {"id": "1", "question": "What ran?", "answers": list(answers)}
    return {"data": [{"title": "Fox", "paragraphs": [{"context": context, "qas": [question]}]}]}


# --- reading -----------------------------------------------------------------------------------

FLAT = {**FOX, "answers": FOX_ANSWERS}


@pytest.mark.parametrize(
    "content",
    [
        nested({"text": "red fox", "answer_start": 2}),
        {"version": "1", "data": [FLAT]},
        [FLAT],
        json.dumps(FLAT),
        json.dumps(FLAT) + "\n\n" + json.dumps({**FLAT, "id": "2"}),
        "\ufeff" + json.dumps([FLAT]),
    ],
    ids=["nested", "flat", "list", "one line", "lines", "byte order mark"],
)
def test_every_form_of_file_gives_the_same_question(tmp_path, content):
    examples = squad.read_examples(write(tmp_path, content))
    assert examples.rows[0] == squad.Example("1", "What ran?", FOX["context"], ("red fox",), (2,))
    assert examples.warnings("file") == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("{not json", "not JSON"),
        ("plain words", "not JSON"),
        ("42", "SQuAD's shape"),
        ({"data": {}}, "SQuAD's shape"),
        ({"data": []}, "no questions"),
        ({"rows": []}, "no 'answers'"),
        ({"data": [{"paragraphs": 3}]}, "a list was expected"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "no questions"),
        ([{**FLAT, "context": None}], "context of question 1 is not text"),
        (
            [{**FLAT, "answers": {"text": ["red fox"], "answer_start": []}}],
            "1 answer texts and 0 answer_starts",
        ),
        ([{**FLAT, "answers": {"text": ["red fox"], "answer_start": ["2"]}}], "not a whole number"),
        ([{**FLAT, "answers": {"text": [], "answer_start": []}}], "none of its 1 questions"),
        (nested({"text": "red fox", "answer_start": 3}), "none of its 1 questions"),
        (nested({"text": "", "answer_start": 0}), "none of its 1 questions"),
    ],
)
def test_unusable_file_is_refused_in_one_line_that_names_it(tmp_path, content, said):
    path = write(tmp_path, content)
    with pytest.raises(squad.DataError) as raised:
        squad.read_examples(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_file_folder_and_binary_file_are_refused(tmp_path):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, said in ((tmp_path / "absent", "No such file"), (tmp_path, "directory"), (binary, "UTF-8")):
        with pytest.raises(squad.DataError, match=said):
            squad.read_examples(path)


def test_answers_outside_the_context_are_counted_and_never_moved(tmp_path):
    """Even where the text stands once elsewhere: which place was meant is not ours to guess."""
    good, moved = {"text": "red fox", "answer_start": 2}, {"text": "fox", "answer_start": 2}
    content = {"data": nested(good, moved)["data"] + nested(moved)["data"] + nested()["data"]}
    examples = squad.read_examples(write(tmp_path, content))
    assert [row.answers for row in examples.rows] == [("red fox",)]
    assert (examples.misplaced, examples.unanswered) == (2, 2)
    first, second = examples.warnings("train")
    assert "2 answers do not stand" in first
    assert "2 questions without" in second


@pytest.mark.parametrize("start", [-7, 12, 1000])
def test_answer_that_begins_outside_the_context_does_not_stand(start):
    assert not squad.stands_at("A red fox ran.", "red fox", start)


# --- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "f1"),
    [
        ("Denver Broncos", "Denver Broncos", 1, 1),
        ("the Denver Broncos!", "Denver Broncos", 1, 1),
        ("  An  Apple-pie ", "applepie", 1, 1),
        ("Broncos", "Denver Broncos", 0, 2 / 3),
        ("in Santa Clara, California", "Santa Clara, California.", 0, 6 / 7),
        ("the the", "a", 1, 0),
        ("Carolina Panthers", "Denver Broncos", 0, 0),
        ("", "Denver", 0, 0),
        ("cat cat dog", "cat dog dog", 0, 2 / 3),
        ("theatre", "atre", 0, 0),
    ],
)
def test_scores_follow_the_official_script(prediction, answer, exact, f1):
    """Worked by hand from evaluate-v1.1.py: articles and punctuation go, words count with repeats."""
    assert squad.exact_match(prediction, answer) == exact
    assert squad.f1_score(prediction, answer) == pytest.approx(f1)


def test_best_of_several_answers_counts():
    rows = [
        squad.Example("1", "?", "c", ("Denver", "Denver Broncos"), (0, 0)),
        squad.Example("2", "?", "c", ("gold",), (0,)),
    ]
    score = squad.score_predictions(rows, ["Broncos", "Gold"])
    assert (score.exact_match, score.f1) == (50.0, pytest.approx(100 * (2 / 3 + 1) / 2))
    assert squad.score_predictions([], []) == squad.Score(0.0, 0.0)


def test_the_right_answer_to_a_question_that_has_none_is_none():
    """Worked by hand from evaluate-v2.0.py."""
    rows = [squad.Example("1", "?", "c", ("gold",), (0,))] + [squad.Example("2", "?", "c", (), ())] * 3
    score = squad.score_predictions(rows, ["gold coins", "", "silver", "the"])
    assert (score.exact_match, score.f1) == (50.0, pytest.approx(100 * (2 / 3 + 2) / 4))
    assert (score.has_answer_exact, score.has_answer_f1) == (0.0, pytest.approx(200 / 3))
    assert score.no_answer == pytest.approx(200 / 3)


def test_questions_without_an_answer_are_kept_when_asked_for(tmp_path):
    """Not those whose answer is misplaced: they do have one."""
    good, moved = {"text": "red fox", "answer_start": 2}, {"text": "fox", "answer_start": 2}
    content = {"data": nested(good)["data"] + nested(moved)["data"] + nested()["data"]}
    examples = squad.read_examples(write(tmp_path, content), with_negative=True)
    assert [row.answers for row in examples.rows] == [("red fox",), ()]
    assert (examples.misplaced, examples.unanswered) == (1, 1)


# --- the sample questions ----------------------------------------------------------------------


def load_sample(split: str) -> tuple[dict, squad.Examples]:
    path = RECIPES / f"sample_qa_{split}.json"
    return json.loads(path.read_text(encoding="utf-8")), squad.read_examples(path)


def test_sample_questions_are_whole_and_enough():
    contexts = []
    for split, least in (("train", 170), ("validation", 40)):
        document, examples = load_sample(split)
        assert document["license"] == "Apache-2.0, part of clusterctl"
        assert (examples.misplaced, examples.unanswered) == (0, 0)
        assert len(examples.rows) >= least
        assert len({row.id for row in examples.rows}) == len(examples.rows)
        contexts.append({row.context for row in examples.rows})
        for row in examples.rows:
            assert row.question.endswith("?")
            assert 60 <= len(row.context.split()) <= 120
    assert not contexts[0] & contexts[1]


def test_sample_answers_are_whole_words():
    for split in ("train", "validation"):
        for row in load_sample(split)[1].rows:
            end = row.starts[0] + len(row.answers[0])
            around = row.context[max(row.starts[0] - 1, 0) : row.starts[0]] + row.context[end : end + 1]
            assert not any(character.isalnum() for character in around), row.id


# --- with torch --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def stack() -> str:
    """A Python with torch and transformers."""
    if named := os.environ.get("CLUSTERCTL_STACK_PYTHON"):
        return named
    built = sorted(Path.home().glob(".cache/clusterctl/stacks/*/bin/python"), key=lambda p: p.stat().st_mtime)
    if not built:
        pytest.skip("no stack: set CLUSTERCTL_STACK_PYTHON to a Python with torch and transformers")
    return str(built[-1])


def start(
    stack: str,
    *arguments: object,
    ranks: int = 1,
    rank: int | None = None,
    port: int = 0,
    cwd: Path | None = None,
    **more: str,
):
    """The recipe as a process; with `rank` as one of several."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
    if rank is not None:
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    command = [stack, str(RECIPES / "question_answering.py"), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen) -> tuple[int, list[dict], str]:
    """Exit code, events and everything printed."""
    out, err = process.communicate(timeout=120)
    marked = [
        line.removeprefix("@clusterctl ") for line in out.splitlines() if line.startswith("@clusterctl ")
    ]
    return process.returncode, [json.loads(line) for line in marked], out + err


def run_ranks(stack: str, ranks: int, *arguments: object) -> list[dict]:
    """Events of a run that ends well, of all ranks; ranks = 1 is a single process without RANK."""
    if ranks == 1:
        results = [finish(start(stack, *arguments))]
    else:
        port = free_port()
        started = [start(stack, *arguments, ranks=ranks, rank=rank, port=port) for rank in range(ranks)]
        results = [finish(process) for process in started]
    for code, _, text in results:
        assert code == 0, text
    return [event for _, events, _ in results for event in events]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def only(events: list[dict], name: str) -> list[dict]:
    return [event for event in events if event["event"] == name]


def refuse(stack: str, *arguments: object, **more: str) -> tuple[int, str]:
    """Exit code and the one error of a run that must fail without a traceback."""
    code, events, text = finish(start(stack, *arguments, **more))
    assert "Traceback" not in text
    (error,) = only(events, "error")
    return code, error["text"]


@pytest.fixture(scope="session")
def questions(tmp_path_factory) -> Path:
    """Eleven sample questions of three paragraphs, and one whose answer stands elsewhere."""
    document, _ = load_sample("validation")
    document["data"] = document["data"][:3]
    del document["data"][2]["paragraphs"][0]["qas"][2:]
    document["data"][2]["paragraphs"][0]["qas"][1]["answers"][0]["answer_start"] += 1
    return write(tmp_path_factory.mktemp("questions"), document)


STEPS = ("--dropout", 0, "--bf16", "false", "--max_steps", 5, "--logging_steps", 1, "--learning_rate", 3e-4)
CUT = ("--max_seq_length", 96, "--doc_stride", 32, "--save_strategy", "no")


@pytest.fixture(scope="session")
def single(stack, questions, tmp_path_factory) -> tuple[Path, list[dict]]:
    """Output folder and events of a short run in one process."""
    output = tmp_path_factory.mktemp("single") / "out"
    files = ("--train_file", questions, "--validation_file", questions, "--output_dir", output)
    return output, run_ranks(stack, 1, *files, *STEPS, *CUT, "--per_device_train_batch_size", 6)


def losses(output: Path) -> list[float]:
    history = json.loads((output / "log_history.json").read_text())
    return [entry["loss"] for entry in history if "loss" in entry]


@pytest.mark.stack
def test_short_run_reports_and_leaves_a_whole_output(single):
    output, events = single
    assert [event["name"] for event in only(events, "phase")] == ["tokenise", "train", "save", "evaluate"]
    assert only(events, "ready") == [{"event": "ready", "rank": 0, "host": socket.gethostname()}]
    assert only(events, "progress")[-1]["step"] == 5
    assert "1 answers do not stand" in only(events, "warning")[0]["text"]
    (result,) = only(events, "result")
    metrics = json.loads((output / "metrics.json").read_text())
    assert result == {"event": "result", **metrics}
    assert (metrics["eval_questions"], metrics["steps"], metrics["dtype"]) == (11, 5, "fp32")
    assert metrics["train_features"] > 11, "long contexts give several windows"
    assert not list(output.glob(".*")), "nothing half written is left"


@pytest.mark.stack
@pytest.mark.stack
def test_questions_without_an_answer_are_trained_and_scored(stack, tmp_path):
    rows = [
        {
            **FLAT,
            "id": str(number),
            "answers": FOX_ANSWERS if number % 2 else {"text": [], "answer_start": []},
        }
        for number in range(8)
    ]
    path = write(tmp_path, rows)
    arguments = (
        "--train_file",
        path,
        "--validation_file",
        path,
        "--max_steps",
        2,
        "--version_2_with_negative",
    )
    events = run_ranks(stack, 1, *arguments, "--output_dir", tmp_path / "out")

    (result,) = only(events, "result")
    assert result["eval_questions"] == 8
    assert {"has_answer_f1", "has_answer_exact", "no_answer"} <= set(result)
    predictions = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert len(predictions) == 8


@pytest.mark.stack
def test_two_ranks_train_as_one_process_does(stack, single, questions, tmp_path):
    """Same global batches, no dropout: the same losses but for rounding; and one model, one answer."""
    files = ("--train_file", questions, "--output_dir", tmp_path / "out")
    run_ranks(stack, 2, *files, *STEPS, *CUT, "--per_device_train_batch_size", 3)
    assert losses(tmp_path / "out") == pytest.approx(losses(single[0]), rel=1e-4)
    assert len(losses(tmp_path / "out")) == 5


@pytest.mark.stack
def test_fewer_ranks_than_there_were_to_be_train_as_all_would(stack, single, questions, tmp_path):
    """Two ranks of three: six rows a step in two micro-batches, which have room for eight."""
    files = ("--train_file", questions, "--output_dir", "out", "--per_device_train_batch_size", 2)
    nodes = [tmp_path / "a", tmp_path / "b"]
    events = run_nodes(stack, nodes, *files, *STEPS, *CUT, CLUSTERCTL_RANKS="3")
    assert losses(nodes[0] / "out") == pytest.approx(losses(single[0]), rel=1e-4)
    assert (
        only(events, "warning")[-1]["text"]
        == "a step keeps its 6 rows on 2 ranks: 2 rows a rank in each of 2 micro-batches"
    )
    assert only(events, "result")[0]["global_batch"] == 6


@pytest.mark.stack
def test_two_ranks_give_the_answers_of_one(stack, single, questions, tmp_path):
    model, files = ("--model_name_or_path", single[0]), ("--validation_file", questions)
    events = run_ranks(stack, 2, *model, *files, *CUT, "--bf16", "false", "--output_dir", tmp_path)
    assert (tmp_path / "predictions.json").read_text() == (single[0] / "predictions.json").read_text()
    metrics = json.loads((single[0] / "metrics.json").read_text())
    assert only(events, "result")[0]["f1"] == metrics["f1"]


def run_nodes(stack: str, folders: list[Path], *arguments: object, **more: str) -> list[dict]:
    """Events of a run that ends well, each rank in a folder of its own as on nodes that share nothing."""
    port, ranks = free_port(), len(folders)
    started = []
    for rank, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        place = {"ranks": ranks, "rank": rank, "port": port, "cwd": folder, "LOCAL_RANK": "0"}
        started.append(start(stack, *arguments, **place, **more))
    results = [finish(process) for process in started]
    assert [code for code, _, _ in results] == [0] * ranks, results
    return [event for _, events, _ in results for event in events]


@pytest.mark.stack
def test_a_run_asked_for_a_checkpoint_goes_on_from_it_as_if_nothing_had_been(
    stack, single, questions, tmp_path
):
    """Asked on rank 1 alone; the checkpoint lies with rank 0, the next run's rank 0 has lost it."""
    files = ("--train_file", questions, "--output_dir", "out", "--per_device_train_batch_size", 3)
    request = tmp_path / "wanted"
    request.write_text("{}")
    nodes = [tmp_path / "a", tmp_path / "b"]
    asked = {"CLUSTERCTL_CHECKPOINT_REQUEST": str(request)}

    events = run_nodes(stack, nodes, *files, *STEPS, *CUT, "--save_only_model", **asked)
    saved = {"path": "out/checkpoint-2", "step": 2}
    assert [{**event, "event": 0} for event in only(events, "checkpoint")] == [{**saved, "event": 0}]
    assert only(events, "interrupted") == [{"event": "interrupted", **saved}]
    assert only(events, "result") == []
    names = {path.name for path in (nodes[0] / saved["path"]).iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "optimizer.pt", "scheduler.pt"} <= names
    assert not (nodes[0] / "out/model.safetensors").exists(), "no final model"
    assert not (nodes[1] / "out").exists(), "rank 0's node alone keeps checkpoints"

    nodes.reverse()
    nodes[1].rename(tmp_path / "c")
    nodes[1] = tmp_path / "c"
    again = ("--resume_from_checkpoint", "out/checkpoint-2")
    events = run_nodes(stack, nodes, *files, *STEPS, *CUT, *again)
    assert only(events, "progress")[0]["step"] == 3
    assert losses(nodes[0] / "out") == pytest.approx(losses(single[0]), rel=1e-4)
    assert len(losses(nodes[0] / "out")) == 5
    assert not list(nodes[0].glob("out/.*")), "nothing half written is left"

    run_nodes(stack, nodes[1:], *files, *STEPS, *CUT, *again)  # the same arguments on one rank
    assert losses(nodes[1] / "out") == pytest.approx(losses(single[0]), rel=1e-4)


@pytest.mark.stack
def test_a_checkpoint_that_no_node_has_is_named(stack, tmp_path):
    found, text = refuse(stack, "--output_dir", tmp_path, "--resume_from_checkpoint", "/none")
    assert found == 1
    assert "/none: no node has a whole checkpoint there" in text


@pytest.mark.stack
def test_output_loads_with_transformers_and_answers(stack, single):
    row = load_sample("validation")[1].rows[0]
    asked = json.dumps({"question": row.question, "context": row.context})
    answer = run_check(stack, "answer", str(single[0]), asked=asked)
    assert answer.strip()
    assert answer.strip() in row.context


def run_check(stack: str, *arguments: str, asked: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": str(RECIPES), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [stack, str(CHECKS), *arguments]
    done = subprocess.run(command, env=environment, input=asked, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.stack
def test_parts_of_the_recipe(stack):
    """Windows, batches, spans and arguments: see recipe_checks.py; one process, torch is slow to import."""
    run_check(stack, "parts")


@pytest.mark.stack
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--lerning_rate", "1"], 2, "unknown argument --lerning_rate; did you mean --learning_rate?"),
        (["--train_file", "absent.json"], 1, "absent.json: No such file or directory"),
        (["--model_name_or_path", "./absent"], 1, "./absent: no such folder"),
    ],
)
def test_mistake_of_the_user_ends_in_one_line(stack, tmp_path, arguments, code, said):
    found, text = refuse(stack, *arguments, "--output_dir", tmp_path)
    assert found == code
    assert said in text


@pytest.mark.stack
def test_model_in_output_dir_is_not_replaced_unasked(stack, single):
    _, text = refuse(stack, "--output_dir", single[0])
    assert "--overwrite_output_dir" in text
    assert (single[0] / "config.json").exists()


@pytest.mark.stack
def test_rank_that_does_not_come_is_named(stack, tmp_path):
    place = {"rank": 0, "ranks": 2, "port": free_port(), "CLUSTERCTL_RENDEZVOUS_TIMEOUT_S": "2"}
    code, text = refuse(stack, "--output_dir", tmp_path, **place)
    assert code == 1
    assert text.startswith("rank 1 of 2 did not reach 127.0.0.1:")


@pytest.mark.stack
def test_bare_mpirun_is_refused(stack, tmp_path):
    _, text = refuse(stack, "--output_dir", tmp_path, PMI_SIZE="2")
    assert "each rank would train alone" in text


@pytest.mark.stack
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_run_at_once(stack, tmp_path, number):
    process = start(stack, "--output_dir", tmp_path)
    process.stdout.readline()
    process.send_signal(number)
    code, _, text = finish(process)
    assert code == 128 + number
    assert "Traceback" not in text

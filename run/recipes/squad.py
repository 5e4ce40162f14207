"""Questions and answers in SQuAD's JSON: read, check, score. Standard library only.

Read are the nested form of SQuAD v1.1 (https://rajpurkar.github.io/SQuAD-explorer/), the flat form
that Hugging Face's run_qa writes ({"data": [{"id", "context", "question", "answers"}]}), a plain
JSON list of such rows, and JSON lines.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


class DataError(ValueError):
    """A data file cannot be used. The text is one line: which file, what is wrong, what next."""


@dataclass(frozen=True)
class Example:
    """One question about one context. `starts` are character offsets of `answers` in `context`.

    A question without answers cannot be answered from its context (SQuAD v2).
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Examples:
    """What a file holds, and what of it was left out.

    `misplaced` answers do not stand where their answer_start says; `unanswered` questions have no
    usable answer and are not among `rows`.
    """

    rows: tuple[Example, ...]
    misplaced: int = 0
    unanswered: int = 0

    def warnings(self, name: str) -> list[str]:
        """One line for each kind of thing left out; empty for a clean file."""
        lines = []
        if self.misplaced:
            lines.append(f"{name}: {self.misplaced} answers do not stand at their answer_start: skipped")
        if self.unanswered:
            lines.append(f"{name}: {self.unanswered} questions without a usable answer: skipped")
        return lines


def read_examples(path: Path, with_negative: bool = False) -> Examples:
    """Questions of a file.

    Raises DataError when the file is missing, empty, not JSON, not SQuAD's shape, or when no
    question in it can be used.
    """
    return select_examples(parse_rows(read_text(path), str(path)), str(path), with_negative)


def read_text(path: Path) -> str:
    """Text of a UTF-8 file that is not empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; give a readable file in SQuAD's JSON") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); give a file in SQuAD's JSON") from None
    if not text.strip():
        raise DataError(f"{path}: the file is empty; give a file in SQuAD's JSON")
    return text


def select_examples(rows: Iterable[Example], name: str, with_negative: bool = False) -> Examples:
    """Keep what can be learnt from and scored; count the rest.

    An answer whose text does not stand at its answer_start is dropped even where the text occurs
    elsewhere: which occurrence was meant is not ours to guess. With `with_negative` questions that have
    no answer are kept; those whose answers were all dropped are not, since they do have one.
    """
    kept: list[Example] = []
    misplaced = unanswered = 0
    for row in rows:
        usable = [(text, start) for text, start in zip(row.answers, row.starts, strict=True) if text.strip()]
        standing = [(text, start) for text, start in usable if stands_at(row.context, text, start)]
        misplaced += len(usable) - len(standing)
        if standing:
            texts, starts = zip(*standing, strict=True)
            kept.append(Example(row.id, row.question, row.context, texts, starts))
        elif with_negative and not row.answers:
            kept.append(row)
        else:
            unanswered += 1
    if not kept:
        raise DataError(
            f"{name}: none of its {unanswered} questions has a usable answer ({misplaced} answers do not "
            "stand at their answer_start); give text and answer_start of answers inside the context"
        )
    return Examples(tuple(kept), misplaced, unanswered)


def stands_at(context: str, text: str, start: int) -> bool:
    """Whether `text` is what `context` holds from character `start` on.

    >>> stands_at("red fox", "fox", 4), stands_at("red fox", "fox", -3)
    (True, False)
    """
    return start >= 0 and context.startswith(text, start)


# --- shapes of files ---------------------------------------------------------------------------


def parse_rows(text: str, name: str) -> list[Example]:
    """Every question of a file's text, usable or not. Raises DataError."""
    entries = parse_entries(text, name)
    read = nested_rows if is_nested(entries) else flat_rows
    try:
        rows = list(read(entries, name))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{name}: not SQuAD's shape ({what}); {EXPECTED}") from None
    if not rows:
        raise DataError(f"{name}: no questions in it; {EXPECTED}")
    return rows


EXPECTED = (
    'expected {"data": [{"paragraphs": [{"context", "qas"}]}]}, or rows of "id", "context", "question"'
    ' and "answers"'
)


def parse_entries(text: str, name: str) -> Sequence[object]:
    """The list under "data", a plain list, or the lines of a JSON-lines file."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        return parse_lines(text, name, error)
    entries = document.get("data", [document]) if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise DataError(f"{name}: not SQuAD's shape; {EXPECTED}")
    return entries


def parse_lines(text: str, name: str, whole: json.JSONDecodeError) -> list[object]:
    """One JSON object a line; `whole` is why the text as a whole is no JSON document."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        return [json.loads(line) for line in lines]
    except json.JSONDecodeError:
        where = f"line {whole.lineno} column {whole.colno}"
        raise DataError(f"{name}: not JSON ({whole.msg}, {where}); give a file in SQuAD's JSON") from None


def is_nested(entries: Sequence[object]) -> bool:
    return bool(entries) and isinstance(entries[0], dict) and "paragraphs" in entries[0]


def nested_rows(entries: Sequence[object], name: str) -> Iterator[Example]:
    """SQuAD's own form: articles, paragraphs, questions."""
    for article in map(as_dict, entries):
        for paragraph in map(as_dict, as_list(article["paragraphs"])):
            for question in map(as_dict, as_list(paragraph["qas"])):
                answers = [as_dict(answer) for answer in as_list(question["answers"])]
                texts = [answer["text"] for answer in answers]
                starts = [answer["answer_start"] for answer in answers]
                yield make_example(question, paragraph["context"], texts, starts, name)


def flat_rows(entries: Sequence[object], name: str) -> Iterator[Example]:
    """Rows as the Hub's squad data set has them: answers = {"text": [...], "answer_start": [...]}."""
    for row in map(as_dict, entries):
        answers = as_dict(row["answers"])
        yield make_example(
            row, row["context"], as_list(answers["text"]), as_list(answers["answer_start"]), name
        )


def make_example(
    row: dict[str, object], context: object, texts: Sequence[object], starts: Sequence[object], name: str
) -> Example:
    """An Example with its types checked. Raises DataError that names the question."""
    label = str(row.get("id", "?"))
    if len(texts) != len(starts):
        raise DataError(
            f"{name}: question {label} has {len(texts)} answer texts and {len(starts)} answer_starts; "
            "give one answer_start for each text"
        )
    checked = [as_text(text, f"answer of question {label}") for text in texts]
    offsets = [as_offset(start, f"answer_start of question {label}") for start in starts]
    question = as_text(row["question"], f"question {label}")
    context = as_text(context, f"context of question {label}")
    return Example(label, question, context, tuple(checked), tuple(offsets))


def as_dict(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {str(value)[:40]!r}")
    return value


def as_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, not {str(value)[:40]!r}")
    return value


def as_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the {what} is not text")
    return value


def as_offset(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"the {what} is not a whole number")
    return value


# --- scores ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """Means over questions in percent; the last three as evaluate-v2.0.py names them, None in SQuAD v1.1."""

    exact_match: float
    f1: float
    has_answer_exact: float | None = None
    has_answer_f1: float | None = None
    no_answer: float | None = None


def score_predictions(examples: Sequence[Example], predictions: Sequence[str]) -> Score:
    """SQuAD's scores: for each question the best over its true answers; 0 for no questions.

    The rules are those of the official evaluate-v1.1.py, and of evaluate-v2.0.py for questions without an
    answer: right is only to give none.
    """
    pairs = list(zip(examples, predictions, strict=True))
    exact = [best(exact_match, text, example.answers) for example, text in pairs if example.answers]
    f1 = [best(f1_score, text, example.answers) for example, text in pairs if example.answers]
    silent = [float(not normalise_answer(text)) for example, text in pairs if not example.answers]
    scores = Score(percent([*exact, *silent]), percent([*f1, *silent]))
    if not silent:
        return scores
    return Score(scores.exact_match, scores.f1, percent(exact), percent(f1), percent(silent))


def percent(values: Sequence[float]) -> float:
    """Their mean; 0 for none.

    >>> percent([1.0, 0.0]), percent([])
    (50.0, 0.0)
    """
    return 100 * sum(values) / max(len(values), 1)


def best(metric: Callable[[str, str], float], prediction: str, answers: Iterable[str]) -> float:
    return max(metric(prediction, answer) for answer in answers)


def normalise_answer(text: str) -> str:
    """Lower case without ASCII punctuation, articles and extra white space.

    >>> normalise_answer("The  Eiffel-Tower.")
    'eiffeltower'
    """
    text = "".join(character for character in text.lower() if character not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


PUNCTUATION = frozenset(string.punctuation)


def exact_match(prediction: str, answer: str) -> float:
    return float(normalise_answer(prediction) == normalise_answer(answer))


def f1_score(prediction: str, answer: str) -> float:
    """Harmonic mean of precision and recall of words.

    >>> f1_score("the red fox", "red foxes")
    0.5
    """
    predicted, true = normalise_answer(prediction).split(), normalise_answer(answer).split()
    common = sum((Counter(predicted) & Counter(true)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(true)
    return 2 * precision * recall / (precision + recall)

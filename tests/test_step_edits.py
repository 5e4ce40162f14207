"""Edits of somebody else's file: every other line kept to the byte, whatever the file and the edit."""

import re
import stat
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from provision.block import remove_block, set_block
from provision.errors import SettingsError
from provision.line import remove_line, set_line
from provision.step import Status
from provision.steps import Absent, AuthorizedKey, Block, Command, Download, Line, Mount, Sysctl, TextFile
from provision.steps.texts import unified
from tests.step_cases import CHECK, ME, run, statuses

# Endings of several systems, separators that str.splitlines() takes for line ends, bytes that are no UTF-8.
content = st.text(alphabet="ab#= \t\x0b\x0c\x85\u2028é\udce9🙂", max_size=8)
endings = st.sampled_from(["\n", "\n", "\r\n"])
texts = st.builds(
    lambda rows, last: "".join(line + end for line, end in rows) + last,
    st.lists(st.tuples(content, endings), max_size=6),
    content | content.map(lambda text: text + "\r") | st.just(""),
)
lines = content.filter(str.strip)
patterns = st.sampled_from(["^a", "b$", "^#?a=", "é", "=", "^$", ".", "^[ab]+ *$", "(?i)B", r"^\s"])
blocks = st.lists(st.text(alphabet="xyz é", max_size=6), max_size=4)


def bare(text: str) -> list[str]:
    """The lines without their endings."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def with_newline(text: str) -> str:
    """The text with the newline that its last line may lack, in its own way to end a line."""
    if not text or text.endswith("\n"):
        return text
    if text.endswith("\r"):  # half of it is there
        return text + "\n"
    return text + ("\r\n" if text.split("\n")[0].endswith("\r") else "\n")


@given(texts, lines)
@example("a\r", "b")
@example("a", "b")
def test_a_line_set_and_removed_leaves_the_text_as_it_was(text, line):
    assume(line not in bare(text))

    assert remove_line(set_line(text, line), line) == with_newline(text)


@given(texts, lines, patterns)
def test_setting_a_line_twice_is_setting_it_once(text, line, pattern):
    match = re.compile(pattern)
    once = set_line(text, line, match)

    assert set_line(once, line, match) == once
    assert remove_line(remove_line(text, line, match), line, match) == remove_line(text, line, match)


@given(texts, lines, patterns)
def test_lines_that_do_not_match_are_kept_to_the_byte_and_in_order(text, line, pattern):
    match = re.compile(pattern)

    def others(some: str) -> list[str]:
        rows = re.findall(r"[^\n]*\n|[^\n]+", some)
        bares = [row.removesuffix("\n").removesuffix("\r") for row in rows]
        return [row for row, each in zip(rows, bares, strict=True) if each != line and not match.search(each)]

    assert others(set_line(text, line, match)) in (others(text), others(with_newline(text)))
    assert others(remove_line(text, line, match)) == others(text)


@given(texts, lines, patterns)
@example("\r", "=", r"^\s")
def test_after_it_the_line_stands_there_and_no_other_that_matches(text, line, pattern):
    match = re.compile(pattern)
    after = bare(set_line(text, line, match))

    assert line in after
    assert not [each for each in after if each != line and match.search(each)]
    assert line not in bare(remove_line(text, line, match))


@given(texts, lines, patterns)
def test_a_line_takes_the_place_and_the_ending_of_the_first_that_matches(text, line, pattern):
    match = re.compile(pattern)
    assume(line not in bare(text))
    at = next((index for index, each in enumerate(bare(text)) if match.search(each)), None)
    assume(at is not None)

    after = set_line(text, line, match)
    assert bare(after)[at] == line
    assert after.split("\n")[at].endswith("\r") == text.split("\n")[at].endswith("\r")


@given(texts, blocks, st.booleans())
@example("no newline at the end", ["x"], False)
@example("a\r", ["x"], False)
def test_a_block_set_and_removed_leaves_the_text_as_it_was(text, block, at_start):
    before = text if at_start else with_newline(text)

    assert remove_block(set_block(text, "mesh", block, at_start=at_start), "mesh") == before


@given(texts, blocks, blocks, st.booleans())
def test_setting_a_block_twice_is_setting_it_once(text, first, second, at_start):
    once = set_block(text, "mesh", second, at_start=at_start)

    assert set_block(once, "mesh", second, at_start=at_start) == once
    assert set_block(set_block(text, "mesh", first, at_start=at_start), "mesh", second) == once


def test_a_block_speaks_the_line_endings_of_its_file_and_is_found_again_in_others():
    crlf = set_block("theirs\r\n", "mesh", ["ours"])
    assert crlf.count("\r\n") == crlf.count("\n") == 4

    edited = "mine\n" + crlf
    assert set_block(edited, "mesh", ["ours"]).count(">>> clusterctl") == 1
    assert remove_block(edited, "mesh") == "mine\ntheirs\r\n"


def test_bytes_that_are_no_utf8_and_the_mode_survive_an_edit(tmp_path):
    path = tmp_path / "latin1.conf"
    before = b"caf\xe9\r\n\x00\xff\xfe\x0c\nPort 22\nlast \xe9"
    path.write_bytes(before)
    path.chmod(0o604)
    steps = [Line(str(path), "Port 2222", "^Port "), Block(str(path), "mesh", ("x",))]

    assert statuses(run(steps)) == [Status.CHANGED] * 2
    edited = path.read_bytes()
    assert edited.startswith(before.replace(b"Port 22", b"Port 2222") + b"\r\n# >>> clusterctl mesh")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert statuses(run(steps)) == [Status.OK] * 2

    run([Line(str(path), "Port 22", "^Port "), Block(str(path), "mesh", (), present=False)])
    assert path.read_bytes() == before + b"\r\n"


def test_extended_attributes_survive_an_edit(tmp_path):
    import os

    path = tmp_path / "file"
    path.write_text("a\n")
    os.setxattr(path, "user.origin", b"elsewhere")

    run([Line(str(path), "b")])
    assert os.getxattr(path, "user.origin") == b"elsewhere"


def test_a_line_says_what_differs_and_shows_it(tmp_path):
    path = tmp_path / "sshd_config"
    path.write_text("#Port 22\nPort 2200\nUseDNS no\n")
    step = Line(str(path), "Port 2222", "^#?Port ")

    (result,) = run([step], mode=CHECK)
    assert result.detail == "another line stands there"
    assert [line for line in result.diff.splitlines()[3:] if line[0] in "+-"] == [
        "-#Port 22", "-Port 2200", "+Port 2222",
    ]  # fmt: skip
    run([step])
    assert path.read_text() == "Port 2222\nUseDNS no\n"


def test_a_diff_shows_endings_and_a_missing_last_newline():
    assert unified("a\r\nb", "a\nb\n", "f").splitlines()[3:] == [
        "-a^M", "-b", "\\ No newline at end of file", "+a", "+b",
    ]  # fmt: skip


def test_a_secret_is_in_no_diff_no_representation_no_command_and_no_copy(tmp_path):
    path = tmp_path / "token"
    path.write_text("hunter1\n")
    step = TextFile(str(path), "hunter2\n", ME, "600", secret=True)

    (result,) = run([step], mode=CHECK)
    assert "hunter" not in f"{result}{step!r}{step.probe}{step.diff('root 600')}"
    run([step])
    assert path.read_text() == "hunter2\n"
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_a_template_fills_every_name_and_names_the_one_without_a_value():
    step = TextFile.from_template("/etc/x", "${host}_$port costs $$5\n", {"host": "n1", "port": 22})
    assert step.content == "n1_22 costs $5\n"

    with pytest.raises(SettingsError, match=r"/etc/x: line 2 of its template has \$hots; values are: host"):
        TextFile.from_template("/etc/x", "$host $$hots\n$hots\n", {"host": "n1"})
    with pytest.raises(SettingsError, match=r"line 2, col 1; write \$\$ for a \$"):
        TextFile.from_template("/etc/x", "a\n$(hostname)\n", {})


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKey"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Line("/etc/x", "two\nlines"),
        lambda: Line("/etc/x", " "),
        lambda: Line("/etc/x", "a", match="("),
        lambda: AuthorizedKey("ann", "ssh-ed25519"),
        lambda: AuthorizedKey("ann", f"{KEY}\n{KEY}"),
        lambda: Command("c", "true"),
        lambda: Command("c", "true", unless="true", creates="/x"),
        lambda: Download("https://host/x", "/x", "abc"),
        lambda: Download('file:///x"', "/x", "0" * 64),
        lambda: Mount("s", "relative", "nfs"),
        lambda: Mount("s", "/mnt/", "nfs"),
        lambda: Mount("", "/mnt", "nfs"),
        lambda: Mount("s", "/mnt", "nfs", ("ro,noatime",)),
        lambda: Sysctl("somaxconn", "1"),
        lambda: Sysctl("net./../x", "1"),
        lambda: TextFile("/x", "", mode="rw-").drift("root 644\n"),
        *[lambda path=p: Absent(path) for p in ("/", "/etc", "/usr/lib", "/home/ann", "x", "/a/../b", "")],
    ],
)  # fmt: skip
def test_a_step_that_cannot_be_meant_is_refused_when_it_is_written(make):
    with pytest.raises(SettingsError):
        make()


def test_a_link_does_not_take_the_place_of_a_file(tmp_path):
    from provision.steps import Symlink

    path = Path(tmp_path / "theirs")
    path.write_text("x")
    (result,) = run([Symlink(str(path), "target")])

    assert result.status is Status.FAILED
    assert "remove it first" in result.detail
    assert path.read_text() == "x"

"""Managed blocks: every byte that is not ours stays, whatever the text."""

from hypothesis import example, given
from hypothesis import strategies as st

from provision.block import remove_block, set_block

texts = st.text(alphabet="ab# >\n", max_size=60)
lines = st.lists(st.text(alphabet="xyz ", max_size=10), max_size=4)


@given(texts, lines, st.booleans())
@example("no newline at the end", ["x"], False)
def test_a_block_put_in_and_taken_out_leaves_the_text_as_it_was(text, block, at_start):
    with_newline = text if not text or text.endswith("\n") or at_start else text + "\n"

    assert remove_block(set_block(text, "mesh", block, at_start=at_start), "mesh") == with_newline


@given(texts, lines, lines, st.booleans())
def test_setting_a_block_twice_is_setting_it_once(text, first, second, at_start):
    once = set_block(text, "mesh", second, at_start=at_start)

    assert set_block(set_block(text, "mesh", first, at_start=at_start), "mesh", second) == once
    assert set_block(once, "mesh", second) == once


@given(texts, lines, lines)
def test_blocks_of_two_clusters_do_not_disturb_each_other(text, first, second):
    both = set_block(set_block(text, "one", first), "two", second)

    assert remove_block(both, "two") == set_block(text, "one", first)


def test_a_block_whose_end_was_cut_off_is_replaced_without_losing_the_users_lines():
    cut = set_block("", "mesh", ["a"]).splitlines(keepends=True)[0] + "mine\n"

    assert set_block(cut, "mesh", ["b"]).endswith("mine\n")

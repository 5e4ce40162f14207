"""Managed blocks beside each other, and damaged ones. That every other byte stays: test_step_edits.py."""

from hypothesis import given
from hypothesis import strategies as st

from provision.block import remove_block, set_block

texts = st.text(alphabet="ab# >\n", max_size=60)
lines = st.lists(st.text(alphabet="xyz ", max_size=10), max_size=4)


@given(texts, lines, lines)
def test_blocks_of_two_clusters_do_not_disturb_each_other(text, first, second):
    both = set_block(set_block(text, "one", first), "two", second)

    assert remove_block(both, "two") == set_block(text, "one", first)


def test_a_block_whose_end_was_cut_off_is_replaced_without_losing_the_users_lines():
    cut = set_block("", "mesh", ["a"]).splitlines(keepends=True)[0] + "mine\n"

    assert set_block(cut, "mesh", ["b"]).endswith("mine\n")

"""N-gram drafts: copies of what followed the last tokens before; a smaller draft is a larger one cut."""

from __future__ import annotations

from drafted import cut, paths, proposal
from hypothesis import example, given
from hypothesis import strategies as st

from dflash.drafters.ngram import NgramDrafter

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def expected_branches(trunk, length, count):
    """Longest suffix first, latest occurrence first, each first token once."""
    chosen = {}
    for size in (3, 2, 1):
        for place in range(len(trunk) - size - 1, -1, -1):
            if trunk[place : place + size] == trunk[-size:]:
                start = place + size
                chosen.setdefault(trunk[start], trunk[start : start + length])
    return list(chosen.values())[:count]


@given(TOKENS, st.integers(1, 6), st.integers(1, 4))
@example([1], 3, 2)
@example([1, 1], 3, 2)
@example([1, 1, 1, 1], 3, 2)
def test_branches_follow_the_plain_rule(trunk, length, branches):
    found = paths(proposal(NgramDrafter(), trunk, length, branches))
    assert found == expected_branches(trunk, length, branches)


@given(TOKENS, st.integers(0, 6), st.integers(1, 4))
def test_a_smaller_draft_is_the_larger_one_cut(trunk, length, branches):
    whole = proposal(NgramDrafter(), trunk, 6, 4)
    small = proposal(NgramDrafter(), trunk, length, branches)
    assert paths(small) == (cut(paths(whole), length, branches) if length else [])
    firsts = [c for c, parent in zip(whole.confidence, whole.parents, strict=True) if parent < 0]
    mine = [c for c, parent in zip(small.confidence, small.parents, strict=True) if parent < 0]
    assert mine == (firsts[:branches] if length else [])

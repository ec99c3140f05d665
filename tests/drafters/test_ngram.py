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
    stated = {tuple(line): share for line, share in zip(lines(whole), whole.confidence, strict=True)}
    assert [stated[tuple(line)] for line in lines(small)] == small.confidence


def lines(found):
    """Tokens from the anchor to each node."""
    known = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        known.append([*(known[parent] if parent >= 0 else []), token])
    return known


@given(TOKENS, st.integers(1, 4), st.integers(1, 3))
def test_a_confidence_is_the_share_of_occurrences_that_agree_so_far(trunk, length, branches):
    found = proposal(NgramDrafter(), trunk, length, branches)
    sizes = {}
    for size in (1, 2, 3):
        for place in range(len(trunk) - size):
            if trunk[place : place + size] == trunk[-size:]:
                sizes[trunk[place + size]] = size
    for line, share in zip(lines(found), found.confidence, strict=True):
        size, before = sizes[line[0]], line[:-1]
        ends = [at + size for at in range(len(trunk) - size) if trunk[at : at + size] == trunk[-size:]]
        same = [at + len(before) for at in ends if trunk[at : at + len(before)] == before]
        following = [trunk[at] for at in same if at < len(trunk)]
        assert share == following.count(line[-1]) / len(following)

"""Suffix drafts: everything drafted has been seen after the same suffix; the most frequent goes first."""

from __future__ import annotations

import hashlib

import numpy as np
from drafted import cut, paths, proposal
from hypothesis import example, given
from hypothesis import strategies as st

from dflash.drafters.suffix import SuffixDrafter, SuffixStore

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
STORES = st.lists(st.lists(st.integers(0, 3), max_size=20), max_size=3)
SHAPE = st.tuples(st.integers(0, 6), st.integers(1, 4))


def drafter(sequences):
    return SuffixDrafter(SuffixStore.of(sequences))


def occurrences(sequences, suffix):
    """What followed each occurrence of a suffix, in the order of the text."""
    size = len(suffix)
    return [
        text[place + size :]
        for text in sequences
        for place in range(len(text) - size)
        if text[place : place + size] == suffix
    ]


def expected_chain(sequences, trunk, length):
    """The first branch, by the plain rule: the longest suffix, then the most frequent, then the latest."""
    for size in range(min(len(trunk), 32), 0, -1):
        after = occurrences([*sequences, trunk], trunk[-size:])
        if after:
            break
    else:
        return []
    chain = []
    while len(chain) < length and (after := [rest for rest in after if rest]):
        heads = [rest[0] for rest in after]
        latest = {head: place for place, head in enumerate(heads)}
        best = max(latest, key=lambda head: (heads.count(head), latest[head]))
        chain.append(best)
        after = [rest[1:] for rest in after if rest[0] == best]
    return chain


@given(TOKENS, STORES, SHAPE)
@example([1], [], (3, 2))
@example([1], [[]], (3, 2))
@example([1], [[], [1, 2], [1]], (3, 2))
@example([1, 1, 1, 1], [], (6, 4))
def test_the_first_branch_follows_the_plain_rule(trunk, sequences, shape):
    found = paths(proposal(drafter(sequences), trunk, *shape))
    chain = expected_chain(sequences, trunk, shape[0])
    assert found[:1] == ([chain] if chain else [])


@given(TOKENS, STORES, SHAPE)
def test_every_chain_has_been_seen_after_the_last_token(trunk, sequences, shape):
    found = paths(proposal(drafter(sequences), trunk, *shape))
    for path in found:
        line = [trunk[-1], *path]
        assert any(
            text[place : place + len(line)] == line
            for text in (*sequences, trunk)
            for place in range(len(text))
        )
    assert len({path[0] for path in found}) == len(found) <= shape[1]
    assert all(len(path) <= shape[0] for path in found)


@given(TOKENS, STORES, SHAPE)
def test_a_smaller_draft_is_the_larger_one_cut(trunk, sequences, shape):
    whole = paths(proposal(drafter(sequences), trunk, 6, 4))
    length, branches = shape
    expected = cut(whole, length, branches) if length else []
    assert paths(proposal(drafter(sequences), trunk, length, branches)) == expected


@given(TOKENS, STORES, TOKENS)
def test_a_draft_knows_its_own_trunk_and_the_frozen_store_alone(trunk, sequences, other):
    shared = drafter(sequences)
    before = shared.store.tokens.copy()
    alone = proposal(shared, trunk, 4, 3)
    proposal(shared, other, 4, 3, lane=1)
    assert proposal(shared, trunk, 4, 3) == alone
    assert np.array_equal(shared.store.tokens, before)


def test_the_most_frequent_continuation_wins_and_its_share_is_the_confidence():
    trunk = [7, 1, 7, 2, 7, 1, 7, 3, 7]
    found = proposal(drafter([]), trunk, 1, 3)
    assert found.tokens == [1, 3, 2]
    assert found.confidence == [0.5, 0.25, 0.25]
    assert found.log_q == [0.0] * 3


def test_a_longer_suffix_beats_a_more_frequent_short_one():
    trunk = [5, 6, 9, 6, 1, 6, 1, 6, 1, 5, 6]
    assert paths(proposal(drafter([]), trunk, 1, 2)) == [[9], [1]]


@given(STORES, STORES)
def test_the_digest_in_the_header_is_that_of_the_store(one, two):
    mine, theirs = (drafter(each).header() for each in (one, two))
    assert (mine["store_digest"] == theirs["store_digest"]) == (one == two)
    assert mine["store_tokens"] == sum(map(len, one))
    line = np.array([token for text in one for token in [*text, -1]], dtype="<i8")
    expected = hashlib.sha256(line.tobytes()).hexdigest() if one else None
    assert mine["store_digest"] == expected

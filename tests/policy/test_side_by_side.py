"""What is computed over stretches, or over chains at once, is what one row after the other gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.draftfile.tree_shape import chains
from dflash.policy import noise
from dflash.policy.rounds import Rounds

EMPTY = st.lists(st.one_of(st.just((0, False)), st.tuples(st.integers(0, 3), st.just(True))), min_size=1)
ROWS = EMPTY | st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=300)


@given(ROWS)
def test_rounds_taken_hold_the_slots_of_their_rows(rows):
    counts, kept = (np.array(column) for column in zip(*rows, strict=True))
    parents = [node - 1 for own in counts for node in range(own)]
    slots = np.arange(len(parents) + len(counts))
    rounds = Rounds.build(
        counts,
        np.array(parents, dtype=np.int16),
        np.arange(len(counts)),
        np.zeros((len(counts), 2), dtype=np.uint32),
        {"slot_choice": slots},
    )
    taken = rounds.take(np.flatnonzero(kept))
    offsets = np.concatenate(([0], np.cumsum(counts + 1)))
    expected = [slots[offsets[row] : offsets[row + 1]].tolist() for row in np.flatnonzero(kept)]
    assert taken["slot_choice"].tolist() == sum(expected, [])
    assert taken.trees.counts.tolist() == counts[kept].tolist()
    assert taken.anchor_position.tolist() == np.flatnonzero(kept).tolist()


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 40), st.randoms(use_true_random=False), st.booleans())
def test_chains_agree_with_their_slots_as_one_by_one(width, count, random, even):
    widths = [width] * count if even else [random.randrange(width + 1) for _ in range(count)]
    nodes, slots = sum(widths), sum(widths) + count
    token = [random.randrange(-1, 2) for _ in range(nodes)]
    choice = np.array([random.randrange(-1, 2) for _ in range(slots)])
    parents = [node - 1 for own in widths for node in range(own)]
    rounds = Rounds.build(
        np.array(widths),
        np.array(parents, dtype=np.int16),
        np.zeros(count, dtype=np.int64),
        np.zeros((count, 2), dtype=np.uint32),
        {"node_token": np.array(token, dtype=np.int32)},
    )
    expected, node, slot = [], 0, 0
    for own in widths:
        same = [token[node + at] >= 0 and token[node + at] == choice[slot + at] for at in range(own)]
        expected.append(same.index(False) if False in same else own)
        node, slot = node + own, slot + own + 1
    assert rounds.leading_equal(choice).tolist() == expected


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 29), st.integers(-1, 4))
def test_one_odd_parent_is_no_chain(width, count, place, parent):
    parents = np.tile(np.arange(-1, width - 1), count).astype(np.int16)
    offsets = np.arange(count + 1) * width
    assert chains(offsets, parents)
    changed = parents.copy()
    changed[place % len(parents)] = parent
    assert chains(offsets, changed) == (changed == parents).all()


KEYS = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=8)


@given(KEYS)
def test_keys_are_parsed_together_as_one_by_one(keys):
    words = noise.rng_key_words([noise.rng_key_hex(key) for key in keys])
    assert list(map(tuple, words.tolist())) == keys


@pytest.mark.parametrize("odd", ["", "0" * 15, "0" * 17, "0" * 14 + "  ", "xyz" * 5 + "0", "é" * 16])
def test_one_odd_key_among_many_is_refused(odd):
    good = noise.rng_key_hex((1, 2))
    for texts in ([odd], [good, odd], [odd, good], [good, odd, odd]):
        with pytest.raises(ValueError):
            noise.rng_key_words(texts)

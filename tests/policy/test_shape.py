from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash.policy.rounds import Rounds
from dflash.policy.shape import Shape
from dflash.policy.topology import along_path, path_sum, segment_max

TREES = st.lists(st.lists(st.integers(-1, 7), max_size=8), min_size=1, max_size=4).map(
    lambda batch: [[min(parent, node - 1) for node, parent in enumerate(tree)] for tree in batch]
)
BOUND = st.none() | st.integers(1, 4)


def rounds_of(trees, expand=lambda node: True):
    nodes = sum(map(len, trees))
    slots = nodes + len(trees)
    lse = np.where([expand(slot) for slot in range(slots)], 0.0, np.nan)
    rows = int((~np.isnan(lse)).sum())
    return Rounds.build(
        np.array([len(tree) for tree in trees]),
        np.array([parent for tree in trees for parent in tree], dtype=np.int64),
        np.arange(len(trees)),
        np.arange(2 * len(trees), dtype=np.uint32).reshape(-1, 2),
        {
            "node_token": np.arange(nodes),
            "slot_choice": np.arange(slots),
            "draft_lse": lse,
            "draft_topk_token": np.arange(2 * rows),
        },
    )


def paths(tree):
    """Sibling ranks from the anchor to every node."""
    found = []
    for node, parent in enumerate(tree):
        found.append((*(found[parent] if parent >= 0 else ()), tree[:node].count(parent)))
    return found


def kept(tree, length, branches):
    """Nodes that a cut keeps, path by path."""
    ranks = paths(tree)
    inside = [node for node, path in enumerate(ranks) if length is None or len(path) <= length]
    leaves = sorted(ranks[node] for node in inside if node not in {tree[other] for other in inside})
    used = leaves if branches is None else leaves[:branches]
    return [node for node in inside if any(leaf[: len(ranks[node])] == ranks[node] for leaf in used)]


@given(TREES, BOUND, BOUND)
def test_a_cut_keeps_the_first_paths_down_to_a_depth(trees, length, branches):
    whole = rounds_of(trees)
    cut = Shape(length, branches).cut(whole)
    offset = 0
    for row, tree in enumerate(trees):
        nodes = kept(tree, length, branches)
        begin, end = cut.node_offsets[row : row + 2]
        assert cut.node_index[begin:end].tolist() == nodes
        assert cut["node_token"][begin:end].tolist() == [offset + node for node in nodes]
        parents = [tree[node] for node in nodes]
        assert cut.node_parent[begin:end].tolist() == [nodes.index(p) if p >= 0 else -1 for p in parents]
        slots = cut["slot_choice"][begin + row : end + row + 1].tolist()
        assert slots == [offset + row, *(offset + row + node + 1 for node in nodes)]
        offset += len(tree)


@given(TREES, BOUND, BOUND)
def test_a_cut_keeps_the_noise_of_every_node(trees, length, branches):
    whole = rounds_of(trees)
    cut = Shape(length, branches).cut(whole)
    flat = cut.node_index + whole.node_offsets[cut.node_round]
    for name in ("path_hash", "node_depth", "node_rank"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name)[flat])


@given(TREES, BOUND)
def test_a_cut_keeps_the_expansions_of_the_kept_slots(trees, length):
    whole = rounds_of(trees, expand=lambda slot: slot % 3 != 1)
    cut = Shape(length).cut(whole)
    row = cut.expanded_row
    for slot, choice in enumerate(cut["slot_choice"]):
        if row[slot] < 0:
            assert choice % 3 == 1
        else:
            expected = whole["draft_topk_token"][whole.expanded_row[choice]]
            assert cut["draft_topk_token"][row[slot]].tolist() == expected.tolist()


@given(TREES, st.data())
def test_taking_rounds_is_choosing_among_them(trees, data):
    whole = rounds_of(trees)
    rows = data.draw(st.lists(st.integers(0, len(trees) - 1), max_size=5))
    taken = whole.take(np.array(rows, dtype=np.int64))
    assert len(taken) == len(rows)
    for place, row in enumerate(rows):
        begin, end = taken.node_offsets[place : place + 2]
        assert taken.node_parent[begin:end].tolist() == trees[row]
        assert taken.anchor_position[place] == row
        assert taken.key[place].tolist() == [2 * row, 2 * row + 1]


def test_no_bound_cuts_nothing():
    whole = rounds_of([[-1, 0, -1], []])
    assert Shape().cut(whole) is whole
    assert Shape().whole
    assert not Shape(length=0).whole
    assert len(Shape(length=0).cut(whole).node_parent) == 0


def test_open_bounds_are_filled():
    assert Shape(2).filled(Shape(5, 3)) == Shape(2, 3)


@given(TREES, st.data())
def test_array_functions_equal_loops(trees, data):
    rounds = rounds_of(trees)
    count = len(rounds.node_parent)
    ok = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool)
    numbers = data.draw(st.lists(st.integers(-9, 9), min_size=count, max_size=count))
    value = np.array(numbers, dtype=np.float64)
    alive, total = [], []
    for node, parent in enumerate(rounds.parent_node.tolist()):
        alive.append(bool(ok[node]) and (parent < 0 or alive[parent]))
        total.append(value[node] + (total[parent] if parent >= 0 else 0.0))
    assert along_path(rounds.parent_node, ok).tolist() == alive
    assert path_sum(rounds.parent_node, value).tolist() == total
    best = segment_max(value.astype(np.int64), rounds.node_offsets, -99)
    bounds = list(zip(rounds.node_offsets, rounds.node_offsets[1:], strict=False))
    assert best.tolist() == [max(value[a:b], default=-99) for a, b in bounds]

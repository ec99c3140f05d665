"""Which things of two files are the same thing: keys with repeats, lists, and the nodes of trees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.diff.flat import Block, Flat
from dflash.policy.noise import I64
from dflash.policy.topology import Bool, depths

_TOKENS = 2**32


class NodePairs(NamedTuple):
    """Nodes with the same tokens on the path from the anchor, the k-th of equal siblings with the k-th.

    Attributes:
        pair: `[M]` the pair of rows.
        a, b: `[M]` the node's index in its row on either side.
        count_a, count_b: `[P]` all nodes of the rows.
    """

    pair: I64
    a: I64
    b: I64
    count_a: I64
    count_b: I64


def match(a: I64, b: I64) -> tuple[I64, I64]:
    """Return the places of equal keys, the k-th occurrence of a key with the k-th, in the order of `a`."""
    if np.array_equal(a, b):
        return np.arange(len(a)), np.arange(len(a))
    _, number = np.unique(np.concatenate((a, b)), return_inverse=True)
    first, second = number[: len(a)], number[len(a) :]
    ranks = _occurrence(first), _occurrence(second)
    width = 1 + max(int(rank.max(initial=0)) for rank in ranks)
    _, at_a, at_b = np.intersect1d(
        first * width + ranks[0], second * width + ranks[1], assume_unique=True, return_indices=True
    )
    order = np.argsort(at_a)
    return at_a[order], at_b[order]


def _occurrence(keys: I64) -> I64:
    """How many equal keys stand before each one."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))
    rank = np.empty(len(keys), dtype=np.int64)
    rank[order] = np.arange(len(keys)) - start
    return rank


def spread_rows(lengths: I64) -> tuple[I64, I64]:
    """Return the row of every element and its place in the row, for rows of the lengths given."""
    counts = np.maximum(lengths, 0)
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def equal_lists(a: Flat, rows_a: I64, b: Flat, rows_b: I64) -> Bool:
    """Return whether two rows hold the same list, null elements included, for every pair of rows."""
    same = a.lengths[rows_a] == b.lengths[rows_b]
    pair, place = spread_rows(np.where(same, a.lengths[rows_a], 0))
    left, right = a.take(rows_a[pair], place), b.take(rows_b[pair], place)
    odd = (left.valid != right.valid) | ((left.value != right.value) & left.valid)
    return np.asarray(same & (np.bincount(pair[odd], minlength=len(rows_a)) == 0))


def match_nodes(a: Block, rows_a: I64, b: Block, rows_b: I64) -> NodePairs:
    """Match the trees of every pair of rows."""
    same = equal_lists(a.flat("node_token"), rows_a, b.flat("node_token"), rows_b)
    same &= equal_lists(a.flat("node_parent"), rows_a, b.flat("node_parent"), rows_b)
    counts = [
        np.maximum(side.flat("node_parent").lengths[rows], 0) for side, rows in ((a, rows_a), (b, rows_b))
    ]
    pair, place = spread_rows(np.where(same, counts[0], 0))
    other = np.flatnonzero(~same)
    found = _match_levels(Trees.of(a, rows_a[other]), Trees.of(b, rows_b[other]), len(other))
    pairs = np.concatenate((pair, other[found[0]]))
    return NodePairs(
        pairs, np.concatenate((place, found[1])), np.concatenate((place, found[2])), counts[0], counts[1]
    )


class Trees(NamedTuple):
    """Flat nodes of some rows; `parent` is a flat index, -1 for the anchor."""

    row: I64
    place: I64
    parent: I64
    token: I64
    depth: I64

    @classmethod
    def of(cls, block: Block, rows: I64) -> Trees:
        lengths = np.maximum(block.flat("node_parent").lengths[rows], 0)
        row, place = spread_rows(lengths)
        parent = block.flat("node_parent").take(rows[row], place).value.astype(np.int64)
        token = block.flat("node_token").take(rows[row], place).value.astype(np.int64)
        flat = np.where(parent < 0, -1, parent + (np.cumsum(lengths) - lengths)[row])
        return cls(row, place, flat, token, depths(flat))


def _match_levels(a: Trees, b: Trees, rows: int) -> tuple[I64, I64, I64]:
    """Depth by depth: nodes match whose parents match and whose tokens are equal."""
    names = [np.full(len(side.row), -1, dtype=np.int64) for side in (a, b)]
    given, matched = rows, [np.zeros((2, 0), dtype=np.int64)]
    for level in range(1, 1 + int(max(a.depth.max(initial=0), b.depth.max(initial=0)))):
        keys, nodes = [], []
        for side, name in zip((a, b), names, strict=True):
            here = np.flatnonzero(side.depth == level)
            above = side.parent[here]
            parent = np.where(above < 0, side.row[here], name[above])
            nodes.append(here[parent >= 0])
            keys.append((parent * _TOKENS + side.token[here])[parent >= 0])
        at_a, at_b = match(keys[0], keys[1])
        left, right = nodes[0][at_a], nodes[1][at_b]
        names[0][left] = names[1][right] = given + np.arange(len(left))
        given += len(left)
        matched.append(np.stack((left, right)))
    left, right = np.concatenate(matched, axis=1)
    return a.row[left], a.place[left], b.place[right]

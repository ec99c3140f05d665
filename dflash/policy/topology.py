"""Array functions over a batch of drafted trees: depth, sibling rank, prefixes along a path, leaf order.

All work on flat parent indices (-1 = anchor) with parents before children, without a loop over rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dflash.policy.noise import F64, I64

Bool = npt.NDArray[np.bool_]


def _fold(parent_node: I64, fold: Callable[[I64, I64], None]) -> None:
    """Visit ever longer stretches of ancestors: after k visits each node has folded in 2**k of them."""
    jump = parent_node.copy()
    nodes = np.flatnonzero(jump >= 0)
    while len(nodes):
        fold(nodes, jump[nodes])
        jump[nodes] = jump[jump[nodes]]
        nodes = nodes[jump[nodes] >= 0]


def chain_start(parent_node: I64) -> I64 | None:
    """Return where each node's chain begins; None unless branches lie side by side from the anchor on."""
    index = np.arange(len(parent_node))
    at_anchor = parent_node < 0
    if not (at_anchor | (parent_node == index - 1)).all():
        return None
    return np.maximum.accumulate(np.where(at_anchor, index, 0)) if len(index) else index


def depths(parent_node: I64) -> I64:
    """Return the 1-based depth of every node; `[N]`."""
    start = chain_start(parent_node)
    if start is not None:
        return np.arange(1, len(start) + 1) - start
    depth = np.ones(len(parent_node), dtype=np.int64)

    def fold(nodes: I64, ancestors: I64) -> None:
        depth[nodes] += depth[ancestors]

    _fold(parent_node, fold)
    return depth


def along_path(parent_node: I64, ok: Bool) -> Bool:
    """Return whether a node and all of its ancestors are `ok`; `[N]`."""
    start = chain_start(parent_node)
    return ancestors_ok(parent_node, ok) if start is None else along_branches(start, ok)


def along_branches(start: I64, ok: Bool) -> Bool:
    """Do as `along_path` does where `chain_start` says where each node's chain begins."""
    failed = np.concatenate(([0], np.cumsum(~ok)))
    return np.asarray(failed[1:] == failed[start])


def ancestors_ok(parent_node: I64, ok: Bool) -> Bool:
    """Do as `along_path` does on trees of any form."""
    alive = ok.copy()

    def fold(nodes: I64, ancestors: I64) -> None:
        alive[nodes] &= alive[ancestors]

    _fold(parent_node, fold)
    return alive


def path_sum(parent_node: I64, value: F64) -> F64:
    """Return the sum of `value` over a node and its ancestors; `[N]`."""
    total = value.copy()

    def fold(nodes: I64, ancestors: I64) -> None:
        total[nodes] += total[ancestors]

    _fold(parent_node, fold)
    return total


def sibling_order(parent_slot: I64) -> tuple[I64, I64]:
    """Sort nodes by parent slot, siblings in node order.

    Returns:
        `(order, start)`: `order[j]` is the j-th node of the sorted list, `start[j]` the place in that list
        where its group of siblings begins.
    """
    order = np.argsort(parent_slot, kind="stable")
    grouped = parent_slot[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = grouped[1:] != grouped[:-1]
    start = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    return order, start


def sibling_ranks(parent_slot: I64) -> I64:
    """Return the 0-based place of every node among its siblings; `[N]`."""
    rank = np.zeros(len(parent_slot), dtype=np.int64)
    if (np.diff(parent_slot) > 0).all():
        return rank
    order, start = sibling_order(parent_slot)
    rank[order] = np.arange(len(order)) - start
    return rank


def first_leaf(parent_node: I64, parent_slot: I64, node_depth: I64) -> I64:
    """Return which root-to-leaf path of its round is the first to hold each node; `[N]`, 0-based.

    Paths are ordered by sibling ranks, the first difference deciding, which is the order of proposal.
    """
    leaves = np.ones(len(parent_node), dtype=np.int64)
    inner = np.unique(parent_node[parent_node >= 0])
    leaves[inner] = 0
    deepest = int(node_depth.max(initial=0))
    levels = [np.flatnonzero(node_depth == level) for level in range(1, deepest + 1)]
    for nodes in reversed(levels[1:]):
        np.add.at(leaves, parent_node[nodes], leaves[nodes])
    order, start = sibling_order(parent_slot)
    before = np.concatenate(([0], np.cumsum(leaves[order])))
    earlier = np.empty_like(leaves)
    earlier[order] = before[:-1] - before[start]
    for nodes in levels[1:]:
        earlier[nodes] += earlier[parent_node[nodes]]
    return earlier


def offsets_of(counts: I64) -> I64:
    """Return where segments of these sizes begin, and where the last one ends; `[R + 1]`."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def segment_max(value: I64, offsets: I64, empty: int) -> I64:
    """Return the maximum of each segment `value[offsets[r]:offsets[r + 1]]`, `empty` if it has none."""
    best = np.full(len(offsets) - 1, empty, dtype=value.dtype)
    filled = np.diff(offsets) > 0
    if filled.any():
        best[filled] = np.maximum.reduceat(value, offsets[:-1][filled])
    return best


def ragged_index(offsets: I64, rows: I64) -> I64:
    """Return the flat indices of the given segments, one segment after the other."""
    return ramps(offsets[rows], offsets[rows + 1] - offsets[rows])


def ramps(begin: I64, counts: I64) -> I64:
    """Return `begin[r]`, `begin[r] + 1`, ... `counts[r]` numbers of it, one ramp after the other."""
    ends = np.cumsum(counts)
    index: I64 = np.repeat(begin - (ends - counts), counts)
    index += np.arange(len(index))
    return index

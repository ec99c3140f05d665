"""Trees are trees: parents before children, accepted nodes a path from the anchor."""

from __future__ import annotations

import numpy as np

from dflash.draftfile.view import Ints, View, first
from dflash.draftfile.violations import AcceptedPath, ParentOrder

NO_NODE = -9


def chains(offsets: Ints, parent: Ints, anchor: int = -1, counts: Ints | None = None) -> bool:
    """Whether every row is a single chain, its nodes in order.

    Args:
        offsets: `[rows + 1]` where the nodes of each row begin.
        parent: `[nodes]` index of the parent within the row.
        anchor: the parent of a first node.
        counts: `[rows]` nodes of each row, where they are known.
    """
    counts = np.diff(offsets) if counts is None else counts
    width = int(counts.max(initial=0))
    if width and np.count_nonzero(counts) * width == len(parent):
        chain = np.arange(anchor, anchor + width).astype(parent.dtype)
        # the first is a chain, and each row is as the one before it
        return np.array_equal(parent[:width], chain) and np.array_equal(parent[width:], parent[:-width])
    # as many nodes are at the anchor as there are rows that have any: their first ones, and no others
    at_anchor = np.append(parent == anchor, True)
    if np.count_nonzero(at_anchor) != np.count_nonzero(counts) + 1 or not at_anchor.take(offsets).all():
        return False
    follows = parent[1:] - parent[:-1] == 1
    follows |= at_anchor[1:-1]
    return bool(follows.all())


def check_parents(view: View) -> bool:
    """Whether every node has its parent, if any, before it."""
    if not view.has("node_parent"):
        return False
    lists = view.lists("node_parent")
    parent = lists.values.to_numpy(zero_copy_only=False)
    view.chains = chains(lists.offsets, parent, counts=lists.counts)
    if view.chains:
        return True
    position = lists.positions
    odd = (parent < -1) | (parent >= position)
    if odd.any():
        at = first(odd)
        expected = f"the parent of node {position[at]} from -1 to {position[at] - 1}"
        view.fail_at("node_parent", at, ParentOrder, expected, str(parent[at]))
    return not odd.any()


def check_accepted(view: View) -> None:
    """The first accepted node hangs off the anchor, each next one off the one before."""
    if not view.has("accepted_nodes"):
        return
    accepted, nodes = view.lists("accepted_nodes"), view.lists("node_parent")
    index = accepted.values.to_numpy(zero_copy_only=False)
    counts, parents = nodes.counts, nodes.values.to_numpy(zero_copy_only=False)
    first_nodes = index.min(initial=0) >= 0 and chains(accepted.offsets, index, 0, accepted.counts)
    if view.chains and first_nodes and (accepted.counts <= counts).all():
        return
    size = np.repeat(counts, accepted.counts)
    inside = (index >= 0) & (index < size)
    flat = np.repeat(nodes.offsets[:-1], accepted.counts) + index
    parent = np.append(parents, np.int16(NO_NODE))[np.where(inside, flat, -1)]
    before = np.where(accepted.positions == 0, -1, np.roll(index, 1))
    odd = ~inside | (parent != before)
    if odd.any():
        at = first(odd)
        above = f"node {before[at]}" if before[at] >= 0 else "the anchor"
        view.fail_at("accepted_nodes", at, AcceptedPath, f"an accepted child of {above}", f"node {index[at]}")

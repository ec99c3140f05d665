"""Trees are trees: parents before children, accepted nodes a path from the anchor."""

from __future__ import annotations

import numpy as np

from dflash.draftfile.view import View, first
from dflash.draftfile.violations import AcceptedPath, ParentOrder

NO_NODE = -9


def check_parents(view: View) -> bool:
    """Whether every node has its parent, if any, before it."""
    if not view.has("node_parent"):
        return False
    lists = view.lists("node_parent")
    parent, position = lists.values.to_numpy(zero_copy_only=False), lists.positions
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
    index = accepted.values.to_numpy(zero_copy_only=False).astype(np.int64)
    counts, parents = nodes.counts, nodes.values.to_numpy(zero_copy_only=False)
    size = np.repeat(counts, accepted.counts)
    inside = (index >= 0) & (index < size)
    flat = np.repeat(np.cumsum(counts) - counts, accepted.counts) + index
    parent = np.append(parents, np.int16(NO_NODE))[np.where(inside, flat, -1)]
    before = np.where(accepted.positions == 0, -1, np.roll(index, 1))
    odd = ~inside | (parent != before)
    if odd.any():
        at = first(odd)
        above = f"node {before[at]}" if before[at] >= 0 else "the anchor"
        view.fail_at("accepted_nodes", at, AcceptedPath, f"an accepted child of {above}", f"node {index[at]}")

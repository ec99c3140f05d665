"""Where the nodes of many small trees stand; each array is made when it is first asked for.

anchor ── 0 ── 1        n = 3 nodes in one round, node_parent = [-1, 0, -1]
      └── 2             n + 1 slots: slot 0 at the anchor, slot i + 1 at node i
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash.draftfile.tree_shape import chains
from dflash.policy import topology
from dflash.policy.noise import I64, U32, path_hashes
from dflash.policy.topology import Bool

Array = npt.NDArray[Any]
Index = I64 | slice
ALL = slice(None)
# rounds whose comparisons stay in the processor's cache
_CHUNK = 8192


@dataclass(frozen=True, eq=False)
class Trees:
    """R trees with N nodes and N + R slots; round r owns slots `node_offsets[r] + r` onward.

    Attributes:
        node_offsets: `[R + 1]` where each round's nodes begin.
        node_parent: `[N]` index of the parent within the round, -1 = anchor.
        recorded: the trees that these were cut from, and the nodes that were kept; None if they are whole.
    """

    node_offsets: I64
    node_parent: Array
    recorded: tuple[Trees, Index] | None = None

    def __len__(self) -> int:
        return len(self.node_offsets) - 1

    @cached_property
    def counts(self) -> I64:
        """Nodes of each round; `[R]`."""
        return np.diff(self.node_offsets)

    @cached_property
    def chains(self) -> bool:
        """Whether every round is a single chain, its nodes in order."""
        if self.recorded is not None and self.recorded[1] is ALL and self.recorded[0].chains:
            return True
        return chains(self.node_offsets, self.node_parent, counts=self.counts)

    @cached_property
    def node_round(self) -> I64:
        """The round of each node; `[N]`."""
        return np.repeat(np.arange(len(self)), self.counts)

    @cached_property
    def parent_node(self) -> I64:
        """Flat index of each node's parent, -1 = anchor; `[N]`."""
        if self.chains:
            parent = np.arange(-1, len(self.node_parent) - 1)
            parent[self.node_offsets[:-1][self.counts > 0]] = -1
            return parent
        begin = np.repeat(self.node_offsets[:-1], self.counts)
        return np.where(self.node_parent >= 0, self.node_parent + begin, -1)

    @cached_property
    def root_slot(self) -> I64:
        """Flat slot of each anchor; `[R]`."""
        return self.node_offsets[:-1] + np.arange(len(self))

    @cached_property
    def slot_offsets(self) -> I64:
        """Where each round's slots begin; `[R + 1]`."""
        return self.node_offsets + np.arange(len(self) + 1)

    @cached_property
    def node_slot(self) -> I64:
        """Flat slot at each node; `[N]`."""
        return np.arange(1, len(self.node_parent) + 1) + self.node_round

    @cached_property
    def parent_slot(self) -> I64:
        """Flat slot at each node's parent, where the target judges the node; `[N]`."""
        if self.chains:
            return np.arange(len(self.node_parent)) + self.node_round
        return self.node_parent + np.repeat(self.root_slot + 1, self.counts)

    @cached_property
    def node_depth(self) -> I64:
        """Depth of each node, 1-based; `[N]`."""
        if self.chains:
            return self.node_parent + np.int64(2)
        if self.recorded is not None:
            trees, nodes = self.recorded
            return trees.node_depth[nodes]
        return topology.depths(self.parent_node)

    @cached_property
    def node_rank(self) -> I64:
        """0-based place of each node among its siblings in the tree *as recorded*; `[N]`."""
        if self.recorded is not None:
            trees, nodes = self.recorded
            return trees.node_rank[nodes]
        if self.chains:
            return np.zeros(len(self.node_parent), dtype=np.int64)
        return topology.sibling_ranks(self.parent_slot)

    @cached_property
    def node_index(self) -> I64:
        """Index of each node within its round as recorded; `[N]`."""
        if self.recorded is not None:
            trees, nodes = self.recorded
            return trees.node_index[nodes]
        return np.arange(len(self.node_parent)) - np.repeat(self.node_offsets[:-1], self.counts)

    @cached_property
    def path_hash(self) -> U32:
        """Hash of each node's path as recorded; a cut keeps it, and with it every node's noise; `[N]`."""
        if self.recorded is not None:
            trees, nodes = self.recorded
            return trees.path_hash[nodes]
        if self.chains:
            return np.zeros(len(self.node_parent), dtype=np.uint32)
        return path_hashes(self.parent_node, self.node_rank, self.node_depth)

    @cached_property
    def branching(self) -> bool:
        """Whether any recorded tree branches within the nodes that are kept."""
        return not (self.chains and self.uncut) and bool(self.node_rank.any())

    @cached_property
    def tree_depth(self) -> I64:
        """Depth of the deepest node of each round, 0 if it has none; `[R]`."""
        return self.counts if self.chains else topology.segment_max(self.node_depth, self.node_offsets, 0)

    @cached_property
    def _branch_start(self) -> I64 | None:
        return topology.chain_start(self.parent_node)

    def along_path(self, ok: Bool) -> Bool:
        """Return whether a node and all of its ancestors are `ok`; `[N]`."""
        if self.chains:
            return self.within(self.leading(ok))
        if self._branch_start is not None:
            return topology.along_branches(self._branch_start, ok)
        return topology.ancestors_ok(self.parent_node, ok)

    @cached_property
    def width(self) -> int:
        """Nodes of every round if all have as many, else 0."""
        width = int(self.counts[0]) if len(self) else 0
        return width if (self.counts == width).all() else 0

    @property
    def whole_chains(self) -> bool:
        """Whether every round is a chain as it was recorded, all of them equally long."""
        return self.uncut and self.chains and self.width > 0

    @cached_property
    def uncut(self) -> bool:
        """Whether no node of these rounds was left out."""
        return self.recorded is None or (self.recorded[1] is ALL and self.recorded[0].uncut)

    def leading(self, ok: Bool) -> I64:
        """Return how many nodes of each chain are `ok` before the first that is not; `[R]`."""
        if self.width:
            return _leading(ok.reshape(-1, self.width))
        failed = np.flatnonzero(~ok)
        owner = self.node_round[failed]
        first = np.ones(len(failed), dtype=bool)
        first[1:] = owner[1:] != owner[:-1]
        count = self.counts.copy()
        count[owner[first]] = failed[first] - self.node_offsets[owner[first]]
        return count

    def leading_equal(self, node: Array, slot: Array) -> I64:
        """Return how many nodes of each chain hold, before the first that does not, what the slot at their
        parent holds; `[R]`.

        Args:
            node: `[N]` of chains that are all equally long; `slot` `[N + R]`.
        """
        found = np.empty(len(self), dtype=np.int64)
        nodes, slots = node.reshape(-1, self.width), slot.reshape(-1, self.width + 1)
        for begin in range(0, len(self), _CHUNK):
            some = slice(begin, begin + _CHUNK)
            found[some] = _leading(nodes[some] == slots[some, :-1])
        return found

    def at_parent(self, value: Array) -> Array:
        """Return what `value`, `[N + R]`, holds at each node's parent slot; `[N]`."""
        if self.chains and self.width:
            return value.reshape(len(self), self.width + 1)[:, :-1].reshape(-1)
        return value[self.parent_slot]

    def round_of(self, nodes: I64) -> I64:
        """Return the rounds of a few nodes, without those of all."""
        return np.searchsorted(self.node_offsets[1:], nodes, side="right")

    def within(self, depth: I64) -> Bool:
        """Return whether each node is at most as deep as `depth`, `[R]`, says of its round; `[N]`."""
        return np.asarray(self.node_depth <= np.repeat(depth, self.counts))

    def keep(self, rows: I64, nodes: Index, counts: I64) -> Trees:
        """Keep some rounds and some of their nodes; see `Rounds.select`."""
        if nodes is ALL:
            # rounds that are left out have no nodes
            offsets = np.append(self.node_offsets[rows], self.node_offsets[-1])
            return Trees(offsets, self.node_parent, (self, ALL))
        offsets = topology.offsets_of(counts)
        if self.chains:
            parent = self.node_parent[nodes]
        else:
            kept = np.arange(len(self.node_parent))[nodes]
            local = np.empty(len(self.node_parent), dtype=np.int64)
            local[kept] = np.arange(len(kept)) - np.repeat(offsets[:-1], counts)
            above = self.parent_node[kept]
            parent = np.where(above >= 0, local[above], -1)
        return Trees(offsets, parent, (self, nodes))


def _leading(ok: Bool) -> I64:
    """Return how many values of each row are true before the first that is not; `[rows]`."""
    rows, width = ok.shape
    if width <= 8:
        return _leading_bytes(ok)
    alive = np.ones(rows, dtype=bool)
    depth = np.zeros(rows, dtype=np.int8 if width < 128 else np.int64)
    # a copy, so that each step runs over neighbours in memory
    for column in np.ascontiguousarray(ok.T):
        alive &= column
        np.add(depth, alive.view(np.int8), out=depth)
    return depth.astype(np.int64)


def _leading_bytes(ok: Bool) -> I64:
    """Do as `_leading` does on rows of at most eight values, each row one number, its first value lowest."""
    if ok.shape[1] < 8:
        ok = np.pad(ok, ((0, 0), (0, 8 - ok.shape[1])))
    missing = ok.view("<u8").reshape(-1) ^ np.uint64(0x0101010101010101)
    # all bits below the lowest one
    below = (missing & -missing) - np.uint64(1)
    return (np.bitwise_count(below) >> 3).astype(np.int64)

"""What a rule decided in each round of a batch, and the longest-path decision that most rules share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool, path_sum, ramps, segment_max
from dflash.policy.trees import Array, Trees


@dataclass(frozen=True, eq=False)
class Decision:
    """The accepted path and the bonus token of R rounds with N nodes.

    Attributes:
        trees: of the rounds that were judged.
        accepted_count: `[R]` length of the accepted path.
        last_slot: `[R]` flat slot where the path ends, and the bonus token is drawn.
        bonus: `[R]` bonus token, -1 if the rounds do not hold it.
        coin_tie: `[R]` whether a coin lay so near to its threshold that rounding may decide.
    """

    trees: Trees
    accepted_count: I64
    last_slot: I64
    bonus: Array
    coin_tie: Bool

    @cached_property
    def last_node(self) -> I64:
        """Flat node where each accepted path ends, -1 where nothing is accepted; `[R]`."""
        return np.where(self.accepted_count > 0, self.last_slot - np.arange(1, len(self.trees) + 1), -1)

    @cached_property
    def accepted_nodes(self) -> I64:
        """Flat nodes of all accepted paths, ascending."""
        if self.trees.chains:
            begin = self.trees.node_offsets[:-1]
            return ramps(begin, self.accepted_count)
        parent, found = self.trees.parent_node, []
        node = self.last_node[self.last_node >= 0]
        while len(node):
            found.append(node)
            node = parent[node]
            node = node[node >= 0]
        return np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)

    @cached_property
    def accepted(self) -> Bool:
        """Whether each node lies on the accepted path; `[N]`."""
        if self.trees.chains:
            return self.trees.within(self.accepted_count)
        accepted = np.zeros(len(self.trees.node_parent), dtype=bool)
        accepted[self.accepted_nodes] = True
        return accepted

    def take(self, rounds: Rounds, rows: I64) -> Decision:
        """Keep the decisions of some rounds.

        Args:
            rounds: those rounds alone, as `Rounds.take` gives them.
            rows: where they were.
        """
        moved = rounds.node_offsets[:-1] - self.trees.node_offsets[rows]
        return Decision(
            rounds.trees,
            self.accepted_count[rows],
            self.last_slot[rows] + moved + np.arange(len(rows)) - rows,
            self.bonus[rows],
            self.coin_tie[rows],
        )

    def path(self, row: int) -> list[int]:
        """Return the accepted nodes of one round, by index within the round, from the anchor outward."""
        begin, end = self.trees.node_offsets[row], self.trees.node_offsets[row + 1]
        nodes: list[int] = np.flatnonzero(self.accepted[begin:end]).tolist()
        return nodes


def end_at(rounds: Rounds, last_node: I64, slot_token: Array, coin_tie: Bool | None = None) -> Decision:
    """Accept the path to one node of each round and emit `slot_token` where it ends.

    Args:
        rounds: R rounds with N nodes.
        last_node: `[R]` flat node where the path ends, -1 to accept nothing.
        slot_token: `[N + R]` bonus token of each slot.
        coin_tie: `[R]`, none by default.
    """
    count = np.zeros(len(rounds), dtype=np.int64)
    ended = last_node >= 0
    count[ended] = rounds.node_depth[last_node[ended]]
    last_slot = np.where(ended, last_node + np.arange(1, len(rounds) + 1), rounds.root_slot)
    return _decision(rounds, count, last_slot, slot_token, coin_tie)


def end_after(rounds: Rounds, count: I64, slot_token: Array, coin_tie: Bool | None = None) -> Decision:
    """Do as `end_at` does on chains, of which the first `count` nodes are accepted; `[R]`."""
    return _decision(rounds, count, rounds.root_slot + count, slot_token, coin_tie)


def _decision(
    rounds: Rounds, count: I64, last_slot: I64, slot_token: Array, coin_tie: Bool | None
) -> Decision:
    tie = np.zeros(len(rounds), dtype=bool) if coin_tie is None else coin_tie
    return Decision(rounds.trees, count, last_slot, slot_token[last_slot], tie)


def longest(rounds: Rounds, ok: Bool, slot_token: Array, score: F64 | None = None) -> Decision:
    """Accept the longest path of `ok` nodes and emit `slot_token` where it ends.

    Ties are won by the larger sum of `score` along the path, then by the lowest node.

    Args:
        rounds: R rounds with N nodes.
        ok: `[N]` whether the rule accepts a node on its own.
        slot_token: `[N + R]` bonus token of each slot.
        score: `[N]`; None if equally long paths cannot differ in score.
    """
    trees = rounds.trees
    if trees.chains:
        return end_after(rounds, trees.leading(ok), slot_token)
    alive = trees.along_path(ok)
    depth = np.where(alive, rounds.node_depth, 0)
    deepest = segment_max(depth, rounds.node_offsets, 0)
    nodes = np.flatnonzero(alive & (depth == deepest[rounds.node_round]))
    if score is not None and len(nodes):
        # stable, so that the lowest node comes first among equals
        nodes = nodes[np.lexsort((-path_sum(rounds.parent_node, score)[nodes], rounds.node_round[nodes]))]
    last = np.full(len(rounds), -1, dtype=np.int64)
    last[rounds.node_round[nodes[::-1]]] = nodes[::-1]
    return end_at(rounds, last, slot_token)

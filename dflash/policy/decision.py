"""What a rule decided in each round of a batch, and the longest-path decision that most rules share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool, along_path, path_sum, ragged_index, segment_max


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The accepted path and the bonus token of R rounds with N nodes.

    Attributes:
        node_offsets: `[R + 1]` where each round's nodes begin.
        accepted: `[N]` whether a node lies on the accepted path.
        accepted_count: `[R]` length of that path.
        last_slot: `[R]` flat slot where the path ends, and the bonus token is drawn.
        bonus: `[R]` bonus token, -1 if the rounds do not hold it.
        coin_tie: `[R]` whether a coin lay so near to its threshold that rounding may decide.
    """

    node_offsets: I64
    accepted: Bool
    accepted_count: I64
    last_slot: I64
    bonus: I64
    coin_tie: Bool

    def take(self, rounds: Rounds, rows: I64) -> Decision:
        """Keep the decisions of some rounds.

        Args:
            rounds: those rounds alone, as `Rounds.take` gives them.
            rows: where they were.
        """
        nodes = ragged_index(self.node_offsets, rows)
        slot = self.last_slot[rows] - self.node_offsets[rows] - rows + rounds.root_slot
        return Decision(
            rounds.node_offsets,
            self.accepted[nodes],
            self.accepted_count[rows],
            slot,
            self.bonus[rows],
            self.coin_tie[rows],
        )

    def path(self, row: int) -> list[int]:
        """Return the accepted nodes of one round, by index within the round, from the anchor outward."""
        begin, end = self.node_offsets[row], self.node_offsets[row + 1]
        nodes: list[int] = np.flatnonzero(self.accepted[begin:end]).tolist()
        return nodes


def end_at(rounds: Rounds, last_node: I64, slot_token: I64, coin_tie: Bool | None = None) -> Decision:
    """Accept the path to one node of each round and emit `slot_token` where it ends.

    Args:
        rounds: R rounds with N nodes.
        last_node: `[R]` flat node where the path ends, -1 to accept nothing.
        slot_token: `[N + R]` bonus token of each slot.
        coin_tie: `[R]`, none by default.
    """
    parent = rounds.parent_node
    accepted = np.zeros(len(parent), dtype=bool)
    count = np.zeros(len(rounds), dtype=np.int64)
    ended = last_node >= 0
    count[ended] = rounds.node_depth[last_node[ended]]
    node = last_node[ended]
    while len(node):
        accepted[node] = True
        node = parent[node]
        node = node[node >= 0]
    last_slot = np.where(ended, last_node + np.arange(len(rounds)) + 1, rounds.root_slot)
    tie = np.zeros(len(rounds), dtype=bool) if coin_tie is None else coin_tie
    return Decision(rounds.node_offsets, accepted, count, last_slot, slot_token[last_slot], tie)


def longest(rounds: Rounds, ok: Bool, slot_token: I64, score: F64 | None = None) -> Decision:
    """Accept the longest path of `ok` nodes and emit `slot_token` where it ends.

    Ties are won by the larger sum of `score` along the path, then by the lowest node.

    Args:
        rounds: R rounds with N nodes.
        ok: `[N]` whether the rule accepts a node on its own.
        slot_token: `[N + R]` bonus token of each slot.
        score: `[N]`; None if equally long paths cannot differ in score.
    """
    parent = rounds.parent_node
    alive = along_path(parent, ok)
    depth = np.where(alive, rounds.node_depth, 0)
    deepest = segment_max(depth, rounds.node_offsets, 0)
    nodes = np.flatnonzero(alive & (depth == deepest[rounds.node_round]))
    if score is not None and len(nodes):
        # stable, so that the lowest node comes first among equals
        nodes = nodes[np.lexsort((-path_sum(parent, score)[nodes], rounds.node_round[nodes]))]
    last = np.full(len(rounds), -1, dtype=np.int64)
    last[rounds.node_round[nodes[::-1]]] = nodes[::-1]
    return end_at(rounds, last, slot_token)

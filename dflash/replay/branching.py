"""What the branches of drafted trees are worth: which one wins, and how often they begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool, first_leaf
from dflash.replay.statistics import Interval, draws_of, interval_of
from dflash.replay.tally import Collector, Judged, stacked_sum

BRANCHING_DEFINITIONS = {
    "branching_rounds": "live rounds whose tree, as the policy cuts it, has two or more branches; all branch "
    "statistics are of these rounds",
    "wins": "rounds that accept a node, by the first branch, in order of proposal, that holds the whole "
    "accepted path",
    "later_branch_wins": "share of these rounds won by another than the first branch: what branching gains",
    "first_token_diversity": "distinct first tokens per branch",
    "duplicate_first_token_rate": "branches after the first that begin with the first token of an earlier "
    "branch, of all branches after the first",
}
_SUMS = ("rounds", "later", "branches", "distinct")


class Branches(NamedTuple):
    """What branches came to; every share is None without branching rounds.

    Attributes:
        wins: by branch, from the first.
        accepted_nothing: branching rounds that no branch won.
    """

    branching_rounds: int
    wins: tuple[int, ...]
    accepted_nothing: int
    later_branch_wins: float | None
    later_interval: Interval | None
    first_token_diversity: float | None
    duplicate_first_token_rate: float | None
    duplicate_interval: Interval | None


@dataclass(slots=True)
class Branching(Collector):
    """Counts of one policy: the sums of `_SUMS` of each request that branches, and all wins by branch."""

    columns = ("node_token",)

    _sums: list[I64] = field(default_factory=list)
    _wins: list[I64] = field(default_factory=list)

    def count(self, owners: Sequence[I64], judged: Sequence[Judged], requests: int) -> None:
        """Count the rounds of one row group, given the request of each."""
        branching = [pair for pair in zip(owners, judged, strict=True) if pair[1].rounds.trees.branching]
        if not branching:
            return
        total = np.zeros((requests, len(_SUMS)), dtype=np.int64)
        for owner, item in branching:
            np.add.at(total, owner, self._rounds(item.rounds, item.decision.accepted))
        self._sums.append(total[total[:, 0] > 0])

    def report(self) -> Branches | None:
        """Return the branch statistics; None if no round branches."""
        counts = np.concatenate(self._sums) if self._sums else np.zeros((0, len(_SUMS)), dtype=np.int64)
        if not len(counts):
            return None
        rounds, later, branches, distinct = counts.sum(axis=0).tolist()
        wins = stacked_sum(self._wins, 1)[0]
        draws = draws_of(counts.astype(np.float64), len(counts)) if len(counts) > 1 else None
        return Branches(
            rounds,
            tuple(wins.tolist()),
            rounds - int(wins.sum()),
            later / rounds,
            None if draws is None else interval_of(draws[:, 1] / draws[:, 0]),
            distinct / branches,
            (branches - distinct) / (branches - rounds),
            None if draws is None else interval_of(_duplicates(draws)),
        )

    def _rounds(self, rounds: Rounds, accepted: Bool) -> I64:
        """Return the four sums of every round; 0 for chains; `[R, 4]`."""
        leaf = first_leaf(rounds.parent_node, rounds.parent_slot, rounds.node_depth)
        count = leaves(rounds)
        branching = count > 1
        won = np.full(len(rounds), -1, dtype=np.int64)
        # parents come before children, so that the last accepted node of a round is the deepest
        won[rounds.node_round[accepted]] = leaf[accepted]
        self._wins.append(np.bincount(won[branching & (won >= 0)], minlength=1)[None])
        columns = (np.ones_like(count), won > 0, count, _distinct(rounds))
        return np.where(branching[:, None], np.stack(columns, axis=1), 0)


def leaves(rounds: Rounds) -> I64:
    """Return how many branches each tree has, 0 for none; `[R]`."""
    inner = np.zeros(len(rounds.node_parent), dtype=bool)
    parent = rounds.parent_node
    inner[parent[parent >= 0]] = True
    return np.bincount(rounds.node_round[~inner], minlength=len(rounds))


def _distinct(rounds: Rounds) -> I64:
    """Return how many different tokens the anchor's children are; `[R]`."""
    root = np.flatnonzero(rounds.node_parent < 0)
    pairs = np.stack((rounds.node_round[root], rounds["node_token"][root]), axis=1)
    return np.bincount(np.unique(pairs, axis=0)[:, 0], minlength=len(rounds))


def _duplicates(draws: F64) -> F64:
    rounds, _, branches, distinct = draws.T
    return np.asarray((branches - distinct) / (branches - rounds))

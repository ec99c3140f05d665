"""Counts of what a policy decided, request by request: sums and histograms only, so that they merge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool
from dflash.replay.batch import Batch, Part

# in the narrowest type that holds them
Counted = npt.NDArray[np.integer[Any]]
TALLY_COLUMNS = ("node_token", "slot_choice", "accepted_nodes", "emitted")


class Judged(Protocol):
    """Rounds as a policy saw them, and what it decided."""

    @property
    def rounds(self) -> Rounds: ...
    @property
    def decision(self) -> Decision: ...


class Counts:
    """A dataclass of counts, which merge: numbers add up, lists of counts by request follow each other."""

    __slots__ = ()


class Collector(Counts, ABC):
    """Counts something more of what one policy decides, only where it is asked for.

    Attributes:
        columns: that the rounds must have.
    """

    __slots__ = ()
    columns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def count(self, owners: Sequence[I64], judged: Sequence[Judged], requests: int) -> None:
        """Count the rounds of one row group, given the request of each."""

    def count_law(self, length: int, rounds: F64, tokens: I64, context: F64) -> None:
        """Count expected rounds of chains, which are all that a law-exact walk knows.

        Args:
            length: of every chain.
            rounds: `[requests]` expected; `tokens` that they keep and mean `context` likewise.
        """


@dataclass(slots=True)
class Tally(Counts):
    """What one policy did on the live rounds of a run.

    Attributes:
        nodes: nodes of the trees it used.
        emitted: tokens that the recording kept in these rounds, after truncation.
        changed: rounds in which it accepts another number of nodes than was recorded.
        off_choice: rounds in which it accepts a token that is not the target's choice.
        unknown_bonus: rounds whose bonus token was not recorded.
        coin_ties: rounds in which a coin lay within rounding of its threshold.
        branching: whether any tree that it used branches.
        contexts: the contexts met.
        collectors: count along.
    """

    nodes: int = 0
    emitted: int = 0
    changed: int = 0
    off_choice: int = 0
    unknown_bonus: int = 0
    coin_ties: int = 0
    branching: bool = False
    contexts: set[RuleContext] = field(default_factory=set)
    collectors: Sequence[Collector] = ()
    _lengths: list[Counted] = field(default_factory=list)
    _reached: list[Counted] = field(default_factory=list)

    def add(self, batch: Batch, parts: Sequence[Part], judged: Sequence[Judged]) -> None:
        """Count one row group."""
        self.emitted += batch.emitted
        for part, item in zip(parts, judged, strict=True):
            changed = item.decision.accepted_count != batch.accepted_count[part.rows]
            self.changed += int(np.count_nonzero(changed))
            self.contexts.add(part.context)
        self.count([part.owner for part in parts], judged, len(batch.requests))

    def count(self, owners: Sequence[I64], judged: Sequence[Judged], requests: int) -> None:
        """Count the rounds of one row group, given the request of each."""
        pairs = list(zip(owners, judged, strict=True))
        lengths = [_by_request(owner, item.decision.accepted_count, requests) for owner, item in pairs]
        tried = [_tried(owner, item, length) for (owner, item), length in zip(pairs, lengths, strict=True)]
        self._add(lengths, tried, requests)
        for item in judged:
            self._count(item.rounds, item.decision)
        for collector in self.collectors:
            collector.count(owners, judged, requests)

    def count_depths(
        self, owners: Sequence[I64], accepted: Sequence[I64], tried: Sequence[I64], requests: int
    ) -> None:
        """Count how deep the rounds of one row group went: accepted nodes, and the deepest depth tried."""
        lengths, reached = (
            [_by_request(owner, depth, requests) for owner, depth in zip(owners, depths, strict=True)]
            for depths in (accepted, tried)
        )
        self._add(lengths, reached, requests)

    def _add(self, lengths: Sequence[I64], reached: Sequence[I64], requests: int) -> None:
        for counts, found in ((self._lengths, lengths), (self._reached, reached)):
            total = stacked_sum(found, requests)
            # there may be many policies and many requests
            counts.append(total.astype(np.min_scalar_type(int(total.max(initial=0)))))

    def _count(self, rounds: Rounds, decision: Decision) -> None:
        self.nodes += len(rounds.node_parent)
        self.unknown_bonus += int((decision.bonus < 0).sum())
        self.coin_ties += int(decision.coin_tie.sum())
        self.branching |= rounds.trees.branching
        self.off_choice += int(np.count_nonzero(_off_choice(rounds, decision)))

    def lengths(self) -> I64:
        """Return rounds by request and accepted length: `[requests, longest + 1]`."""
        return _concatenated(self._lengths)

    def reached(self) -> I64:
        """Return rounds by request and deepest depth tried, min(accepted + 1, depth of the tree)."""
        return _concatenated(self._reached)


def _off_choice(rounds: Rounds, decision: Decision) -> Bool:
    """Return whether each round accepts a token other than the target's choice; `[R]`."""
    choice = rounds["slot_choice"]
    if rounds.trees.chains:
        return np.asarray(decision.accepted_count > rounds.leading_equal(choice))
    chosen, nodes = rounds.equal(choice), decision.accepted_nodes
    off = np.zeros(len(rounds), dtype=bool)
    off[rounds.node_round[nodes[~chosen[nodes]]]] = True
    return off


def stacked_sum(parts: Sequence[I64], rows: int) -> I64:
    """Return the sum of matrices of unequal width; `[rows, widest]`."""
    total = np.zeros((rows, max((part.shape[1] for part in parts), default=1)), dtype=np.int64)
    for part in parts:
        total[:, : part.shape[1]] += part
    return total


def _by_request(owner: I64, value: I64, requests: int) -> I64:
    width = int(value.max(initial=0)) + 1
    return np.bincount(owner * width + value, minlength=requests * width).reshape(requests, width)


def _tried(owner: I64, item: Judged, lengths: I64) -> I64:
    """Return rounds by request and deepest depth tried, min(accepted + 1, depth of the tree).

    Args:
        lengths: rounds by request and accepted length.
    """
    trees, accepted = item.rounds.trees, item.decision.accepted_count
    if not (trees.chains and trees.width):
        return _by_request(owner, np.minimum(accepted + 1, trees.tree_depth), len(lengths))
    tried = np.zeros((len(lengths), lengths.shape[1] + 1), dtype=np.int64)
    tried[:, 1:] = lengths
    if lengths.shape[1] > trees.width:
        # a chain that is accepted to its end was tried no deeper
        tried[:, trees.width] += tried[:, -1]
        return tried[:, :-1]
    return tried


def _concatenated(parts: Sequence[Counted]) -> I64:
    width = max((part.shape[1] for part in parts), default=1)
    total = np.zeros((sum(map(len, parts)), width), dtype=np.int64)
    begin = 0
    for part in parts:
        total[begin : begin + len(part), : part.shape[1]] = part
        begin += len(part)
    return total

"""Dense recording: after a request has ended, a verified draft at every committed position of its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from dflash.drafters.base import Anchor, Drafter, DraftShape, Proposal
from dflash.engine.heap import give_back
from dflash.engine.judge import Judge, Row
from dflash.engine.lane import Lane
from dflash.engine.recorder.unmade import TakesRows
from dflash.target.model import TrunkModel
from dflash.target.scratch import LaneRows

DENSE = 1
ROW_BUDGET = 192


class DenseRows(Protocol):
    """What makes the dense rows of a request that has ended."""

    def give(self, lane: Lane, sink: TakesRows) -> None:
        """Give a sink one row for every committed output token but the last, in order."""


class Draft(NamedTuple):
    """A draft from one anchor, and log q of the trunk's tokens behind it, if q is a law."""

    proposal: Proposal
    trunk_log_q: list[float] | None


def anchor_at(lane: Lane, position: int) -> Anchor:
    """The anchor at a position of a lane's trunk."""
    request = lane.request
    return Anchor(lane.index, position, request.key, lane.trunk, request.sampling.temperature)


def tree_rows(anchor: Anchor, proposal: Proposal) -> LaneRows:
    """The anchor and its nodes as rows to score: the anchor first, so parents move up by one.

    The rows see the trunk before the anchor and nothing after it.
    """
    tokens = [anchor.trunk[anchor.position], *proposal.tokens]
    parents = [-1, *(parent + 1 for parent in proposal.parents)]
    return LaneRows(anchor.lane, tokens, parents, [anchor.position] * len(tokens))


class DensePass:
    """Drafts from every committed position, all drafts hanging off the trunk that was computed once.

    Anchors are scored together in forwards of at most `row_budget` rows. Each sees what a live round at its
    position sees: the trunk up to it, the same noise, nothing of other rounds.
    """

    def __init__(
        self,
        trunk: TrunkModel,
        drafter: Drafter,
        judge: Judge,
        shape: DraftShape,
        row_budget: int = ROW_BUDGET,
    ) -> None:
        self.trunk = trunk
        self.drafter = drafter
        self.judge = judge
        self.shape = shape
        self.row_budget = row_budget

    def give(self, lane: Lane, sink: TakesRows) -> None:
        """Give a sink what `rows` makes."""
        for row in self.rows(lane):
            sink.row(lane, row)

    def rows(self, lane: Lane) -> Iterator[Row]:
        """One row for every committed output token but the last, in order."""
        prompt = len(lane.request.prompt_tokens)
        self.trunk.truncate(lane.index, len(lane.trunk) - 1)
        anchors = [anchor_at(lane, position) for position in range(prompt, len(lane.trunk) - 1)]
        largest = 1 + self.shape.length * self.shape.branches
        step = max(1, self.row_budget // largest)
        for start in range(0, len(anchors), step):
            yield from self._chunk(lane, anchors[start : start + step])
            give_back()

    def _chunk(self, lane: Lane, anchors: Sequence[Anchor]) -> Iterator[Row]:
        drafts = self.drafted(lane, anchors, self.drafter)
        trees = [tree_rows(anchor, draft.proposal) for anchor, draft in zip(anchors, drafts, strict=True)]
        logits = self.trunk.score([merged(trees)])[0].logits
        self.trunk.drop_nodes(lane.index)
        first = 0
        for anchor, draft in zip(anchors, drafts, strict=True):
            seen = logits[first : first + 1 + len(draft.proposal)]
            first += len(seen)
            yield self.row(lane, anchor, draft, seen)

    def drafted(self, lane: Lane, anchors: Sequence[Anchor], drafter: Drafter) -> list[Draft]:
        """Drafts from several anchors of a lane."""
        ahead = [min(self.shape.length, len(lane.trunk) - 1 - anchor.position) for anchor in anchors]
        trunk_log_q = drafter.trunk_log_q(anchors, ahead)
        laws = [None] * len(anchors) if trunk_log_q is None else trunk_log_q
        proposals = drafter.propose(anchors, self.shape)
        return [Draft(*pair) for pair in zip(proposals, laws, strict=True)]

    def row(self, lane: Lane, anchor: Anchor, draft: Draft, logits: Tensor) -> Row:
        """The dense row of an anchor; `logits` [nodes + 1, vocabulary]."""
        row = self.judge.dense_row(anchor, draft.proposal, logits, lane.request.sampling)
        law = None if draft.trunk_log_q is None else np.array(draft.trunk_log_q, dtype=np.float32)
        return row | {"kind": DENSE, "round": -1, "trunk_logq": law}


def merged(trees: Sequence[LaneRows]) -> LaneRows:
    """Several trees of one lane as one piece, each tree's parents numbered behind the trees before it."""
    tokens: list[int] = []
    parents: list[int] = []
    bases: list[int] = []
    for tree in trees:
        parents += [parent + len(tokens) if parent >= 0 else -1 for parent in tree.parents]
        bases += tree.bases or []
        tokens += tree.tokens
    return LaneRows(trees[0].lane, tokens, parents, bases)

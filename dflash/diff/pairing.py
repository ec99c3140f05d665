"""Which row of one file stands beside which row of the other, and which of the pairs can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dflash.diff.flat import Block
from dflash.diff.matching import match
from dflash.diff.trunk import Parting
from dflash.draftfile.summary import Kind
from dflash.policy.noise import I64
from dflash.policy.topology import Bool


class On(StrEnum):
    """What brings two live rounds together."""

    ROUNDS = "rounds"
    ANCHORS = "anchors"


@dataclass(frozen=True, slots=True)
class RowPairs:
    """Pairs of rows, prefills included.

    Attributes:
        a, b: `[P]` rows.
        owner: `[P]` the request.
        room: `[P]` committed tokens that both sides share from the anchor on; 0 or less: another context.
        same_anchor: `[P]` whether the anchors stand at the same position.
        same_kind: `[P]` whether both rows are of one kind.
    """

    a: I64
    b: I64
    owner: I64
    room: I64
    same_anchor: Bool
    same_kind: Bool

    @property
    def comparable(self) -> Bool:
        """Whether the rows have the same context."""
        return np.asarray(self.same_anchor & (self.room > 0))

    def take(self, index: Bool) -> RowPairs:
        """Return some of the pairs."""
        return RowPairs(
            self.a[index],
            self.b[index],
            self.owner[index],
            self.room[index],
            self.same_anchor[index],
            self.same_kind[index],
        )


@dataclass(slots=True)
class RowCount:
    """Live rounds and dense rows of aligned requests, by what became of them.

    Attributes:
        total: all.
        compared: with a partner in the same context.
        after_divergence: their context holds a token that the other side does not have.
        other_anchor: their partner by round stands at another position.
        alone: no partner.
    """

    total: int = 0
    compared: int = 0
    after_divergence: int = 0
    other_anchor: int = 0
    alone: int = 0


def pair_rows(a: Block, b: Block, parting: Parting, on: On) -> RowPairs:
    """Pair the rows of equal requests: live rounds as `on` says, dense rows by anchor, the rest in order."""
    keys = [_keys(block, on) for block in (a, b)]
    rows_a, rows_b = match(*keys)
    if on is On.ANCHORS:
        more = _across(a, b, rows_a, rows_b)
        rows_a, rows_b = np.concatenate((rows_a, more[0])), np.concatenate((rows_b, more[1]))
    anchor_a, anchor_b = (block.scalar("anchor_position") for block in (a, b))
    owner = a.owner[rows_a]
    kinds = a.scalar("kind")[rows_a] == b.scalar("kind")[rows_b]
    same = anchor_a[rows_a] == anchor_b[rows_b]
    return RowPairs(rows_a, rows_b, owner, parting.limit[owner] - anchor_a[rows_a], same, kinds)


def _keys(block: Block, on: On) -> I64:
    kind, anchor = block.scalar("kind"), block.scalar("anchor_position")
    by_anchor = (kind == Kind.DENSE) | ((kind == Kind.LIVE) & (on is On.ANCHORS))
    number = np.where(by_anchor, anchor, np.where(kind == Kind.LIVE, block.scalar("round"), 0))
    return (block.owner * 4 + kind) * 2**32 + number


def _across(a: Block, b: Block, rows_a: I64, rows_b: I64) -> tuple[I64, I64]:
    """A live round beside a dense row at the same anchor, where the other file has no row of its kind."""
    left, right = (_without_partner(block, rows) for block, rows in ((a, rows_a), (b, rows_b)))
    keys = [
        block.owner[rows] * 2**32 + block.scalar("anchor_position")[rows]
        for block, rows in ((a, left), (b, right))
    ]
    at_a, at_b = match(*keys)
    return left[at_a], right[at_b]


def _without_partner(block: Block, used: I64) -> I64:
    kind = block.scalar("kind")
    free = (kind == Kind.LIVE) | (kind == Kind.DENSE)
    free[used] = False
    return np.flatnonzero(free)


def count_rows(block: Block, rows: I64, pairs: RowPairs, parting: Parting, total: RowCount) -> None:
    """Add up what became of the rows of one side; `rows` are its rows of the pairs."""
    kind = block.scalar("kind")
    counted = (kind == Kind.LIVE) | (kind == Kind.DENSE)
    late = block.scalar("anchor_position") >= parting.limit[block.owner]
    paired, compared = np.zeros(len(kind), bool), np.zeros(len(kind), bool)
    paired[rows], compared[rows] = True, pairs.comparable
    total.total += int(counted.sum())
    total.compared += int((counted & compared).sum())
    total.after_divergence += int((counted & ~compared & late).sum())
    total.other_anchor += int((counted & ~compared & ~late & paired).sum())
    total.alone += int((counted & ~compared & ~late & ~paired).sum())

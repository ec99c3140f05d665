"""Lists of top logits, joined by token: what one side lists, the other may list elsewhere or not at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash.diff.aligned import Aligned
from dflash.diff.changes import ColumnChange, Elements, outside
from dflash.diff.flat import Array, Block, Values
from dflash.diff.tolerance import Tolerance
from dflash.policy.noise import F64, I64
from dflash.policy.topology import Bool

_CELLS = 2**22


@dataclass(frozen=True, slots=True)
class TopLists:
    """The lists of one side at S slots; K is the longest list.

    Attributes:
        row, slot: `[S]` where each list stands.
        place: `[S]` its number among the lists of its row.
        size: `[S]` its length.
        token: `[S, K]` -1 beyond the end of the list.
        listed: `[S, K]` whether there is a token.
    """

    block: Block
    row: I64
    slot: I64
    place: I64
    size: I64
    token: I64
    listed: Bool

    @classmethod
    def of(cls, block: Block, name: str, row: I64, slot: I64, place: I64, size: I64) -> TopLists:
        """Read the tokens of a column; list number `place` of a row begins `place * size` from its start."""
        width = int(size.max(initial=0))
        shape = (len(row), width)
        column = np.broadcast_to(np.arange(width), shape)
        found = _grid(block, name, row, place, size, width)
        listed = (found.valid.reshape(shape)) & (column < size[:, None])
        token = np.where(listed, found.value.reshape(shape).astype(np.int64), -1)
        return cls(block, row, slot, place, size, token, listed)

    def logits(self, name: str) -> Values:
        """The logits of a column beside the tokens; `[S, K]`."""
        found = _grid(self.block, name, self.row, self.place, self.size, self.token.shape[1])
        return Values(
            found.value.reshape(self.token.shape), found.valid.reshape(self.token.shape) & self.listed
        )


@dataclass(frozen=True, slots=True)
class Join:
    """Two sides' lists at the same slots.

    Attributes:
        pair: `[S]` the pair of rows.
        in_b: `[S, Ka]` where B lists the tokens of A, -1 if nowhere.
        in_a: `[S, Kb]` the other way round.
    """

    pair: I64
    a: TopLists
    b: TopLists
    in_b: I64
    in_a: I64

    @property
    def common(self) -> Bool:
        """Which tokens of A both sides list; `[S, Ka]`."""
        return np.asarray(self.in_b >= 0)

    def lse(self, name: str) -> tuple[F64, F64]:
        """A log-sum-exp column at the slots, on either side; NaN where it is null or not read."""
        left, right = (_lse(side, name) for side in (self.a, self.b))
        return left, right

    def beside(self, values: Values) -> Values:
        """Values of B's tokens beside those of A; `[S, Ka]`, where `common`."""
        at = np.maximum(self.in_b, 0)
        if not values.value.shape[1]:
            return Values(np.zeros(at.shape, values.value.dtype), np.zeros(at.shape, bool))
        row = np.arange(len(at))[:, None]
        return Values(values.value[row, at], values.valid[row, at] & self.common)


def join_slots(aligned: Aligned, topk_a: int, topk_b: int) -> Join:
    """Join the target's lists at every slot that both sides have."""
    pair = aligned.slot_pair
    a = _slot_lists(aligned.a, aligned.rows.a[pair], aligned.slot_a, topk_a)
    b = _slot_lists(aligned.b, aligned.rows.b[pair], aligned.slot_b, topk_b)
    return _join(pair, a, b)


def join_drafts(aligned: Aligned) -> Join:
    """Join the drafter's lists at every slot that both sides expanded."""
    sides = (
        (aligned.a, aligned.rows.a[aligned.slot_pair], aligned.slot_a),
        (aligned.b, aligned.rows.b[aligned.slot_pair], aligned.slot_b),
    )
    expanded = [block.flat("draft_lse").take(rows, slots).valid for block, rows, slots in sides]
    both = np.flatnonzero(expanded[0] & expanded[1])
    a, b = (_draft_lists(block, rows[both], slots[both]) for block, rows, slots in sides)
    return _join(aligned.slot_pair[both], a, b)


def compare_lists(
    join: Join,
    logits: str,
    law: tuple[F64, F64],
    changes: tuple[ColumnChange | None, ColumnChange | None],
    tolerance: Tolerance,
    aligned: Aligned,
) -> None:
    """Compare tokens and logits of joined lists.

    A token that one side does not list is a real difference if it lies, by more than the tolerance, above
    the lowest logit that this side does list; otherwise it only fell off the end of the list.

    Args:
        logits: the column of logits that orders the lists.
        law: log-sum-exp of every slot on either side.
        changes: of the tokens and of the logits; None if it is ignored.
    """
    left, right = join.a.logits(logits), join.b.logits(logits)
    beside = join.beside(right)
    if changes[1] is not None:
        changes[1].add(common_elements(join, left, beside, law), tolerance, aligned.locate)
    if changes[0] is not None:
        changes[0].compared += int(join.a.listed.sum())
        _compare_tokens(join, left, right, law, changes[0], tolerance, aligned)


def common_elements(join: Join, left: Values, beside: Values, law: tuple[F64, F64]) -> Elements:
    """The values of tokens that both sides list, with the log-sum-exp of their slots."""
    slot, column = np.nonzero(join.common)
    return Elements(
        join.pair[slot],
        Values(left.value[slot, column], left.valid[slot, column]),
        Values(beside.value[slot, column], beside.valid[slot, column]),
        law[0][slot],
        law[1][slot],
    )


def _compare_tokens(
    join: Join,
    left: Values,
    right: Values,
    law: tuple[F64, F64],
    change: ColumnChange,
    tolerance: Tolerance,
    aligned: Aligned,
) -> None:
    moved = join.common & (join.in_b != np.arange(join.a.token.shape[1]))
    change.changed += int(moved.sum())
    sides = ((join.a, left, join.in_b, right, law), (join.b, right, join.in_a, left, law[::-1]))
    for number, (lists, values, partner, others, (own, other)) in enumerate(sides):
        slot, column = np.nonzero(lists.listed & (partner < 0))
        if not len(slot):
            continue
        floor = lowest(others.value, others.valid)
        value = np.where(values.valid[slot, column], values.value[slot, column].astype(np.float64), np.nan)
        beyond = _above(value, floor[slot], tolerance)
        in_law = _above(value - own[slot], floor[slot] - other[slot], tolerance)
        change.count(len(slot), beyond, in_law)
        if change.wants(bool(beyond.any())):
            at = int(np.argmax(beyond))
            token = int(lists.token[slot[at], column[at]])
            a, b = (token, None) if number == 0 else (None, token)
            change.show(aligned.locate(int(join.pair[slot[at]])), a, b, bool(beyond.any()))


def lowest(values: Array, valid: Bool) -> F64:
    """Return the lowest valid value of each row; NaN for a row that has none."""
    found = np.where(valid, values.astype(np.float64), np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isinf(found), np.nan, found)


def _above(value: F64, floor: F64, tolerance: Tolerance) -> Bool:
    with np.errstate(invalid="ignore"):
        return outside(value, floor, tolerance) & ~(value < floor)


def _slot_lists(block: Block, row: I64, slot: I64, topk: int) -> TopLists:
    size = np.full(len(row), topk, dtype=np.int64)
    return TopLists.of(block, "slot_topk_token", row, slot, slot, size)


def _draft_lists(block: Block, row: I64, slot: I64) -> TopLists:
    lse, tokens = block.flat("draft_lse"), block.flat("draft_topk_token")
    before = np.concatenate(([0], np.cumsum(lse.valid)))
    starts, counts = lse.starts, np.maximum(lse.lengths, 0)
    expanded = before[starts + counts] - before[starts]
    size = np.maximum(tokens.lengths, 0)[row] // np.maximum(expanded[row], 1)
    place = before[starts[row] + slot] - before[starts[row]]
    return TopLists.of(block, "draft_topk_token", row, slot, place, size)


def _lse(lists: TopLists, name: str) -> F64:
    if not lists.block.has(name):
        return np.full(len(lists.row), np.nan)
    found = lists.block.flat(name).take(lists.row, lists.slot)
    return np.where(found.valid, found.value.astype(np.float64), np.nan)


def _grid(block: Block, name: str, row: I64, place: I64, size: I64, width: int) -> Values:
    """The elements of one list for every slot, `[S * width]`."""
    flat = block.flat(name)
    if width and (size == width).all() and flat.made_of(width) and len(row):
        first = flat.starts[row] // width + place
        inside = (place + 1) * width <= flat.lengths[row]
        if inside.all():
            value, valid = (part.reshape(-1, width)[first] for part in (flat.values, flat.valid))
            return Values(value.ravel(), valid.ravel())
    index = (place * size)[:, None] + np.arange(width)
    return flat.take(np.repeat(row, width), index.ravel())


def _join(pair: I64, a: TopLists, b: TopLists) -> Join:
    in_b = np.full(a.token.shape, -1, dtype=np.int64)
    in_a = np.full(b.token.shape, -1, dtype=np.int64)
    other = np.arange(len(pair))
    if a.token.shape == b.token.shape:
        same = (a.token == b.token).all(axis=1)
        for found, lists in ((in_b, a), (in_a, b)):
            found[same] = np.where(lists.listed[same], np.arange(lists.token.shape[1]), -1)
        other = np.flatnonzero(~same)
    step = max(1, _CELLS // max(1, a.token.shape[1] * b.token.shape[1]))
    for begin in range(0, len(other), step):
        some = other[begin : begin + step]
        equal = (a.token[some][:, :, None] == b.token[some][:, None, :]) & a.listed[some][:, :, None]
        if equal.size:
            in_b[some] = np.where(equal.any(axis=2), equal.argmax(axis=2), -1)
            in_a[some] = np.where(equal.any(axis=1), equal.argmax(axis=1), -1)
    return Join(pair, a, b, in_b, in_a)

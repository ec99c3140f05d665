"""What changed in one column: how many elements, how many of them beyond the tolerance, and the first one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from dflash.diff.flat import Array, Values
from dflash.diff.tolerance import Tolerance
from dflash.policy.noise import F64, I64
from dflash.policy.topology import Bool


class Where(NamedTuple):
    """The row of an example, by its names on either side."""

    request_a: str
    request_b: str
    kind: str
    round: int
    anchor_position: int


class Example(NamedTuple):
    """The first element that changed beyond the tolerance, or else the first that changed at all."""

    where: Where
    a: Any
    b: Any
    beyond: bool


class Elements(NamedTuple):
    """Elements of one column that stand for the same thing on both sides.

    Attributes:
        pair: the pair of rows of each.
        law_a, law_b: log-sum-exp to subtract, which turns raw logits into log p; NaN where it is null.
    """

    pair: I64
    a: Values
    b: Values
    law_a: F64 | None = None
    law_b: F64 | None = None


@dataclass(slots=True)
class ColumnChange:
    """Counts over the elements of one column.

    Attributes:
        unit: what one element belongs to.
        compared: elements that stand for the same thing on both sides.
        changed: of these, those that are not the same bits.
        beyond: of these, those outside the tolerance; whatever is no float has none.
        beyond_law: raw logits whose log p lies outside the tolerance, whether or not the logit itself moved.
        largest: largest finite distance.
    """

    name: str
    section: str
    unit: str
    compared: int = 0
    changed: int = 0
    beyond: int = 0
    beyond_law: int = 0
    largest: float | None = None
    first: Example | None = None

    def add(self, elements: Elements, tolerance: Tolerance, locate: Callable[[int], Where]) -> None:
        """Compare elements one by one."""
        a, b = elements.a, elements.b
        self.compared += int((a.valid | b.valid).sum())
        odd = np.flatnonzero((a.valid != b.valid) | (a.valid & _unequal(a.value, b.value)))
        if elements.law_a is not None and elements.law_b is not None:
            self.beyond_law += _beyond_as_law(a, b, elements.law_a, elements.law_b, tolerance)
        if not len(odd):
            return
        left, right = _numbers(a, odd), _numbers(b, odd)
        beyond = np.ones(len(odd), dtype=bool)
        if left is not None and right is not None:
            beyond = outside(left, right, tolerance)
            self._widen(np.abs(left - right))
        self.changed += len(odd)
        self.beyond += int(beyond.sum())
        at = odd[int(np.argmax(beyond))]
        if self.wants(bool(beyond.any())):
            where = locate(int(elements.pair[at]))
            self.show(where, _plain(a, int(at)), _plain(b, int(at)), bool(beyond.any()))

    def count(self, changed: int, beyond: Bool, law: Bool) -> None:
        """Add to the counts."""
        self.changed += changed
        self.beyond += int(beyond.sum())
        self.beyond_law += int(law.sum())

    def show(self, where: Where, a: Any, b: Any, beyond: bool) -> None:
        """Keep an example."""
        self.first = Example(where, a, b, beyond)

    def wants(self, beyond: bool) -> bool:
        """Whether an example of this weight is new."""
        return self.first is None or (beyond and not self.first.beyond)

    def _widen(self, distance: F64) -> None:
        finite = distance[np.isfinite(distance)]
        if len(finite):
            self.largest = max(self.largest or 0.0, float(finite.max()))


def outside(a: F64, b: F64, tolerance: Tolerance) -> Bool:
    """Return where two numbers are further apart than allowed; NaN and unequal infinities always are."""
    with np.errstate(invalid="ignore"):
        distance, scale = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
        near = distance <= tolerance.atol + tolerance.rtol * scale
    return np.asarray(~((near & np.isfinite(scale)) | (a == b)))


def _beyond_as_law(a: Values, b: Values, law_a: F64, law_b: F64, tolerance: Tolerance) -> int:
    """How many values differ after subtraction of what normalises them, which may itself have moved."""
    valid = a.valid | b.valid
    log_a = np.where(a.valid, a.value.astype(np.float64), np.nan) - law_a
    log_b = np.where(b.valid, b.value.astype(np.float64), np.nan) - law_b
    unknown = np.isnan(log_a) & np.isnan(log_b) & a.valid & b.valid & (a.value == b.value)
    return int((valid & ~unknown & outside(log_a, log_b, tolerance)).sum())


def _unequal(a: Array, b: Array) -> Bool:
    """Bit by bit, so that 0 and -0 differ."""
    if a.dtype == b.dtype and a.dtype.kind == "f":
        a, b = a.view(f"i{a.dtype.itemsize}"), b.view(f"i{b.dtype.itemsize}")
    return np.asarray(a != b, dtype=bool)


def _numbers(values: Values, index: I64) -> F64 | None:
    if values.value.dtype.kind != "f":
        return None
    return np.where(values.valid[index], values.value[index].astype(np.float64), np.nan)


def _plain(values: Values, index: int) -> Any:
    if not values.valid[index]:
        return None
    value = values.value[index]
    value = value.item() if hasattr(value, "item") else value
    return f"{len(value)} bytes, {sha256(value).hexdigest()[:12]}" if isinstance(value, bytes) else value

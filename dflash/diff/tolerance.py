"""How far two numbers may lie apart and still count as equal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dflash.diff.errors import ColumnNotNumeric, ToleranceSyntax
from dflash.draftfile.columns import COLUMN, Column
from dflash.draftfile.header import Header

DEFAULT = 1e-4
SIXTEEN_BIT = 100.0
FLOATS = tuple(name for name, column in COLUMN.items() if pa.types.is_floating(column.leaf_type))
_DRAFTED = ("tree",)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Numbers are equal within tolerance if |a - b| <= atol + rtol * max(|a|, |b|), the same both ways."""

    atol: float
    rtol: float


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Tolerances by column, as asked for; None and missing columns take the default of the precision."""

    atol: float | None = None
    rtol: float | None = None
    atol_of: Mapping[str, float] = field(default_factory=dict)
    rtol_of: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str, a: Header, b: Header) -> Tolerance:
        """Return the tolerance of a column."""
        column = COLUMN.get(name)
        usual = DEFAULT * (SIXTEEN_BIT if column and _is_coarse(column, a, b) else 1.0)
        atol = usual if self.atol is None else self.atol
        rtol = usual if self.rtol is None else self.rtol
        return Tolerance(self.atol_of.get(name, atol), self.rtol_of.get(name, rtol))


def parse_tolerances(atol: Sequence[str], rtol: Sequence[str]) -> Tolerances:
    """Read `--atol` and `--rtol`: X for all columns, COL=X for one; the last one given holds.

    Raises:
        ToleranceSyntax: no finite number of at least 0.
        ColumnNotNumeric: not a column of floats.
    """
    absolute, relative = _parse(atol), _parse(rtol)
    return Tolerances(absolute.pop("", None), relative.pop("", None), absolute, relative)


def _parse(texts: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if equals and name not in FLOATS:
            raise ColumnNotNumeric(name, FLOATS)
        try:
            value = float(number)
        except ValueError:
            raise ToleranceSyntax(text) from None
        if not math.isfinite(value) or value < 0:
            raise ToleranceSyntax(text)
        found[name] = value
    return found


def _is_coarse(column: Column, *headers: Header) -> bool:
    """Whether a model behind the column computes in 16 bits: the target, for drafts a drafter too."""
    dtypes = [header.target["dtype"] for header in headers]
    if column.group in _DRAFTED:
        dtypes += [drafter["dtype"] for header in headers for drafter in header.drafters]
    return any("16" in str(dtype) for dtype in dtypes if dtype)

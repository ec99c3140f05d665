"""Stretches of neighbours among flat values, which are copied whole instead of one by one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.noise import I64
from dflash.policy.topology import Bool
from dflash.policy.trees import Array

# values a stretch below which it is not worth a copy of its own
_SHORT = 64


class Runs(NamedTuple):
    """Stretches in ascending order, none of them empty.

    Attributes:
        begin: `[runs]`; `end` likewise.
    """

    begin: I64
    end: I64

    @classmethod
    def among(cls, offsets: I64, rows: I64) -> Runs:
        """Return the stretches that the given rows fill.

        Args:
            offsets: `[all rows + 1]` where the values of each row begin.
            rows: ascending.
        """
        opens = np.flatnonzero(np.append(True, rows[1:] != rows[:-1] + 1)[: len(rows)])
        closes = np.append(opens[1:], len(rows))[: len(opens)] - 1
        begin, end = offsets[rows[opens]], offsets[rows[closes] + 1]
        filled = end > begin
        return cls(begin[filled], end[filled])

    def of(self, values: Array) -> Array:
        """Return the values that lie on the stretches."""
        if len(self.begin) == 1:
            return values[int(self.begin[0]) : int(self.end[0])]
        if len(self.begin) > len(values) // _SHORT:
            return values[self._inside(len(values))]
        parts = [values[begin:end] for begin, end in zip(self.begin.tolist(), self.end.tolist(), strict=True)]
        return np.concatenate(parts) if parts else values[:0]

    def _inside(self, size: int) -> Bool:
        step = np.zeros(size + 1, dtype=np.int8)
        step[self.begin] += 1
        step[self.end] -= 1
        return np.asarray(np.cumsum(step[:-1], dtype=np.int8).view(np.bool_))

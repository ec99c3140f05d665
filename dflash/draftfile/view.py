"""The columns of one table, flattened once, for checks over whole columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dflash.draftfile.columns import COLUMN
from dflash.draftfile.errors import DataError
from dflash.draftfile.header import Header

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Place(NamedTuple):
    """Where a table comes from; None where there is no file yet."""

    path: Path | None = None
    row_group: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the header allows.

    Attributes:
        padded: Size of the padded vocabulary.
        topk: Top logits stored per slot.
        sources: Number of drafters.
    """

    padded: int
    topk: int
    sources: int

    @classmethod
    def of(cls, header: Header) -> Self:
        """The limits of a header."""
        return cls(header.padded_vocab_size, min(header.store_topk, header.vocab_size), len(header.drafters))


class Lists(NamedTuple):
    """One column, flattened: its values and how many each row has, -1 for a null list."""

    values: pa.Array
    lengths: Ints

    @property
    def counts(self) -> Ints:
        """Values in each row; 0 for a null list."""
        return np.maximum(self.lengths, 0)

    @property
    def rows(self) -> Ints:
        """The row of each value."""
        return np.repeat(np.arange(len(self.lengths)), self.counts)

    @property
    def positions(self) -> Ints:
        """The index of each value in its own row."""
        counts = self.counts.astype(np.int32)
        starts: Ints = np.repeat(np.cumsum(counts, dtype=np.int32) - counts, counts)
        return np.arange(len(starts), dtype=np.int32) - starts

    def row_of(self, place: int) -> int:
        """The row of one value."""
        return int(np.searchsorted(np.cumsum(self.counts), place, side="right"))


@dataclass(slots=True)
class View:
    """A table under inspection and the violations found so far."""

    table: pa.Table
    limits: Limits
    place: Place
    found: list[DataError] = field(default_factory=list)
    _lists: dict[str, Lists] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Whether all these columns were read."""
        return all(name in self.table.column_names for name in names)

    def lists(self, name: str) -> Lists:
        """A column as flat values; a scalar column has one a row."""
        if name not in self._lists:
            self._lists[name] = _flatten(self.table[name], COLUMN[name].is_list)
        return self._lists[name]

    def report(self, odd: Bools, kind: type[DataError], expected: str, found: npt.ArrayLike) -> None:
        """Records the first odd row, if there is one; `found` holds a value per row."""
        if odd.any():
            row = int(np.flatnonzero(odd)[0])
            self.fail(kind, expected, str(np.asarray(found)[row]), row)

    def fail_at(self, name: str, place: int, kind: type[DataError], expected: str, found: str) -> None:
        """Records the value of a column at a place among its flat values."""
        self.fail(kind, expected, found, self.lists(name).row_of(place))

    def fail(self, kind: type[DataError], expected: str, found: str, row: int) -> None:
        """Records a violation in a row."""
        self.found.append(kind(expected, found, self.place.path, self.place.row_group, row))


def _flatten(column: pa.ChunkedArray, is_list: bool) -> Lists:
    whole = column.combine_chunks()
    if not is_list:
        return Lists(whole, np.ones(len(whole), np.int64))
    lengths = pc.list_value_length(whole).fill_null(-1).to_numpy(zero_copy_only=False)
    return Lists(whole.flatten(), lengths.astype(np.int64))


def first(odd: Bools) -> int:
    """The first place that is odd."""
    return int(np.argmax(odd))

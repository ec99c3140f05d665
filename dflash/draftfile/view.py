"""The columns of one table, flattened once, for checks over whole columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash.draftfile.columns import COLUMN
from dflash.draftfile.errors import DataError
from dflash.draftfile.header import Header

Ints = npt.NDArray[np.integer[Any]]
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


@dataclass(frozen=True)
class Lists:
    """One column, flattened.

    Attributes:
        values: of all rows, one row after the other.
        offsets: `[rows + 1]` where the values of each row begin.
        absent: `[rows]` whether the list is null; None if none is.
    """

    values: pa.Array
    offsets: Ints
    absent: Bools | None

    @cached_property
    def counts(self) -> Ints:
        """Values in each row; 0 for a null list."""
        return np.diff(self.offsets)

    @cached_property
    def lengths(self) -> Ints:
        """Values in each row; -1 for a null list."""
        return self.counts if self.absent is None else np.where(self.absent, -1, self.counts)

    @cached_property
    def rows(self) -> Ints:
        """The row of each value."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def positions(self) -> Ints:
        """The index of each value in its own row."""
        starts: Ints = np.repeat(self.offsets[:-1], self.counts)
        return np.arange(len(starts), dtype=starts.dtype) - starts

    def row_of(self, place: int) -> int:
        """The row of one value."""
        return int(np.searchsorted(self.offsets[1:], place, side="right"))


@dataclass(slots=True)
class View:
    """A table under inspection and the violations found so far.

    Attributes:
        chains: whether every tree was found to be a single chain.
    """

    table: pa.Table
    limits: Limits
    place: Place
    found: list[DataError] = field(default_factory=list)
    chains: bool = False
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


def whole(column: pa.ChunkedArray) -> pa.Array:
    """One array of a column, without a copy where it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def texts(strings: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The strings of an array, None for a null; of a coded one in a twentieth of the time of `to_pylist`."""
    array = whole(strings) if isinstance(strings, pa.ChunkedArray) else strings
    found: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return found


def _flatten(column: pa.ChunkedArray, is_list: bool) -> Lists:
    array = whole(column)
    if not is_list:
        return Lists(array, np.arange(len(array) + 1), None)
    offsets = array.offsets.to_numpy()
    if not array.null_count:
        return Lists(array.flatten(), offsets - offsets[0] if offsets[0] else offsets, None)
    absent = array.is_null().to_numpy(zero_copy_only=False)
    counts = np.diff(offsets)
    if not counts[absent].any():
        return Lists(array.values[offsets[0] : offsets[-1]], offsets - offsets[0], absent)
    counts = np.where(absent, 0, counts)
    return Lists(array.flatten(), np.concatenate(([0], np.cumsum(counts))), absent)


def first(odd: Bools) -> int:
    """The first place that is odd."""
    return int(np.argmax(odd))

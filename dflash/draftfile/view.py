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
        return cls(header.padded_vocab_size, min(header.store_topk, header.vocab_size), len(header.drafters))


class Lists(NamedTuple):
    """One list column: flat elements, the row of each, and lengths with -1 for a null list."""

    values: pa.Array
    row: Ints
    lengths: Ints

    @property
    def position(self) -> Ints:
        """Index of each element in its own list."""
        counts = np.maximum(self.lengths, 0)
        starts: Ints = np.repeat(np.cumsum(counts) - counts, counts)
        return np.arange(len(self.row)) - starts


@dataclass(slots=True)
class View:
    """A table under inspection and the violations found so far."""

    table: pa.Table
    limits: Limits
    place: Place
    found: list[DataError] = field(default_factory=list)
    _lists: dict[str, Lists] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        return all(name in self.table.column_names for name in names)

    def lists(self, name: str) -> Lists:
        if name not in self._lists:
            self._lists[name] = flatten(self.table[name])
        return self._lists[name]

    def values(self, name: str) -> tuple[pa.Array, Ints]:
        """Flat values of a column, lists or not, and the row of each."""
        if COLUMN[name].is_list:
            lists = self.lists(name)
            return lists.values, lists.row
        return self.table[name].combine_chunks(), np.arange(self.table.num_rows)

    def report(self, odd: Bools, kind: type[DataError], expected: str, found: npt.ArrayLike) -> None:
        """Records the first odd row, if there is one; `found` holds a value per row."""
        if odd.any():
            row = int(np.flatnonzero(odd)[0])
            self.fail(kind, expected, str(np.asarray(found)[row]), row)

    def fail(self, kind: type[DataError], expected: str, found: str, row: int) -> None:
        self.found.append(kind(expected, found, self.place.path, self.place.row_group, row))


def flatten(column: pa.ChunkedArray) -> Lists:
    """A list column as flat elements with the row of each."""
    lists = column.combine_chunks()
    lengths = pc.list_value_length(lists).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    row = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))
    return Lists(lists.flatten(), row, lengths)

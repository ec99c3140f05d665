"""Columns of a table as flat numpy arrays: the values, which of them exist, where each row begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash.policy.noise import I64
from dflash.policy.topology import Bool

Array = npt.NDArray[Any]


class Values(NamedTuple):
    """Elements of one column; a value that does not exist is 0 (or None) and not valid."""

    value: Array
    valid: Bool


@dataclass(frozen=True, slots=True)
class Flat:
    """One column.

    Attributes:
        values: all elements, row after row; a scalar column has one a row.
        valid: whether each element exists.
        starts: `[rows]` where each row begins in `values`.
        lengths: `[rows]` elements of each row, -1 for a null list.
    """

    values: Array
    valid: Bool
    starts: I64
    lengths: I64

    def made_of(self, width: int) -> bool:
        """Whether every row's list is a whole number of pieces of this width."""
        return bool((self.starts % width == 0).all() and len(self.values) % width == 0)

    def take(self, rows: I64, places: I64) -> Values:
        """Return one element of each row given; beyond the end of its list nothing exists."""
        inside = places < self.lengths[rows]
        index = np.where(inside, self.starts[rows] + places, 0)
        if not len(self.values):
            return Values(np.zeros(len(rows), self.values.dtype), inside)
        return Values(self.values[index], inside & self.valid[index])


@dataclass(slots=True)
class Block:
    """Rows of whole requests.

    Attributes:
        owner: `[rows]` the request of each row, counted from 0.
        starts: `[requests]` the first row of each request, which is its prefill.
    """

    table: pa.Table
    starts: I64
    _flat: dict[str, Flat] = field(default_factory=dict)

    @property
    def owner(self) -> I64:
        sizes = np.diff(np.append(self.starts, self.table.num_rows))
        return np.repeat(np.arange(len(self.starts)), sizes)

    def has(self, name: str) -> bool:
        return name in self.table.column_names

    def flat(self, name: str) -> Flat:
        """Return a column, flattened once."""
        if name not in self._flat:
            self._flat[name] = flatten(self.table[name])
        return self._flat[name]

    def scalar(self, name: str, null: int = -1) -> I64:
        """Return an integer column with one value a row; `[rows]`."""
        found = self.flat(name)
        return np.where(found.valid, found.values, null).astype(np.int64)

    def ids(self) -> Array:
        """Return the name of each row's request; `[rows]`."""
        return self.flat("request_id").values


def flatten(column: pa.ChunkedArray) -> Flat:
    """Flatten a column; nested and textual values stay Python objects, one a row."""
    whole = column.combine_chunks()
    if pa.types.is_list(whole.type) and _is_plain(whole.type.value_type):
        lengths = whole.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        inner = whole.flatten()
    else:
        lengths, inner = np.ones(len(whole), np.int64), whole
    counts = np.maximum(lengths, 0)
    return Flat(_numpy(inner), _valid(inner), np.cumsum(counts) - counts, lengths)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _numpy(values: pa.Array) -> Array:
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    elif not _is_plain(kind):
        return objects(values.to_pylist())
    filled = values.fill_null(0) if values.null_count else values
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def objects(values: Sequence[object]) -> Array:
    """Return Python objects as an array of one dimension, whatever they are."""
    found = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        found[index] = value
    return found


def _valid(values: pa.Array) -> Bool:
    if not values.null_count:
        return np.ones(len(values), dtype=bool)
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))

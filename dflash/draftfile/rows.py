"""Rows turned into an Arrow table: those of one request, collected one by one, or whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash.draftfile.columns import arrow_schema, is_user_column
from dflash.draftfile.errors import UnknownColumn, ValueOutOfType

Row = Mapping[str, Any]


class RequestRows:
    """Collects rows; a missing column is null, a NaN or None inside a list is a null element.

    Args:
        request_id: Written into every row.
        features: Include the columns of the capability `features`.
    """

    def __init__(self, request_id: str, *, features: bool = False) -> None:
        self.request_id = request_id
        self._schema = arrow_schema(features)
        self._names = frozenset(self._schema.names)
        self._user_columns: set[str] = set()
        self._rows: list[Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: Row) -> None:
        """Adds a row of Python scalars, strings, bytes, lists or (masked) numpy arrays.

        Raises:
            UnknownColumn: A name that is neither in the table nor starts with `x_`.
        """
        for name in row.keys() - self._names:
            if not is_user_column(name):
                raise UnknownColumn(name, self._schema.names)
            self._user_columns.add(name)
        self._rows.append({**row, "request_id": self.request_id})

    def table(self) -> pa.Table:
        """All rows so far, in order, with exactly `arrow_schema()` and then the user columns.

        Raises:
            ValueOutOfType: A value that the column's type cannot hold.
        """
        arrays = [column_array(field, self._rows) for field in self._schema]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        for name in sorted(self._user_columns):
            table = table.append_column(name, pa.array([row.get(name) for row in self._rows]))
        return table


def column_array(field: pa.Field, rows: Sequence[Row]) -> pa.Array:
    """One column of the rows as an Arrow array of the field's type."""
    values = [row.get(field.name) for row in rows]
    if all(value is None for value in values):
        return pa.nulls(len(values), field.type)
    try:
        if pa.types.is_list(field.type):
            return _list_array(field.type, values)
        return _scalar_array(field.type, values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ValueOutOfType(field.name, str(field.type), str(error)) from error


def _scalar_array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_floating(kind):
        values = [None if value is None or value != value else float(value) for value in values]
    return _binary_array(kind, values) if pa.types.is_binary(kind) else pa.array(values, kind)


def _binary_array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Bytes, which are copied once."""
    absent = np.array([value is None for value in values])
    lengths = np.array([0 if value is None else len(value) for value in values])
    if lengths.sum() > np.iinfo(np.int32).max:
        raise OverflowError(f"{lengths.sum()} bytes in one table")
    found = _binaries(kind, b"".join(value for value in values if value is not None), lengths)
    if not absent.any():
        return found
    valid = pa.array(~absent).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [valid, *found.buffers()[1:]])


def _list_array(kind: pa.ListType, values: list[Any]) -> pa.Array:
    present = [value for value in values if value is not None]
    if set(map(type, present)) != {np.ndarray}:
        present = [_array(value) for value in present]
    absent = np.array([value is None for value in values]) if len(present) < len(values) else None
    lengths = np.zeros(len(values), np.int32)
    lengths[slice(None) if absent is None else ~absent] = np.fromiter(map(len, present), np.int32)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data, holes = _joined(present)
    leaf = pa.array(data, mask=holes)
    leaf = leaf if leaf.type == kind.value_type else leaf.cast(kind.value_type)
    nulls = None if absent is None else pa.array(absent)
    return pa.ListArray.from_arrays(pa.array(offsets), leaf, type=kind, mask=nulls)


def _array(value: Any) -> npt.NDArray[Any]:
    """One list, masked where an element is None."""
    found = value if isinstance(value, np.ndarray) else np.asarray(value)
    if found.dtype != object or not found.size:
        return found
    none = np.array([item is None or item != item for item in found]) | np.ma.getmaskarray(found)
    whole = np.array([0 if hole else item for item, hole in zip(found, none, strict=True)])
    return np.ma.masked_array(whole, none)


def _joined(parts: list[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """All elements in a row, and which of them are null; None if none is."""
    kinds = {part.dtype for part in parts}
    if np.dtype(object) in kinds:
        parts = [_array(part) for part in parts]
    if len(kinds) > 1:
        # an empty list is of no kind
        parts = [part for part in parts if part.size]
    if not parts:
        return np.empty(0, np.int8), None
    masked = any(kind is np.ma.MaskedArray for kind in set(map(type, parts)))
    data = np.concatenate([np.ma.getdata(part) for part in parts] if masked else parts)
    if data.ndim != 1:
        raise ValueError(f"expected a list, found {data.ndim} dimensions")
    if data.dtype == object or not data.size:
        return np.empty(0, np.int8), None
    holes = np.isnan(data) if data.dtype.kind == "f" else None
    if masked:
        known = np.concatenate([np.ma.getmaskarray(part) for part in parts])
        holes = known if holes is None else holes | known
    if holes is None or not holes.any():
        return data, None
    return np.where(holes, data.dtype.type(0), data), holes


class Ragged(NamedTuple):
    """A column of lists of several lengths.

    Attributes:
        values: Of all rows, one row after the other.
        lengths: `[rows]`.
    """

    values: npt.NDArray[Any]
    lengths: npt.NDArray[np.integer[Any]]


class Coded(NamedTuple):
    """A column of strings.

    Attributes:
        codes: `[rows]` places among the names; -1 for null.
        names: Each of them once.
    """

    codes: npt.NDArray[np.integer[Any]]
    names: Sequence[str]


Column = npt.NDArray[Any] | Ragged | Coded | Sequence[Any]
Columns = Mapping[str, Column]


def columns_table(columns: Columns, count: int, *, features: bool = False) -> pa.Table:
    """The table that `RequestRows` makes of the same rows, without making them.

    Args:
        columns: Numbers `[rows]`, lists of one length `[rows, length]` or `Ragged`, strings `Coded`, bytes
            `Ragged`, or what `pyarrow.array` takes. A column that is not there is null; so is every NaN.
        count: Rows.
        features: Include the columns of the capability `features`.

    Raises:
        UnknownColumn: A name that is not in the format.
        ValueOutOfType: A value that the column's type cannot hold.
    """
    schema = arrow_schema(features)
    for name in columns.keys() - set(schema.names):
        raise UnknownColumn(name, schema.names)
    arrays = [_whole_column(field, columns.get(field.name), count) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _whole_column(field: pa.Field, column: Column | None, count: int) -> pa.Array:
    kind = field.type
    if column is None:
        return pa.nulls(count, kind)
    try:
        if isinstance(column, Coded):
            return _strings(column, kind)
        if isinstance(column, Ragged):
            make = _binaries if pa.types.is_binary(kind) else _lists
            return make(kind, column.values, column.lengths)
        if isinstance(column, np.ndarray) and column.ndim == 2:
            return _lists(kind, column.reshape(-1), np.full(count, column.shape[1], np.int32))
        if isinstance(column, np.ndarray):
            return _leaf(kind, column)
        return pa.array(column, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ValueOutOfType(field.name, str(kind), str(error)) from error


def _strings(column: Coded, kind: pa.DataType) -> pa.Array:
    holes = column.codes < 0
    places = pa.array(column.codes, pa.int32(), mask=holes if holes.any() else None)
    return pa.array(column.names, kind).take(places)


def _lists(kind: pa.ListType, values: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(_offsets(lengths)), _leaf(kind.value_type, values), type=kind)


def _binaries(kind: pa.DataType, values: npt.NDArray[Any] | bytes, lengths: npt.NDArray[Any]) -> pa.Array:
    """Bytes `values` as they lie in memory."""
    buffers = [None, pa.py_buffer(_offsets(lengths)), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(lengths), buffers)


def _offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _leaf(kind: pa.DataType, data: npt.NDArray[Any]) -> pa.Array:
    """Numbers of a type, null where they are NaN."""
    holes = np.isnan(data) if data.dtype.kind == "f" else None
    if holes is None or not holes.any():
        found = pa.array(data)
    else:
        found = pa.array(np.where(holes, data.dtype.type(0), data), mask=holes)
    return found if found.type == kind else found.cast(kind)

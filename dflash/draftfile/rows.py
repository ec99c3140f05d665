"""The rows of one request, collected one by one and turned into an Arrow table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dflash.draftfile.columns import COLUMN, Column, arrow_schema, is_user_column
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
        self._rows: list[Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: Row) -> None:
        """Adds a row of Python scalars, strings, bytes, lists or (masked) numpy arrays.

        Raises:
            UnknownColumn: A name that is neither in the table nor starts with `x_`.
        """
        for name in row:
            if name not in self._schema.names and not is_user_column(name):
                raise UnknownColumn(name, self._schema.names)
        self._rows.append({**row, "request_id": self.request_id})

    def table(self) -> pa.Table:
        """All rows so far, in order, with exactly `arrow_schema()` and then the user columns.

        Raises:
            ValueOutOfType: A value that the column's type cannot hold.
        """
        arrays = [column_array(COLUMN[name], self._rows) for name in self._schema.names]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        for name in sorted({name for row in self._rows for name in row if is_user_column(name)}):
            table = table.append_column(name, pa.array([row.get(name) for row in self._rows]))
        return table


def column_array(column: Column, rows: Sequence[Row]) -> pa.Array:
    """One column of the rows as an Arrow array of the column's type."""
    values = [row.get(column.name) for row in rows]
    try:
        return _list_array(column, values) if column.is_list else _scalar_array(column, values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ValueOutOfType(column.name, column.type, str(error)) from error


def _scalar_array(column: Column, values: list[Any]) -> pa.Array:
    if pa.types.is_floating(column.leaf_type):
        values = [None if value is None or value != value else float(value) for value in values]
    return pa.array(values, column.arrow_type)


def _list_array(column: Column, values: list[Any]) -> pa.Array:
    present = [_elements(value) for value in values if value is not None]
    offsets = np.zeros(len(values) + 1, np.int32)
    lengths = iter(len(data) for data, _ in present)
    offsets[1:] = np.cumsum([0 if value is None else next(lengths) for value in values])
    empty = (np.empty(0, np.int64), np.empty(0, bool))
    data, mask = (np.concatenate(parts) for parts in zip(*(present or [empty]), strict=True))
    leaf = pa.array(data, mask=mask if mask.any() else None).cast(column.leaf_type)
    nulls = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), leaf, type=column.arrow_type, mask=nulls)


def _elements(value: Any) -> tuple[np.ndarray, np.ndarray]:
    data = np.asarray(np.ma.getdata(value) if isinstance(value, np.ma.MaskedArray) else value)
    mask = (
        np.array(np.ma.getmaskarray(value))
        if isinstance(value, np.ma.MaskedArray)
        else np.zeros(data.shape, bool)
    )
    if data.size == 0:
        return np.empty(0, np.int64), np.empty(0, bool)
    if data.dtype == object:
        mask |= np.array([item is None or item != item for item in data])
        data = np.array([0 if hole else item for item, hole in zip(data, mask, strict=True)])
    elif data.dtype.kind == "f":
        mask |= np.isnan(data)
    return np.where(mask, data.dtype.type(0), data), mask

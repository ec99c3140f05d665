"""The rows of one request, collected one by one and turned into an Arrow table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
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
        arrays = [column_array(field, self._rows) for field in self._schema]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        for name in sorted({name for row in self._rows for name in row if is_user_column(name)}):
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
    return pa.array(values, kind)


def _list_array(kind: pa.ListType, values: list[Any]) -> pa.Array:
    found = [None if value is None else _elements(value) for value in values]
    present = [part for part in found if part is not None]
    lengths = (0 if part is None else len(part.data) for part in found)
    offsets = pa.array(np.fromiter(accumulate(lengths, initial=0), np.int32, len(found) + 1))
    data = present[0].data if len(present) == 1 else np.concatenate([part.data for part in present])
    holes = any(part.holes is not None for part in present)
    mask = np.concatenate([part.mask() for part in present]) if holes else None
    leaf = pa.array(data, mask=mask)
    leaf = leaf if leaf.type == kind.value_type else leaf.cast(kind.value_type)
    nulls = pa.array([part is None for part in found]) if len(present) < len(found) else None
    return pa.ListArray.from_arrays(offsets, leaf, type=kind, mask=nulls)


class _Elements(NamedTuple):
    """The elements of one list; `holes` is None if none is null."""

    data: npt.NDArray[Any]
    holes: npt.NDArray[np.bool_] | None

    def mask(self) -> npt.NDArray[np.bool_]:
        return np.zeros(len(self.data), bool) if self.holes is None else self.holes


def _elements(value: Any) -> _Elements:
    holes = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else None
    data = np.asarray(value)
    if data.ndim != 1:
        raise ValueError(f"expected a list, found {data.ndim} dimensions")
    if not data.size:
        return _Elements(np.empty(0, np.int8), None)
    if data.dtype == object:
        none = np.array([item is None or item != item for item in data])
        data = np.array([0 if hole else item for item, hole in zip(data, none, strict=True)])
    elif data.dtype.kind == "f":
        none = np.isnan(data)
    elif holes is None:
        return _Elements(data, None)
    else:
        none = np.zeros(len(data), bool)
    if holes is not None:
        none |= holes
    return _Elements(np.where(none, data.dtype.type(0), data), none) if none.any() else _Elements(data, None)

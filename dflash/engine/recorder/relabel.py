"""What a recorder writes over in rows of many requests: their ids, and that they were interrupted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def named(table: pa.Table, request_ids: Sequence[str], rows: NDArray[np.int64]) -> pa.Table:
    """The rows under other ids.

    Args:
        rows: `[requests]` how many follow each other of each.
    """
    places = np.repeat(np.arange(len(rows)), rows)
    return _with(table, "request_id", pa.array(request_ids, pa.string()).take(pa.array(places)))


def interrupted(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    """The rows, some of which say that their request was interrupted after them."""
    if not rows:
        return table
    column = table["truncated_by"].combine_chunks()
    there = np.zeros(len(column), np.bool_)
    there[rows] = True
    told = pa.array(["interrupted"] * len(rows), pa.string())
    return _with(table, "truncated_by", pc.replace_with_mask(column, pa.array(there), told))


def _with(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    position = table.schema.get_field_index(name)
    return table.set_column(position, table.schema.field(position), column)

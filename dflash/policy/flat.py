"""Lists of an Arrow column as flat arrays, nulls filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.policy.errors import NullColumn
from dflash.policy.noise import I64
from dflash.policy.topology import offsets_of
from dflash.policy.trees import Array

if TYPE_CHECKING:
    import pyarrow as pa


def list_counts(lists: pa.ListArray) -> I64:
    """Return how many values each list has, 0 for a null one."""
    counts: I64 = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    if lists.null_count:
        counts[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    return counts


def list_offsets(lists: pa.ListArray) -> I64:
    """Return where the values of each list begin among those of all; `[lists + 1]`."""
    if lists.null_count:
        return offsets_of(list_counts(lists))
    stored = lists.offsets.to_numpy()
    offsets: I64 = np.subtract(stored, stored[0], dtype=np.int64)
    return offsets


def flat_values(lists: pa.Array, counts: I64, extra: int | None = 0, certain: str | None = None) -> Array:
    """Concatenate the lists of a column; a null list becomes nulls, as many as it should have values.

    Args:
        counts: how many values each list should have beside `extra` ones; if that is None, any number.
        certain: name of a column that must hold a value everywhere.

    Raises:
        NullColumn: it does not.
    """
    nested = hasattr(lists, "flatten") and hasattr(lists, "value_lengths")
    flat = lists.flatten() if nested else lists
    if certain is not None and (lists.null_count or flat.null_count):
        raise NullColumn(certain, "it is null in some of these rounds")
    null: float = np.nan if str(flat.type) in ("float", "double", "halffloat") else -1
    if flat.null_count:
        flat = flat.fill_null(null)
    array: Array = flat.to_numpy(zero_copy_only=False)
    if not nested or extra is None or len(array) == int(counts.sum()) + extra * len(counts):
        return array
    counts = counts + extra
    valid = lists.is_valid().to_numpy(zero_copy_only=False)
    # a top-k column has K values for each slot
    each = len(array) // max(1, int(counts[valid].sum())) or 1
    if len(array) == each * counts.sum():
        return array
    filled: Array = np.full(each * int(counts.sum()), null, dtype=array.dtype)
    filled[np.repeat(valid, each * counts)] = array
    return filled


def as_stored(value: Any) -> Array:
    """Return a list as a file stores it: float32, or whole numbers."""
    array = np.asarray(value)
    stored: Array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    return stored

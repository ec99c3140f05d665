"""What must hold in every row: columnar checks, by the classes of `violations`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dflash.draftfile.columns import COLUMN
from dflash.draftfile.errors import DataError
from dflash.draftfile.list_lengths import check_draft_topk, check_lengths
from dflash.draftfile.summary import Kind
from dflash.draftfile.tree_shape import check_accepted, check_parents
from dflash.draftfile.view import Limits, Place, View, first
from dflash.draftfile.violations import (
    KindUnknown,
    NotFinite,
    NullValue,
    SourceRange,
    TokenRange,
    TruncationUnknown,
)

MINUS_INFINITY = {"node_logp", "trunk_logp", "trunk_logq", "slot_cutoff"}
TRUNCATIONS = ("none", "eos", "stop", "length", "interrupted")
TOKENS = tuple(name for name, column in COLUMN.items() if column.unit == "token id")
FLOATS = {name for name, column in COLUMN.items() if pa.types.is_floating(column.leaf_type)}


def check_rows(table: pa.Table, limits: Limits, place: Place = Place()) -> None:
    """Checks every invariant that the columns present allow.

    Args:
        table: Rows of whole requests, any subset of the format's columns.

    Raises:
        DataError: The first violation, as the class of its kind.
    """
    for error in row_problems(table, limits, place):
        raise error


def row_problems(table: pa.Table, limits: Limits, place: Place = Place()) -> list[DataError]:
    """The first violation of every check; empty if all is well."""
    view = View(table, limits, place)
    _check_nulls(view)
    if view.found:
        return view.found
    _check_kind(view)
    check_lengths(view)
    check_draft_topk(view)
    _check_truncation(view)
    _check_ids(view)
    _check_floats(view)
    if check_parents(view):
        check_accepted(view)
    return view.found


def _check_nulls(view: View) -> None:
    for name in view.table.column_names:
        column = COLUMN.get(name)
        if column is None:
            continue
        if not column.nullable and view.table[name].null_count:
            holes = view.table[name].is_null().to_numpy()
            view.report(holes, NullValue, f"a value in {name}", np.full(len(holes), "null"))
        if column.is_list and not column.element_nullable and view.lists(name).values.null_count:
            holes = view.lists(name).values.is_null().to_numpy(zero_copy_only=False)
            view.fail_at(name, first(holes), NullValue, f"no null elements in {name}", "one")


def _check_kind(view: View) -> None:
    if view.has("kind"):
        kind = view.table["kind"].to_numpy()
        # as in `_check_range`
        if kind.view(f"u{kind.itemsize}").max(initial=0) > max(Kind):
            view.report((kind < 0) | (kind > max(Kind)), KindUnknown, "a kind from 0 to 3", kind)


def _check_truncation(view: View) -> None:
    if view.has("truncated_by"):
        column = view.table["truncated_by"]
        odd = pc.invert(pc.is_in(column, pa.array(TRUNCATIONS))).to_numpy() & column.is_valid().to_numpy()
        view.report(odd, TruncationUnknown, " or ".join(TRUNCATIONS), column.to_pylist() if odd.any() else [])


def _check_ids(view: View) -> None:
    for name in filter(view.has, TOKENS):
        _check_range(view, name, view.limits.padded, TokenRange, "the padded vocabulary")
    if view.has("node_source"):
        _check_range(view, "node_source", view.limits.sources, SourceRange, "the header's drafters")


def _check_range(view: View, name: str, size: int, kind: type[DataError], what: str) -> None:
    values = view.lists(name).values
    if values.null_count == len(values):
        return
    data = (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False)
    # a negative number, taken as an unsigned one, is larger than any other
    if data.view(f"u{data.itemsize}").max(initial=0) < min(size, np.iinfo(data.dtype).max + 1):
        return
    at = first((data < 0) | (data >= size))
    view.fail_at(name, at, kind, f"{name} from 0 to {size - 1}, inside {what}", str(data[at]))


def _check_floats(view: View) -> None:
    for name in view.table.column_names:
        if name not in FLOATS:
            continue
        values = view.lists(name).values
        data = (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False)
        infinite = name in MINUS_INFINITY
        # the extremes of an array with NaN are NaN
        if not len(data) or (data.max() < np.inf and (infinite or np.isfinite(data.min()))):
            continue
        at = first(~(data < np.inf if infinite else np.isfinite(data)))
        allowed = "finite or -inf" if infinite else "finite"
        view.fail_at(name, at, NotFinite, f"{name} to be {allowed}", str(data[at]))

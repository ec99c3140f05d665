"""What must hold in every row: columnar checks, each with its own error class."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dflash.draftfile.columns import COLUMN
from dflash.draftfile.errors import DataError
from dflash.draftfile.header import Header
from dflash.draftfile.summary import Kind

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MINUS_INFINITY = {"node_logp", "trunk_logp", "trunk_logq", "slot_cutoff"}
TRUNCATIONS = ("none", "eos", "stop", "length", "interrupted")
TOKENS = tuple(name for name, column in COLUMN.items() if column.unit == "token id")


class NullValue(DataError):
    """A value that must be there is null."""


class KindUnknown(DataError):
    """A row of no known kind."""


class ListLength(DataError):
    """The lists of a row do not fit each other."""


class ParentOrder(DataError):
    """A node stands before its parent."""


class AcceptedPath(DataError):
    """The accepted nodes are not a path from the anchor."""


class TokenRange(DataError):
    """A token id outside the padded vocabulary."""


class SourceRange(DataError):
    """A node of a drafter that the header does not name."""


class NotFinite(DataError):
    """NaN, or an infinity where none may be."""


class TruncationUnknown(DataError):
    """A `truncated_by` that the format does not have."""


class RequestSplit(DataError):
    """The rows of a request do not stand together in one row group."""


class RowOrder(DataError):
    """The rows of a request are out of order."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the header allows.

    Attributes:
        padded: Size of the padded vocabulary.
        topk: Top logits per slot.
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


@dataclass(slots=True)
class View:
    """The columns of one table, flattened once."""

    table: pa.Table
    limits: Limits
    fail: Callable[[type[DataError], str, str, int], None]
    _lists: dict[str, Lists]

    def has(self, *names: str) -> bool:
        return all(name in self.table.column_names for name in names)

    def lists(self, name: str) -> Lists:
        if name not in self._lists:
            self._lists[name] = _flatten(self.table[name])
        return self._lists[name]


def check_rows(table: pa.Table, limits: Limits, path: Path | None = None, row_group: int | None = None) -> None:
    """Checks every invariant that the columns present allow.

    Args:
        table: Rows of whole requests, any subset of the format's columns.

    Raises:
        DataError: The first violation, as the class of its kind.
    """
    for error in row_problems(table, limits, path, row_group):
        raise error


def row_problems(
    table: pa.Table, limits: Limits, path: Path | None = None, row_group: int | None = None
) -> list[DataError]:
    """The first violation of every kind of check; empty if all is well."""
    found: list[DataError] = []

    def fail(kind: type[DataError], expected: str, got: str, row: int) -> None:
        found.append(kind(expected, got, path, row_group, row))

    view = View(table, limits, fail, {})
    _check_nulls(view)
    if found:
        return found
    for check in (_check_kind, _check_lengths, _check_truncation, _check_tokens, _check_floats, _check_sources):
        check(view)
    if view.has("node_parent"):
        _check_parents(view)
        if view.has("accepted_nodes") and not found:
            _check_accepted(view)
    return found


def check_requests(
    table: pa.Table, seen: Collection[str], path: Path | None = None, row_group: int | None = None
) -> set[str]:
    """Checks that the requests of a row group are whole, new and ordered.

    Returns:
        The requests of this row group; empty if the table lacks the columns to tell.
    """
    if "request_id" not in table.column_names or not table.num_rows:
        return set()
    ids = table["request_id"].combine_chunks()
    starts = np.flatnonzero(_changes(ids))
    names = ids.take(pa.array(starts)).to_pylist()
    known: set[str] = set()
    for name, row in zip(names, starts, strict=True):
        if name in seen or name in known:
            raise RequestSplit("all rows of a request together", f"more rows of {name!r}", path, row_group, int(row))
        known.add(name)
    if {"kind", "round"} <= set(table.column_names):
        _check_order(table, starts, path, row_group)
    return known


RANK = np.array([2, 3, 0, 1])


def _check_order(table: pa.Table, starts: Ints, path: Path | None, row_group: int | None) -> None:
    rank = RANK[table["kind"].to_numpy()]
    first = np.zeros(len(rank), bool)
    first[starts] = True
    back = np.flatnonzero((np.diff(rank, prepend=0) < 0) & ~first)
    if len(back):
        row = int(back[0])
        raise RowOrder("prefill, prompt features, live, dense", f"kind {table['kind'][row]} after a later one", path, row_group, row)
    rounds = table["round"].to_numpy()
    live = rank == RANK[Kind.LIVE]
    opens = live & (first | ~np.roll(live, 1))
    wanted = np.where(live, np.where(opens, 0, np.roll(rounds, 1) + 1), -1)
    wrong = np.flatnonzero(rounds != wanted)
    if len(wrong):
        row = int(wrong[0])
        raise RowOrder(f"round {wanted[row]}", f"{rounds[row]}", path, row_group, row)


def _changes(ids: pa.Array) -> Bools:
    changed = np.ones(len(ids), bool)
    changed[1:] = pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1)).to_numpy(zero_copy_only=False)
    return changed


def _flatten(column: pa.ChunkedArray) -> Lists:
    lists = column.combine_chunks()
    lengths = pc.list_value_length(lists).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    row = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))
    return Lists(lists.flatten(), row, lengths)


def _check_nulls(view: View) -> None:
    for name in view.table.column_names:
        column = COLUMN.get(name)
        if column is None:
            continue
        if not column.nullable and view.table[name].null_count:
            row = int(np.flatnonzero(view.table[name].is_null().to_numpy())[0])
            view.fail(NullValue, f"a value in {name}", "null", row)
        if column.is_list and not column.element_nullable and view.lists(name).values.null_count:
            lists = view.lists(name)
            hole = int(np.flatnonzero(lists.values.is_null().to_numpy(zero_copy_only=False))[0])
            view.fail(NullValue, f"no null elements in {name}", "one", int(lists.row[hole]))


def _check_kind(view: View) -> None:
    if view.has("kind"):
        kind = view.table["kind"].to_numpy()
        _report(view, (kind < 0) | (kind > max(Kind)), KindUnknown, "kind 0 to 3", lambda row: str(kind[row]))


def _check_lengths(view: View) -> None:
    """Every node list has n elements, every slot list n + 1, every slot top-k list K times as many."""
    nodes: tuple[str, Ints] | None = None
    for name in view.table.column_names:
        column = COLUMN.get(name)
        plan = _LENGTHS.get(column.per) if column and column.group in ("tree", "target") else None
        if plan is None:
            continue
        lengths = view.lists(name).lengths
        per_slot, extra = (view.limits.topk if plan == "topk" else 1), (0 if plan == "node" else 1)
        implied = np.where(lengths < 0, -1, lengths // max(per_slot, 1) - extra)
        if plan == "topk":
            odd = (lengths >= 0) & ((lengths % max(per_slot, 1) != 0) | (lengths < per_slot))
            _report(view, odd, ListLength, f"{name} to hold {per_slot} elements per slot", lambda row: f"{lengths[row]}")  # noqa: B023
            if per_slot == 0:
                continue
        if nodes is None:
            nodes = (name, implied)
            continue
        first, known = nodes
        wrong = (known >= 0) & (implied >= 0) & (known != implied) | (lengths == 0) & (extra == 1)
        _report(view, wrong, ListLength, f"{name} to fit {first}", lambda row: f"{lengths[row]} elements for {known[row]} nodes")  # noqa: B023
        nodes = (first, np.where(known >= 0, known, implied))


_LENGTHS: Mapping[str, str] = {"node": "node", "slot": "slot", "K per slot": "topk"}


def _check_truncation(view: View) -> None:
    if view.has("truncated_by"):
        column = view.table["truncated_by"]
        odd = pc.invert(pc.is_in(column, pa.array(TRUNCATIONS))).to_numpy() & column.is_valid().to_numpy()
        _report(view, odd, TruncationUnknown, " or ".join(TRUNCATIONS), lambda row: str(column[row]))


def _check_tokens(view: View) -> None:
    for name in TOKENS:
        if view.has(name):
            _check_range(view, name, view.limits.padded, TokenRange, "the padded vocabulary")


def _check_sources(view: View) -> None:
    if view.has("node_source"):
        _check_range(view, "node_source", view.limits.sources, SourceRange, "the header's drafters")


def _check_range(view: View, name: str, size: int, kind: type[DataError], what: str) -> None:
    values, rows = _values(view, name)
    low_high = pc.min_max(values)
    if not low_high["min"].is_valid or (low_high["min"].as_py() >= 0 and low_high["max"].as_py() < size):
        return
    data = values.fill_null(0).to_numpy(zero_copy_only=False)
    at = int(np.flatnonzero((data < 0) | (data >= size))[0])
    view.fail(kind, f"{name} below {size}, the size of {what}", str(data[at]), int(rows[at]))


def _check_floats(view: View) -> None:
    for name in view.table.column_names:
        column = COLUMN.get(name)
        if column is None or not pa.types.is_floating(column.leaf_type):
            continue
        values, rows = _values(view, name)
        data = values.fill_null(0).to_numpy(zero_copy_only=False)
        odd = ~np.isfinite(data)
        if name in MINUS_INFINITY:
            odd &= data != -np.inf
        if odd.any():
            at = int(np.flatnonzero(odd)[0])
            allowed = "finite or -inf" if name in MINUS_INFINITY else "finite"
            view.fail(NotFinite, f"{name} {allowed}", str(data[at]), int(rows[at]))


def _check_parents(view: View) -> None:
    lists = view.lists("node_parent")
    parent = lists.values.to_numpy(zero_copy_only=False)
    index = _index_in_row(lists)
    odd = (parent < -1) | (parent >= index)
    if odd.any():
        at = int(np.flatnonzero(odd)[0])
        view.fail(ParentOrder, f"the parent of node {index[at]} before it", f"{parent[at]}", int(lists.row[at]))


def _check_accepted(view: View) -> None:
    """The first accepted node hangs off the anchor, each next one off the one before."""
    accepted, nodes = view.lists("accepted_nodes"), view.lists("node_parent")
    index = accepted.values.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.maximum(nodes.lengths, 0)
    start = (np.cumsum(counts) - counts)[accepted.row]
    inside = (index >= 0) & (index < counts[accepted.row])
    parents = nodes.values.to_numpy(zero_copy_only=False)
    parent = np.full(len(index), -2, np.int64)
    parent[inside] = parents[(start + index)[inside]]
    before = np.where(_index_in_row(accepted) == 0, -1, np.roll(index, 1))
    odd = ~inside | (parent != before)
    if odd.any():
        at = int(np.flatnonzero(odd)[0])
        view.fail(AcceptedPath, f"an accepted child of {before[at]}", f"node {index[at]}", int(accepted.row[at]))


def _index_in_row(lists: Lists) -> Ints:
    counts = np.maximum(lists.lengths, 0)
    return np.arange(len(lists.row)) - np.repeat(np.cumsum(counts) - counts, counts)


def _values(view: View, name: str) -> tuple[pa.Array, Ints]:
    if COLUMN[name].is_list:
        lists = view.lists(name)
        return lists.values, lists.row
    return view.table[name].combine_chunks(), np.arange(view.table.num_rows)


def _report(view: View, odd: Bools, kind: type[DataError], expected: str, found: Callable[[int], str]) -> None:
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        view.fail(kind, expected, found(row), row)

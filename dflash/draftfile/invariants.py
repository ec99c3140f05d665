"""What must hold in every row: columnar checks, each with its own error class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dflash.draftfile.columns import COLUMN
from dflash.draftfile.errors import DataError
from dflash.draftfile.summary import Kind
from dflash.draftfile.view import Bools, Ints, Limits, Place, View

MINUS_INFINITY = {"node_logp", "trunk_logp", "trunk_logq", "slot_cutoff"}
TRUNCATIONS = ("none", "eos", "stop", "length", "interrupted")
TOKENS = tuple(name for name, column in COLUMN.items() if column.unit == "token id")
FLOATS = {name for name, column in COLUMN.items() if pa.types.is_floating(column.leaf_type)}
DRAFT_TOPK = ("draft_topk_token", "draft_topk_logit", "draft_topk_target_logit")
UNKNOWN = -9


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
    _check_lengths(view)
    _check_draft_topk(view)
    _check_truncation(view)
    _check_ids(view)
    _check_floats(view)
    if _check_parents(view):
        _check_accepted(view)
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
            view.fail_at(name, _first(holes), NullValue, f"no null elements in {name}", "one")


def _check_kind(view: View) -> None:
    if view.has("kind"):
        kind = view.table["kind"].to_numpy()
        view.report((kind < 0) | (kind > max(Kind)), KindUnknown, "a kind from 0 to 3", kind)


@dataclass(frozen=True, slots=True)
class _Fit:
    """How the length of a list follows from the number of nodes n: `times * (n + extra)`."""

    times: int
    extra: int

    def nodes(self, lengths: Ints) -> Ints:
        """The n that explains each length; -2 if none does, UNKNOWN for a null list."""
        whole = lengths if self.times == 1 else lengths // self.times
        nodes = whole - self.extra
        if self.times > 1:
            nodes[lengths != whole * self.times] = -2
        nodes[lengths < 0] = UNKNOWN
        return nodes

    def __str__(self) -> str:
        return f"{self.times} x (nodes + {self.extra})" if self.extra else "nodes x 1"


def _check_lengths(view: View) -> None:
    """n elements per node list, n + 1 per slot list, K (n + 1) per top-k list, the same n in a row."""
    topk = view.limits.topk
    fits = {"node": _Fit(1, 0), "slot": _Fit(1, 1)} | ({"K per slot": _Fit(topk, 1)} if topk else {})
    known = np.full(view.table.num_rows, UNKNOWN)
    for name in view.table.column_names:
        fit = fits.get(COLUMN[name].per) if name in COLUMN and COLUMN[name].is_list else None
        if fit is None:
            continue
        lengths = view.lists(name).lengths
        nodes = fit.nodes(lengths)
        odd = (nodes != UNKNOWN) & ((nodes < 0) | ((known != UNKNOWN) & (nodes != known)))
        if odd.any():
            row = _first(odd)
            n = f" for {known[row]} nodes" if known[row] != UNKNOWN else ""
            view.fail(ListLength, f"{fit} elements in {name}", f"{lengths[row]}{n}", row)
        known = np.where(known == UNKNOWN, nodes, known)


def _check_draft_topk(view: View) -> None:
    """The three lists of the drafter's top-k are equally long: K for every slot that has a `draft_lse`."""
    names = [name for name in DRAFT_TOPK if view.has(name)]
    for name in names[1:]:
        first, lengths = view.lists(names[0]).lengths, view.lists(name).lengths
        odd = (first >= 0) & (lengths >= 0) & (first != lengths)
        view.report(odd, ListLength, f"as many elements in {name} as in {names[0]}", lengths)
    if names and view.has("draft_lse"):
        lse, lengths = view.lists("draft_lse"), view.lists(names[0]).lengths
        valid = lse.values.is_valid().to_numpy(zero_copy_only=False)
        expanded = np.bincount(lse.rows[valid], minlength=len(lengths))
        odd = (lengths > 0) & (lse.lengths >= 0) & (lengths % np.maximum(expanded, 1) + (expanded == 0) > 0)
        view.report(odd, ListLength, f"K elements in {names[0]} for every draft_lse", lengths)


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
    ends = pc.min_max(values)
    if not ends["min"].is_valid or (ends["min"].as_py() >= 0 and ends["max"].as_py() < size):
        return
    data = values.fill_null(0).to_numpy(zero_copy_only=False)
    at = _first((data < 0) | (data >= size))
    view.fail_at(name, at, kind, f"{name} from 0 to {size - 1}, inside {what}", str(data[at]))


def _check_floats(view: View) -> None:
    for name in view.table.column_names:
        if name not in FLOATS:
            continue
        data = view.lists(name).values.fill_null(0).to_numpy(zero_copy_only=False)
        fine = data < np.inf if name in MINUS_INFINITY else np.isfinite(data)
        if not fine.all():
            at, allowed = _first(~fine), "finite or -inf" if name in MINUS_INFINITY else "finite"
            view.fail_at(name, at, NotFinite, f"{name} to be {allowed}", str(data[at]))


def _check_parents(view: View) -> bool:
    if not view.has("node_parent"):
        return False
    lists = view.lists("node_parent")
    parent, position = lists.values.to_numpy(zero_copy_only=False), lists.positions
    odd = (parent < -1) | (parent >= position)
    if odd.any():
        at = _first(odd)
        expected = f"the parent of node {position[at]} from -1 to {position[at] - 1}"
        view.fail_at("node_parent", at, ParentOrder, expected, str(parent[at]))
    return not odd.any()


def _check_accepted(view: View) -> None:
    """The first accepted node hangs off the anchor, each next one off the one before."""
    if not view.has("accepted_nodes"):
        return
    accepted, nodes = view.lists("accepted_nodes"), view.lists("node_parent")
    index = accepted.values.to_numpy(zero_copy_only=False).astype(np.int64)
    counts, parents = nodes.counts, nodes.values.to_numpy(zero_copy_only=False)
    size = np.repeat(counts, accepted.counts)
    inside = (index >= 0) & (index < size)
    flat = np.repeat(np.cumsum(counts) - counts, accepted.counts) + index
    parent = np.append(parents, np.int16(UNKNOWN))[np.where(inside, flat, -1)]
    before = np.where(accepted.positions == 0, -1, np.roll(index, 1))
    odd = ~inside | (parent != before)
    if odd.any():
        at = _first(odd)
        above = f"node {before[at]}" if before[at] >= 0 else "the anchor"
        view.fail_at("accepted_nodes", at, AcceptedPath, f"an accepted child of {above}", f"node {index[at]}")


def _first(odd: Bools) -> int:
    return int(np.argmax(odd))

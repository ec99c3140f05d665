"""Requests are whole: all rows together, in one row group, in the order of the format."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dflash.draftfile.summary import Kind
from dflash.draftfile.view import Ints, Place, texts, whole
from dflash.draftfile.violations import RequestSplit, RowOrder

# prefill, prompt features, live, dense: the place of each kind within its request
RANK = np.array([2, 3, 0, 1], np.int8)


def check_requests(table: pa.Table, seen: Collection[str], place: Place = Place()) -> set[str]:
    """Checks that the requests of a row group are whole, new and ordered.

    Args:
        seen: Requests of earlier row groups.

    Returns:
        The requests of this row group; empty if `request_id` was not read.

    Raises:
        RequestSplit, RowOrder: The first violation.
    """
    if "request_id" not in table.column_names or not table.num_rows:
        return set()
    ids = whole(table["request_id"])
    starts = request_starts(table)
    names = texts(ids.take(pa.array(starts)))
    known = set(names)
    if len(known) < len(names) or not known.isdisjoint(seen):
        at = _again(names, set(seen))
        found = f"more rows of {names[at]!r}"
        raise RequestSplit("all rows of a request together", found, *place, int(starts[at]))
    if {"kind", "round"} <= set(table.column_names):
        _check_order(table["kind"].to_numpy(), table["round"].to_numpy(), starts, place)
    return known


def _again(names: Sequence[str], seen: set[str]) -> int:
    """The first name that was there before."""
    for place, name in enumerate(names):
        if name in seen:
            return place
        seen.add(name)
    raise ValueError("every name is new")


def request_starts(table: pa.Table) -> Ints:
    """The first row of every request, shape [requests]."""
    ids = whole(table["request_id"])
    changed = np.ones(len(ids), bool)
    if pa.types.is_dictionary(ids.type):
        codes = ids.indices.to_numpy()
        np.not_equal(codes[1:], codes[:-1], out=changed[1:])
    else:
        changed[1:] = pc.not_equal(ids.slice(1), ids.slice(0, len(ids) - 1)).to_numpy(zero_copy_only=False)
    return np.flatnonzero(changed)


def _check_order(kind: Ints, rounds: Ints, starts: Ints, place: Place) -> None:
    # as RANK says, in a fortieth of the time that it takes to look there
    rank = kind ^ 2
    first = np.zeros(len(rank), bool)
    first[starts] = True
    back = np.flatnonzero((rank[1:] < rank[:-1]) & ~first[1:]) + 1
    if len(back):
        found = f"kind {kind[back[0]]} after kind {kind[back[0] - 1]}"
        raise RowOrder(
            "prefill, prompt features, live and dense rows in this order", found, *place, int(back[0])
        )
    alone = np.flatnonzero((rank == 0) != first)
    if len(alone):
        expected = f"one prefill row (kind {int(Kind.PREFILL)}) at the start of a request"
        raise RowOrder(expected, f"kind {kind[alone[0]]}", *place, int(alone[0]))
    # what comes before the first live row of a request is round -1 too
    wanted = np.full_like(rounds, -1)
    np.add(rounds[:-1], 1, out=wanted[1:])
    wanted[kind != Kind.LIVE] = -1
    wrong = np.flatnonzero(rounds != wanted)
    if len(wrong):
        raise RowOrder(f"round {wanted[wrong[0]]}", str(rounds[wrong[0]]), *place, int(wrong[0]))

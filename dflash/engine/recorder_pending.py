"""Rows that a recorder has taken and made no tables of: those of all requests at once take less time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dflash.draftfile.rows import RequestRows, columns_table
from dflash.engine.unmade import Maker, Row, Unmade

Ints = NDArray[np.int64]

EPOCH, MICROSECOND = datetime.fromtimestamp(0, UTC), timedelta(microseconds=1)


class _Rows(NamedTuple):
    """Rows in tables' form, by request and in order within each: their requests, and when they came."""

    table: pa.Table
    owners: Ints
    arrivals: Ints


@dataclass(slots=True)
class _Parts:
    """What one maker has to make: parts, the request of each of their rows, and when each part came."""

    maker: Maker
    parts: list[Any] = field(default_factory=list)
    owners: list[Ints] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    started: list[datetime] = field(default_factory=list)


class Pending:
    """Takes rows one by one or unmade, and gives tables of requests, which are known here by numbers.

    Attributes:
        rows: How many wait.
        bytes: What those take that came unmade.
    """

    def __init__(self, features: bool) -> None:
        self._features = features
        self._clear()

    def _clear(self) -> None:
        self.rows = self.bytes = self._arrived = 0
        self._made: list[Row] = []
        self._owners: list[int] = []
        self._arrivals: list[int] = []
        self._parts: dict[int, _Parts] = {}

    def row(self, owner: int, row: Row) -> None:
        """Take a row of a request."""
        self._made.append({"started_at": datetime.now(UTC), **row})
        self._owners.append(owner)
        self._arrivals.append(self._arrived)
        self._arrived += 1
        self.rows += 1

    def unmade(self, owners: Ints, rows: Unmade) -> None:
        """Take rows of several requests."""
        found = self._parts.setdefault(id(rows.maker), _Parts(rows.maker))
        found.parts.append(rows.part)
        found.owners.append(owners)
        found.arrivals.append(self._arrived)
        found.started.append(rows.started_at)
        self._arrived += 1
        self.rows += len(owners)
        self.bytes += rows.size

    def tables(self) -> Iterator[tuple[int, pa.Table]]:
        """All that was taken, a table a request; nothing waits then.

        Raises:
            DraftFileError: A row is none of the format.
        """
        sources = [self._of_parts(parts) for parts in self._parts.values()]
        if self._made:
            sources.append(self._of_rows())
        self._clear()
        if not sources:
            return
        found = sources[0] if len(sources) == 1 else _merged(sources)
        starts = np.flatnonzero(np.diff(found.owners, prepend=-1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(found.owners)], strict=True):
            yield int(found.owners[start]), found.table.slice(start, end - start)

    def _of_rows(self) -> _Rows:
        owners, arrivals = np.array(self._owners), np.array(self._arrivals)
        order = np.argsort(owners, kind="stable")
        rows = RequestRows("", features=self._features)
        for place in order.tolist():
            rows.append(self._made[place])
        return _Rows(rows.table(), owners[order], arrivals[order])

    def _of_parts(self, parts: _Parts) -> _Rows:
        counts = [len(owners) for owners in parts.owners]
        owners = np.concatenate(parts.owners)
        order = np.argsort(owners, kind="stable")
        columns = parts.maker.columns(parts.parts, order)
        times = np.array([(time - EPOCH) // MICROSECOND for time in parts.started], np.int64)
        columns["started_at"] = np.repeat(times, counts)[order]
        table = columns_table(columns, len(owners), features=self._features)
        return _Rows(table, owners[order], np.repeat(parts.arrivals, counts)[order])


def _merged(sources: Sequence[_Rows]) -> _Rows:
    owners = np.concatenate([source.owners for source in sources])
    arrivals = np.concatenate([source.arrivals for source in sources])
    order = np.lexsort((arrivals, owners))
    table = pa.concat_tables([source.table for source in sources]).combine_chunks()
    return _Rows(table.take(pa.array(order)), owners[order], arrivals[order])


def ended(table: pa.Table) -> pa.Table:
    """The rows of a request: if nothing cut the last decided one, the request was interrupted after it."""
    reasons = table["truncated_by"]
    places = range(table.num_rows - 1, -1, -1)
    last = next((place for place in places if reasons[place].is_valid), None)
    if last is None or reasons[last].as_py() != "none":
        return table
    texts = reasons.to_pylist()
    texts[last] = "interrupted"
    return _with(table, "truncated_by", pa.array(texts, pa.string()))


def named(table: pa.Table, request_id: str) -> pa.Table:
    """The rows, as those of a request."""
    return _with(table, "request_id", pa.repeat(request_id, table.num_rows))


def _with(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    position = table.schema.get_field_index(name)
    return table.set_column(position, table.schema.field(position), column)

"""Rows that a recorder has taken and made no tables of: those of all requests at once take less time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dflash.draftfile.rows import RequestRows, columns_table
from dflash.engine.recorder.unmade import Row, Unmade, now

Ints = NDArray[np.int64]


class Taken(NamedTuple):
    """Rows of requests, those of each together and in order; more of them may be in a later table.

    Attributes:
        owners: Number of each request.
        starts: `[requests]` where its rows begin.
    """

    table: pa.Table
    owners: list[int]
    starts: Ints


class _Rows(NamedTuple):
    """Rows in tables' form, by request and in order within each: their requests, and when they came."""

    table: pa.Table
    owners: Ints
    arrivals: Ints


class _Made(NamedTuple):
    """A row that came made: its request, and when it came."""

    row: Row
    owner: int
    arrival: int


class _Part(NamedTuple):
    """Rows that came unmade: the requests of those that still wait, else -1, and when they came."""

    rows: Unmade
    owners: Ints
    arrival: int


class Pending:
    """Takes rows one by one or unmade, and gives a table of requests, which are known here by numbers.

    Attributes:
        rows: How many wait.
        bytes: What those take that came unmade.
    """

    def __init__(self, features: bool, keep_text: bool = True) -> None:
        self.rows = self.bytes = self._arrived = 0
        self._features, self._keep_text = features, keep_text
        self._made: list[_Made] = []
        self._parts: dict[int, list[_Part]] = {}

    def row(self, owner: int, row: Row) -> None:
        """Take a row of a request."""
        if not self._keep_text:
            row = {**row, "prompt_text": None}
        self._made.append(_Made({"started_at": now(), **row}, owner, self._arrived))
        self._arrived += 1
        self.rows += 1

    def unmade(self, owners: Ints, rows: Unmade) -> None:
        """Take rows of several requests."""
        self._parts.setdefault(id(rows.maker), []).append(_Part(rows, owners, self._arrived))
        self._arrived += 1
        self.rows += len(owners)
        self.bytes += rows.size

    def taken(self, owners: Collection[int]) -> list[Taken]:
        """All that was taken of these requests, which waits no more; later rows of each are in later tables.

        Raises:
            DraftFileError: A row is none of the format.
        """
        sources = [self._of_parts(parts, owners) for parts in self._parts.values() if parts]
        # a request begins with a row that came made, or whose maker was the first
        sources = [source for source in (self._of_made(owners), *sources) if len(source.owners)]
        self._forget()
        return [_by_owner([source]) for source in sources] if _in_turn(sources) else [_by_owner(sources)]

    def _forget(self) -> None:
        """Let go of parts none of whose rows wait."""
        for maker, parts in self._parts.items():
            # makers stay, in the order in which they came
            self._parts[maker] = [part for part in parts if (part.owners >= 0).any()]
            self.bytes -= sum(part.rows.size for part in parts)
            self.bytes += sum(part.rows.size for part in self._parts[maker])

    def _of_made(self, owners: Collection[int]) -> _Rows:
        wanted = sorted((made for made in self._made if made.owner in owners), key=lambda made: made.owner)
        self._made = [made for made in self._made if made.owner not in owners]
        self.rows -= len(wanted)
        rows = RequestRows("", features=self._features)
        for made in wanted:
            rows.append(made.row)
        where = np.array([made[1:] for made in wanted], np.int64).reshape(-1, 2)
        return _Rows(rows.table(), *where.T)

    def _of_parts(self, parts: Sequence[_Part], owners: Collection[int]) -> _Rows:
        counts = [len(part.owners) for part in parts]
        every = np.concatenate([part.owners for part in parts])
        order = np.flatnonzero(np.isin(every, list(owners)))
        if not len(order):
            return _Rows(pa.table({}), order, order)
        order = order[np.argsort(every[order], kind="stable")]
        columns = parts[0].rows.maker.columns([part.rows.part for part in parts], order)
        times = np.array([part.rows.started_at for part in parts], np.int64)
        if not self._keep_text:
            columns.pop("prompt_text", None)
        columns["started_at"] = np.repeat(times, counts)[order]
        table = columns_table(columns, len(order), features=self._features)
        arrivals = np.repeat([part.arrival for part in parts], counts)[order]
        self.rows -= len(order)
        found = _Rows(table, every[order], arrivals)
        every[order] = -1
        for part, left in zip(parts, np.split(every, np.cumsum(counts)[:-1]), strict=True):
            part.owners[:] = left
        return found


def _in_turn(sources: Sequence[_Rows]) -> bool:
    """Whether each request's rows of a source came before those of the later ones, so that none is moved."""
    newest: dict[int, int] = {}
    for owners, arrivals in (source[1:] for source in sources):
        starts = _starts(owners)
        there, ends = owners[starts].tolist(), [*(starts[1:] - 1).tolist(), len(owners) - 1]
        firsts, lasts = arrivals[starts].tolist(), arrivals[ends].tolist()
        if any(newest.get(owner, -1) > first for owner, first in zip(there, firsts, strict=True)):
            return False
        newest.update(zip(there, lasts, strict=True))
    return True


def _starts(owners: Ints) -> Ints:
    """Where another owner's rows begin."""
    return np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]]))


def _by_owner(sources: Sequence[_Rows]) -> Taken:
    """Each request's rows in the order in which they came."""
    owners = np.concatenate([source.owners for source in sources])
    table = pa.concat_tables([source.table for source in sources])
    if len(sources) > 1:
        arrivals = np.concatenate([source.arrivals for source in sources])
        # sorts are stable, and the rows of a source lie in order
        order = np.lexsort((arrivals, owners))
        owners, table = owners[order], table.take(pa.array(order))
    starts = _starts(owners)
    return Taken(table.combine_chunks(), owners[starts].tolist(), starts)

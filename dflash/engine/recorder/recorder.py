"""The recorder: collects the rows of open requests and writes closed ones in the order of the prompts.

It may run in a process of its own, which starts sooner without torch: nothing here needs it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from dflash.draftfile.errors import DraftFileError
from dflash.draftfile.journal import Journal
from dflash.draftfile.recover import mark_interrupted
from dflash.draftfile.resume import Asking, Kept, free_name, renamed
from dflash.draftfile.writer import DraftFileWriter, Published
from dflash.engine.recorder.clocks import finished, thread_seconds
from dflash.engine.recorder.pending import Pending, Taken
from dflash.engine.recorder.relabel import interrupted, named
from dflash.engine.recorder.totals import Counted, Totals, counted
from dflash.engine.recorder.unmade import Unmade

if TYPE_CHECKING:
    from dflash.engine.lane import Lane
    from dflash.engine.recorder.wire import AskedRequest, FarLane
    from dflash.engine.request import Request

Row = dict[str, Any]
# what unmade rows of open requests may take before tables are made of them
MOST_BYTES = 16 << 20


@dataclass(slots=True)
class _Open:
    """A request being recorded, which the journal may rename.

    Attributes:
        batches, size: Its rows so far, all of which are in the journal, and what they take.
    """

    request_id: str
    journal_name: str
    order: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0
    counted: Counted = Counted()

    @property
    def journaled(self) -> int:
        """Rows that are in the journal."""
        return sum(batch.num_rows for batch in self.batches)

    def take(self, batch: pa.RecordBatch, size: float, counted: Counted) -> None:
        """Take more rows."""
        self.batches.append(batch)
        self.size += int(size)
        self.counted = self.counted.then(counted)

    def whole(self) -> pa.Table:
        """All rows; if nothing cut the last decided one, the request was interrupted after it."""
        table = pa.Table.from_batches(self.batches)
        if self.counted.reason == "none":
            # the journal has it otherwise
            table = mark_interrupted(table)
            self.counted = self.counted._replace(reason="interrupted")
        return table


class _Whole(NamedTuple):
    """All rows of a request that has ended, and what they take; None where that was not counted."""

    table: pa.Table
    size: int | None = None


class Pressure(NamedTuple):
    """How far a recorder is behind, and for how long decoding had to wait for it.

    Attributes:
        rows, bytes: What it has still to take.
        capacity: Bytes at which decoding waits.
    """

    blocked_seconds: float = 0.0
    rows: int = 0
    bytes: int = 0
    capacity: int = 0


class Recorder:
    """A sink of the engine that writes a draft file, and its journal until the file is there.

    Rounds go to the journal when a sync is due, when their request closes, or when too many wait: those of
    many requests at once.

    Args:
        patience: Seconds for which a closed request may wait for others, as many take less time at once.
        lent: Whether rows that come unmade may hold what is written over later.

    Attributes:
        seconds: What each thread of this process took, by name, once the file is finished.
    """

    def __init__(
        self,
        writer: DraftFileWriter,
        journal: Journal,
        kept: Kept,
        *,
        keep_text: bool = True,
        features: bool = False,
        patience: float = 0.0,
        lent: bool = True,
    ) -> None:
        self.writer = writer
        self.journal = journal
        self.kept = kept
        self.keep_text = keep_text
        self.patience = patience
        self.lent = lent
        self.totals = Totals()
        self.seconds: Mapping[str, float] = {}
        self._pending = Pending(features, keep_text)
        self._open: dict[int, _Open] = {}
        self._closed: dict[int, _Open] = {}
        self._overdue = inf
        self._numbers: dict[int, int] = {}
        self._opened = 0
        self._waiting: dict[int, list[_Whole]] = {}
        self._ended: set[int] = set()
        self._names: set[str] = set()
        self._journal_names = set(kept.names)
        self._next = 0

    @property
    def keeps(self) -> int:
        """Requests of an earlier recording that were not asked for yet."""
        return len(self.kept)

    def await_start(self) -> None:
        """Nothing: it is there."""

    @property
    def pressure(self) -> Pressure:
        """None: rows are taken at once."""
        return Pressure()

    def opened(self, lane: Lane | FarLane) -> None:
        """Start the rows of a lane's request."""
        request = lane.request
        name = free_name(request.request_id, self._journal_names)
        self._journal_names.add(name)
        self._numbers[lane.index] = self._opened
        self._open[self._opened] = _Open(request.request_id, name, request.order)
        self._opened += 1

    def row(self, lane: Lane | FarLane, row: Row) -> None:
        """Take one round."""
        self._pending.row(self._numbers[lane.index], row)
        self.tend()

    def unmade(self, lanes: Mapping[int, Lane | FarLane], rows: Unmade) -> None:
        """Take rounds of these lanes, by index."""
        numbers = np.full(max(self._numbers) + 1, -1)
        numbers[list(self._numbers)] = list(self._numbers.values())
        self._pending.unmade(numbers[rows.lanes], rows.owned() if self.lent else rows)
        self.tend()

    def closed(self, lane: Lane | FarLane) -> None:
        """Queue a finished request; one that was interrupted says so in its last row."""
        number = self._numbers.pop(lane.index, None)
        if number is None:
            return
        self._closed[number] = self._open.pop(number)
        self._overdue = min(self._overdue, monotonic() + self.patience)
        self.tend()

    def ended(self, order: int) -> None:
        """A prompt has no more requests: write it as soon as all prompts before it are written."""
        self._ended.add(order)
        self._write_ended()

    def tend(self) -> float:
        """Sync if it is due; make tables of closed requests that have waited for long enough.

        Returns:
            Seconds after which closed requests will have waited for long enough; inf if none waits.
        """
        pending = self._pending
        if self.journal.due:
            self.sync()
        elif pending.bytes >= MOST_BYTES:
            self._settle(self._open.keys() | self._closed.keys())
        elif monotonic() >= self._overdue:
            self._settle(self._closed)
        return max(0.0, self._overdue - monotonic())

    def _settle(self, numbers: Collection[int]) -> None:
        """Journal what was taken of these requests, and queue those that have ended."""
        taken = self._pending.taken(numbers)
        found = [counted(each.table, each.starts) for each in taken]
        over = self._over(taken, found)
        for place, (each, counts) in enumerate(zip(taken, found, strict=True)):
            self._take(each, counts, [(place, number) in over for number in each.owners])
        closed = [request for request in self._closed.values() if request.batches]
        self._closed.clear()
        self.journal.close_requests([request.journal_name for request in closed])
        for request in closed:
            self._waiting.setdefault(request.order, []).append(_Whole(request.whole(), request.size))
            self.totals.add(request.counted)
        self._overdue = inf
        self._write_ended()

    def _over(self, taken: Sequence[Taken], found: Sequence[Sequence[Counted]]) -> set[tuple[int, int]]:
        """Where requests have their last decision, which nothing cut: a table's place, and their number."""
        whole: dict[int, Counted] = {}
        decided: dict[int, int] = {}
        for place, (each, counts) in enumerate(zip(taken, found, strict=True)):
            for number, count in zip(each.owners, counts, strict=True):
                whole[number] = whole.get(number, Counted()).then(count)
                if count.reason is not None:
                    decided[number] = place
        return {(decided[number], number) for number, count in whole.items() if self._is_over(number, count)}

    def _take(self, taken: Taken, found: Sequence[Counted], over: Sequence[bool]) -> None:
        """Journal rows, and give them to their requests.

        Args:
            found: what is counted of each request.
            over: whether its last decision here is its last one, though nothing cut it.
        """
        count = taken.table.num_rows
        requests = [self._request(number) for number in taken.owners]
        table = interrupted(taken.table, [each.last for each, cut in zip(found, over, strict=True) if cut])
        ends = np.append(taken.starts[1:], count)
        rows = ends - taken.starts
        self.journal.append_all(named(table, [request.journal_name for request in requests], rows))
        table = named(table, [request.request_id for request in requests], rows)
        # its slices take a third of the time
        (batch,) = table.combine_chunks().to_batches()
        size = batch.nbytes / count
        for request, each, cut, start, many in zip(
            requests, found, over, taken.starts.tolist(), rows.tolist(), strict=True
        ):
            each = each._replace(reason="interrupted") if cut else each
            request.take(batch.slice(start, many), size * many, each)

    def _request(self, number: int) -> _Open:
        return self._open.get(number) or self._closed[number]

    def _is_over(self, number: int, more: Counted) -> bool:
        """Whether the last decision among more rows of a request is its last one, though nothing cut it."""
        dense = more.ends_dense and not self._request(number).counted.ends_dense
        return more.reason == "none" and (number in self._closed or dense)

    def _write_ended(self) -> None:
        while self._next in self._ended and not self._closed:
            self._ended.remove(self._next)
            self._write(self._next)
            self._next += 1

    def take_kept(self, request: Request | AskedRequest) -> pa.Table | None:
        """Queue what an earlier recording has of a request, and return it; None if it is to be run."""
        text = request.prompt_text if self.keep_text else None
        asking = Asking.of(request.prompt_tokens, text, json.loads(request.info_json()))
        found = self.kept.take(asking.key)
        if found is None:
            self.totals.changed |= self.kept.changed(asking)
            return None
        table = renamed(found, request.request_id)
        self.totals.keep(table)
        self._waiting.setdefault(request.order, []).append(_Whole(table))
        return table

    def sync(self) -> None:
        """Make everything so far survive a power cut, the rounds of open requests included."""
        self._settle(self._open.keys() | self._closed.keys())
        self.journal.sync()

    def finish(self, run_status: Any = "finished", lost: dict[str, Any] | None = None) -> Published:
        """Write what still waits and publish the file; the journal is not needed any more."""
        self._settle(self._open.keys() | self._closed.keys())
        # as a rule the file is there first
        self.journal.sync_in_time()
        self.journal.flush()
        for order in sorted(self._waiting):
            self._write(order)
        self._write_rest()
        # the journal's threads end with it
        before = thread_seconds()
        published = self.writer.finish(run_status, lost, self.journal)
        self.seconds = finished(before, thread_seconds())
        return published

    def leave(self) -> Path | None:
        """Close the journal of a run that broke off; it goes if it is empty, else this is where it is."""
        with suppress(DraftFileError):
            self.sync()
        with suppress(DraftFileError):
            self.journal.close()
        if self.journal.batches:
            return self.journal.path
        self.journal.delete()
        return None

    def _write(self, order: int) -> None:
        for table, size in self._waiting.pop(order, ()):
            self._names.add(table["request_id"][0].as_py())
            self.writer.write_request(table, size)

    def _write_rest(self) -> None:
        """Kept requests that were not asked for again stay, at the end; a name that is taken gets a plus."""
        for table in self.kept.rest():
            name = free_name(table["request_id"][0].as_py(), self._names)
            self._names.add(name)
            self.totals.keep(table)
            self.totals.unasked += 1
            self.writer.write_request(renamed(table, name))

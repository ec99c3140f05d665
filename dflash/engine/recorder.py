"""The recorder: collects the rows of open requests and writes closed ones in the order of the prompts.

It may run in a process of its own, which starts sooner without torch: nothing here needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from dflash.draftfile.errors import DraftFileError
from dflash.draftfile.journal import Journal
from dflash.draftfile.resume import Kept, free_name, renamed, request_key
from dflash.draftfile.rows import RequestRows
from dflash.draftfile.summary import Kind
from dflash.draftfile.writer import DraftFileWriter, Published

if TYPE_CHECKING:
    from dflash.engine.lane import Lane
    from dflash.engine.recorder_wire import AskedRequest, FarLane
    from dflash.engine.request import Request

Row = dict[str, Any]


@dataclass(slots=True)
class _Open:
    """A request being recorded; its first `journaled` rows are in the journal, which may rename it."""

    request_id: str
    journal_name: str
    rows: list[Row] = field(default_factory=list)
    journaled: int = 0

    def table(self, start: int, features: bool) -> pa.Table:
        """The rows from `start` on."""
        rows = RequestRows(self.request_id, features=features)
        for row in self.rows[start:]:
            rows.append(row)
        return rows.table()


@dataclass(slots=True)
class Totals:
    """Sums over the run, for the closing line.

    Attributes:
        kept, kept_tokens: What of it came from an earlier recording.
        unasked: Kept requests that the prompts did not ask for.
    """

    requests: int = 0
    rounds: int = 0
    accepted: int = 0
    emitted: int = 0
    finish: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    kept_tokens: int = 0
    unasked: int = 0

    @property
    def tau(self) -> float | None:
        """Accepted nodes + 1 per live round; None without rounds."""
        return None if self.rounds == 0 else (self.accepted + self.rounds) / self.rounds

    def add(self, table: pa.Table, *, kept: bool = False) -> None:
        """Count one request, `kept` if it was recorded earlier."""
        kinds = table.column("kind").to_pylist()
        accepted = table.column("accepted_nodes").combine_chunks().value_lengths().to_pylist()
        self.requests += 1
        self.rounds += kinds.count(0)
        self.accepted += sum(count for kind, count in zip(kinds, accepted, strict=True) if kind == 0)
        emitted = [count for count in table.column("emitted").to_pylist() if count is not None]
        self.emitted += sum(emitted)
        self.kept += kept
        self.kept_tokens += sum(emitted) if kept else 0
        reason = table.column("truncated_by").drop_null()[-1].as_py()
        self.finish[reason] = self.finish.get(reason, 0) + 1


class UnmadeStep(NamedTuple):
    """Rows of several lanes, one each, that are made where they are recorded.

    Attributes:
        known: What is known of each row at once; it wins over what is made.
        make: Gives the other columns of each row, in the order of `known`. It must pickle.
        given: Its arguments: arrays, mappings of arrays, and what else pickles.
    """

    known: Sequence[Row]
    make: Callable[..., Sequence[Row]]
    given: tuple[Any, ...]

    def rows(self) -> list[Row]:
        """The rows, made."""
        made = self.make(*self.given)
        return [{**rest, **row} for rest, row in zip(made, self.known, strict=True)]


@runtime_checkable
class TakesSteps(Protocol):
    """A sink that need not be given rows that are made already."""

    def step(self, lanes: Sequence[Lane], step: UnmadeStep) -> None:
        """A round of these lanes is over."""


class TakesRows(Protocol):
    """A sink as the engine knows it."""

    def row(self, lane: Lane, row: Row) -> None:
        """A round is over."""


def hand_over(sink: TakesRows | TakesSteps, lanes: Sequence[Lane], step: UnmadeStep) -> None:
    """Give a step to a sink, made or as it is."""
    if isinstance(sink, TakesSteps):
        sink.step(lanes, step)
        return
    for lane, row in zip(lanes, step.rows(), strict=True):
        sink.row(lane, row)


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

    Rounds go to the journal a table a request at a time, when a sync is due or the request closes.
    """

    def __init__(
        self,
        writer: DraftFileWriter,
        journal: Journal,
        kept: Kept,
        *,
        keep_text: bool = True,
        features: bool = False,
    ) -> None:
        self.writer = writer
        self.journal = journal
        self.kept = kept
        self.keep_text = keep_text
        self.features = features
        self.totals = Totals()
        self._open: dict[int, _Open] = {}
        self._waiting: dict[int, list[pa.Table]] = {}
        self._ended: set[int] = set()
        self._names: set[str] = set()
        self._journal_names = set(kept.names)
        self._next = 0

    @property
    def keeps(self) -> int:
        """Requests of an earlier recording that were not asked for yet."""
        return len(self.kept)

    @property
    def pressure(self) -> Pressure:
        """None: rows are taken at once."""
        return Pressure()

    def opened(self, lane: Lane | FarLane) -> None:
        """Start the rows of a lane's request."""
        name = free_name(lane.request.request_id, self._journal_names)
        self._journal_names.add(name)
        self._open[lane.index] = _Open(lane.request.request_id, name)

    def row(self, lane: Lane | FarLane, row: Row) -> None:
        """Take one round."""
        rows = self._open[lane.index].rows
        if row["kind"] == Kind.DENSE and rows and rows[-1]["kind"] != Kind.DENSE:
            _end(rows)
        if not self.keep_text:
            row = {**row, "prompt_text": None}
        rows.append({"started_at": datetime.now(UTC), **row})
        if self.journal.due:
            self.sync()

    def step(self, lanes: Sequence[Lane], step: UnmadeStep) -> None:
        """Make the rows of a step and take them."""
        for lane, row in zip(lanes, step.rows(), strict=True):
            self.row(lane, row)

    def closed(self, lane: Lane | FarLane) -> None:
        """Queue a finished request; one that was interrupted says so in its last row."""
        request = self._open.pop(lane.index, None)
        if request is None or not request.rows:
            return
        _end(request.rows)
        table = request.table(0, self.features)
        self.totals.add(table)
        self._waiting.setdefault(lane.request.order, []).append(table)
        self._append(request, table.slice(request.journaled))
        self.journal.close_request(request.journal_name)

    def ended(self, order: int) -> None:
        """A prompt has no more requests: write it as soon as all prompts before it are written."""
        self._ended.add(order)
        while self._next in self._ended:
            self._ended.remove(self._next)
            self._write(self._next)
            self._next += 1

    def take_kept(self, request: Request | AskedRequest) -> pa.Table | None:
        """Queue what an earlier recording has of a request, and return it; None if it is to be run."""
        text = request.prompt_text if self.keep_text else None
        found = self.kept.take(request_key(request.prompt_tokens, text, json.loads(request.info_json())))
        if found is None:
            return None
        table = renamed(found, request.request_id)
        self.totals.add(table, kept=True)
        self._waiting.setdefault(request.order, []).append(table)
        return table

    def sync(self) -> None:
        """Make everything so far survive a power cut, the rounds of open requests included."""
        for request in self._open.values():
            if len(request.rows) > request.journaled:
                table = request.table(request.journaled, self.features)
                request.journaled = len(request.rows)
                self._append(request, table)
        self.journal.sync()

    def finish(self, run_status: Any = "finished", lost: dict[str, Any] | None = None) -> Published:
        """Write what still waits and publish the file; the journal is not needed any more."""
        self.journal.sync()
        for order in sorted(self._waiting):
            self._write(order)
        self._write_rest()
        return self.writer.finish(run_status, lost, self.journal)

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

    def _append(self, request: _Open, table: pa.Table) -> None:
        self.journal.append(request.journal_name, renamed(table, request.journal_name))

    def _write(self, order: int) -> None:
        for table in self._waiting.pop(order, ()):
            self._names.add(table["request_id"][0].as_py())
            self.writer.write_request(table)

    def _write_rest(self) -> None:
        """Kept requests that were not asked for again stay, at the end; a name that is taken gets a plus."""
        for table in self.kept.rest():
            name = free_name(table["request_id"][0].as_py(), self._names)
            self._names.add(name)
            self.totals.add(table, kept=True)
            self.totals.unasked += 1
            self.writer.write_request(renamed(table, name))


def _end(rows: list[Row]) -> None:
    """The last decided row of a request: if nothing cut it, the request was interrupted after it."""
    places = range(len(rows) - 1, -1, -1)
    last = next((place for place in places if rows[place].get("truncated_by") is not None), None)
    if last is not None and rows[last]["truncated_by"] == "none":
        rows[last] = {**rows[last], "truncated_by": "interrupted"}

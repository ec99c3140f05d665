"""The recorder: collects the rows of open requests and writes closed ones in the order of the prompts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from dflash.draftfile.rows import RequestRows
from dflash.draftfile.writer import DraftFileWriter, Published
from dflash.engine.dense import DENSE
from dflash.engine.judge import Row
from dflash.engine.lane import Lane, Truncation


@dataclass(slots=True)
class _Open:
    """A request being recorded; its newest row waits, because how it ended may still change."""

    rows: RequestRows
    newest: Row | None = None


@dataclass(slots=True)
class Totals:
    """Sums over the run, for the closing line."""

    requests: int = 0
    rounds: int = 0
    accepted: int = 0
    emitted: int = 0
    finish: dict[str, int] = field(default_factory=dict)

    @property
    def tau(self) -> float | None:
        """Accepted nodes + 1 per live round; None without rounds."""
        return None if self.rounds == 0 else (self.accepted + self.rounds) / self.rounds


class Recorder:
    """A sink of the engine that writes a draft file."""

    def __init__(self, writer: DraftFileWriter, *, keep_text: bool = True, features: bool = False) -> None:
        self.writer = writer
        self.keep_text = keep_text
        self.features = features
        self.totals = Totals()
        self._open: dict[int, _Open] = {}
        self._waiting: dict[int, list[pa.Table]] = {}
        self._ended: set[int] = set()
        self._next = 0

    def opened(self, lane: Lane) -> None:
        """Start the rows of a lane's request."""
        self._open[lane.index] = _Open(RequestRows(lane.request.request_id, features=self.features))

    def row(self, lane: Lane, row: Row) -> None:
        """Take one round."""
        request = self._open[lane.index]
        if request.newest is not None:
            request.rows.append(_ended(request.newest) if row["kind"] == DENSE else request.newest)
        if not self.keep_text:
            row = {**row, "prompt_text": None}
        request.newest = {**row, "started_at": datetime.now(UTC)}

    def closed(self, lane: Lane) -> None:
        """Queue a finished request; one that was interrupted says so in its last row."""
        request = self._open.pop(lane.index)
        if request.newest is None:
            return
        request.rows.append(_ended(request.newest))
        table = request.rows.table()
        self._count(table)
        self._waiting.setdefault(lane.request.order, []).append(table)

    def ended(self, order: int) -> None:
        """A prompt has no more requests: write it as soon as all prompts before it are written."""
        self._ended.add(order)
        while self._next in self._ended:
            self._ended.remove(self._next)
            self._write(self._next)
            self._next += 1

    def finish(self, run_status: Any = "finished", lost: dict[str, Any] | None = None) -> Published:
        """Write what still waits and publish the file."""
        for order in sorted(self._waiting):
            self._write(order)
        return self.writer.finish(run_status, lost)

    def _write(self, order: int) -> None:
        for table in self._waiting.pop(order, ()):
            self.writer.write_request(table)

    def _count(self, table: pa.Table) -> None:
        kinds = table.column("kind").to_pylist()
        accepted = table.column("accepted_nodes").combine_chunks().value_lengths().to_pylist()
        self.totals.requests += 1
        self.totals.rounds += kinds.count(0)
        self.totals.accepted += sum(count for kind, count in zip(kinds, accepted, strict=True) if kind == 0)
        emitted = [count for count in table.column("emitted").to_pylist() if count is not None]
        self.totals.emitted += sum(emitted)
        reason = table.column("truncated_by")[len(emitted) - 1].as_py()
        self.totals.finish[reason] = self.totals.finish.get(reason, 0) + 1


def _ended(row: Row) -> Row:
    """The last decided row of a request: if nothing cut it, the request was interrupted after it."""
    if row.get("truncated_by") != Truncation.NONE:
        return row
    return {**row, "truncated_by": str(Truncation.INTERRUPTED)}

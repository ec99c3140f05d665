"""Reads two runs side by side, row group by row group, and brings equal requests together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dflash.diff.flat import Block
from dflash.diff.keys import Key, KeyReader, Place, PromptKey
from dflash.diff.room import WaitingRoom
from dflash.draftfile.run import Run

CHUNK_ROWS = 1024
_PACKING = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
IN_MEMORY = 2**22


class Chunk(NamedTuple):
    """The rows of some requests, the same requests in the same order on both sides."""

    a: Block
    b: Block


class _Rows(NamedTuple):
    """Rows `row` to `row + rows` of a table."""

    table: pa.Table
    row: int
    rows: int


@dataclass(slots=True)
class _Side:
    """One run on its way: the newest row group at hand, older requests in the waiting room."""

    tables: Iterator[pa.Table]
    keys: KeyReader
    room: WaitingRoom
    requests: int = 0
    ended: bool = False
    table: pa.Table | None = None
    packed: pa.Buffer | None = None
    fresh: dict[Key, Place] = field(default_factory=dict)

    def advance(self) -> None:
        """Send what still has no partner to the waiting room and read the next row group."""
        for key, place in self.fresh.items():
            self.room.put(key, place.name, self._slice(place))
        self.fresh, self.table = {}, None
        # Arrow keeps freed memory for itself, as much as a row group each time
        pa.default_memory_pool().release_unused()
        self.table = next(self.tables, None)
        pa.default_memory_pool().release_unused()
        self.ended = self.table is None
        if self.table is not None:
            self.fresh = {place.key: place for place in self.keys.places(self.table)}
            self.requests += len(self.fresh)

    def pack(self) -> None:
        """Hold the row group compressed while the other side reads, which takes three times its size."""
        if self.table is not None and self.fresh:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.table.schema, options=_PACKING) as writer:
                writer.write_table(self.table)
            self.packed = sink.getvalue()
        self.table = None

    def unpack(self) -> None:
        """Have the row group at hand again."""
        if self.packed is not None:
            self.table = pa.ipc.open_stream(self.packed).read_all()
            self.packed = None

    def has(self, key: Key) -> bool:
        return key in self.fresh or key in self.room

    def take(self, key: Key) -> _Rows:
        place = self.fresh.pop(key, None)
        if place is None:
            table = self.room.take(key)[1]
            return _Rows(table, 0, table.num_rows)
        return _Rows(self.table, place.row, place.rows)

    def rows(self, key: Key) -> int:
        """How many rows a request has that is at hand; 0 for one that waits."""
        place = self.fresh.get(key)
        return place.rows if place else 0

    def forget(self) -> None:
        """Let go of a row group of which everything was taken."""
        if not self.fresh:
            self.table = None

    def _slice(self, place: Place) -> pa.Table:
        assert self.table is not None
        return self.table.slice(place.row, place.rows)

    @property
    def names(self) -> list[str]:
        return [*self.room.names, *(place.name for place in self.fresh.values())]


@dataclass(slots=True)
class Leftovers:
    """Requests without a partner, by name."""

    a: list[str] = field(default_factory=list)
    b: list[str] = field(default_factory=list)


def chunks(
    a: Run,
    b: Run,
    columns: tuple[Sequence[str], Sequence[str]],
    by: PromptKey,
    leftovers: Leftovers,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[Chunk]:
    """Yield all requests that both runs have, about `CHUNK_ROWS` rows at a time.

    Args:
        columns: what to read of each run.
        leftovers: filled in at the end.
        progress: called after each row group.
    """
    with ExitStack() as stack:
        sides = [
            _Side(run.tables(names), KeyReader(by), WaitingRoom(stack.enter_context(_spool())))
            for run, names in zip((a, b), columns, strict=True)
        ]
        while not all(side.ended for side in sides):
            open_sides = [side for side in sides if not side.ended]
            side = min(open_sides, key=lambda side: side.requests)
            other = sides[1] if side is sides[0] else sides[0]
            other.pack()
            side.advance()
            other.unpack()
            yield from _matched(sides, [key for key in side.fresh if other.has(key)])
            progress()
        leftovers.a, leftovers.b = sides[0].names, sides[1].names


def _spool() -> SpooledTemporaryFile[bytes]:
    """In memory while few wait, on disk when many do."""
    return SpooledTemporaryFile(max_size=IN_MEMORY)


def _matched(sides: Sequence[_Side], keys: Sequence[Key]) -> Iterator[Chunk]:
    for some in _portions(sides, keys):
        yield Chunk(*(_block([side.take(key) for key in some]) for side in sides))
    for side in sides:
        side.forget()


def _portions(sides: Sequence[_Side], keys: Sequence[Key]) -> Iterator[list[Key]]:
    """Split requests so that about CHUNK_ROWS rows come together."""
    some: list[Key] = []
    rows = 0
    for key in keys:
        some.append(key)
        rows += max(side.rows(key) for side in sides)
        if rows >= CHUNK_ROWS:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _block(requests: Sequence[_Rows]) -> Block:
    sizes = np.array([request.rows for request in requests], dtype=np.int64)
    return Block(pa.concat_tables(list(_joined(requests))), np.cumsum(sizes) - sizes)


def _joined(requests: Sequence[_Rows]) -> Iterator[pa.Table]:
    """Slices of tables, neighbours in one table as one slice, so that they are not copied."""
    whole = requests[0]
    for request in requests[1:]:
        if request.table is whole.table and request.row == whole.row + whole.rows:
            whole = whole._replace(rows=whole.rows + request.rows)
        else:
            yield whole.table.slice(whole.row, whole.rows)
            whole = request
    yield whole.table.slice(whole.row, whole.rows)

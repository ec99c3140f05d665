"""The journal of a recording: an Arrow IPC stream that survives a killed recorder."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import TIMEOUT_MAX, Event
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.ipc

from dflash.draftfile.columns import FORMAT_VERSION, arrow_schema
from dflash.draftfile.errors import (
    EmptyJournalExists,
    FolderNotWritable,
    JournalExists,
    SchemaRefused,
    WriteFailed,
)
from dflash.draftfile.header import Header, encode_header
from dflash.draftfile.metadata import seal
from dflash.draftfile.publish import sync_folder, writing
from dflash.draftfile.threads import own_threads

SYNC_SECONDS = 5.0
# a batch of a usual request goes to the system in one piece
BUFFER = 1 << 20
# what a thread has to write yet: rows of two kinds and closings of requests, twice
FLYING = 6
# a file that is not there yet, to which another handle appends
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
REQUEST, REQUESTS, CHECK = b"request_id", b"request_ids", b"crc32"


def journal_path(output: Path | str) -> Path:
    """The journal of an output: `run.parquet` and `run.journal`."""
    path = Path(output)
    return (
        path.with_suffix(".journal") if path.suffix == ".parquet" else path.with_name(path.name + ".journal")
    )


def refuse_journal(path: Path) -> None:
    """Keeps a journal that is there from being written over.

    Raises:
        JournalExists: It holds a recording that broke off, or is empty.
    """
    if path.exists():
        raise JournalExists(path) if path.stat().st_size else EmptyJournalExists(path)


class Journal:
    """Rounds of all open requests, interleaved, as they happen.

    Every batch goes to the operating system at once, so a killed process loses none; it goes to the disk
    every `sync_seconds`, so a power cut loses no more than that.

    Args:
        path: Of the journal itself; it must not exist yet.
        header: As for `DraftFileWriter`.
        sync_seconds: Longest time between two syncs while rounds come in.
        run_id, part, parts: As for `DraftFileWriter`, which a recovery needs.
        apart: Write in a thread of its own, and sync in another one; what cannot be written is then told by a
            later call.

    Attributes:
        batches: Written so far, closings included.

    Raises:
        HeaderInvalid: The header breaks `schemas/header_v1.schema.json`.
        JournalExists, FolderNotWritable: The journal cannot be written.
    """

    def __init__(
        self,
        path: Path | str,
        header: Mapping[str, Any],
        sync_seconds: float = SYNC_SECONDS,
        *,
        run_id: str,
        part: int = 0,
        parts: int | None = 1,
        apart: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self._thread = own_threads("journal") if apart else None
        self._disk = own_threads("disk") if apart else None
        self._flying: deque[Future[None]] = deque()
        self._syncing: Future[None] | None = None
        # nobody needs the sync that was put off: another one is asked for, or the journal is gone
        self._overtaken = Event()
        text = encode_header(header)
        features = Header.parse(text).features["mode"] != "none"
        self._schema = arrow_schema(features).with_metadata(_pairs(text, run_id, part, parts))
        try:
            self._file = os.fdopen(os.open(self.path, NEW, 0o666), "wb")
            again = self._opened_again()
        except FileExistsError:
            refuse_journal(self.path)
            raise
        except OSError as error:
            raise FolderNotWritable(self.path.parent, error.strerror or str(error)) from error
        self._buffer = pa.BufferedOutputStream(again, BUFFER)
        self._stream = pa.ipc.new_stream(self._buffer, self._schema)
        self._closing = pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in self._schema], schema=self._schema
        )
        self._checks = _Checks(self._closing)
        self._sync_seconds, self._clock = sync_seconds, clock
        self._dirty, self._broken, self.batches = True, False, 0
        self.sync()
        self._await_disk()
        sync_folder(self.path.parent)

    def _opened_again(self) -> Any:
        """A file of Arrow's, which takes bytes where they lie, and lets other threads go on meanwhile."""
        try:
            return pa.OSFile(os.fsencode(self.path), "ab")
        except OSError:
            self._file.close()
            self.path.unlink(missing_ok=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, request_id: str, table: pa.Table) -> None:
        """Adds rows of one open request.

        Raises:
            SchemaRefused: Other columns than `arrow_schema(features)`; a journal keeps no user columns.
            WriteFailed: The disk is full, or refuses otherwise.
        """
        self._append(REQUEST, request_id.encode(), table)

    def append_all(self, table: pa.Table) -> None:
        """Adds rows of several open requests, as their `request_id` says, in one batch: it takes less time.

        Raises:
            SchemaRefused, WriteFailed: As `append`.
        """
        self._append(REQUESTS, b"", table)

    def close_request(self, request_id: str) -> None:
        """Marks a request as complete: a batch without rows."""
        self._do(partial(self._close, REQUEST, request_id.encode()))

    def close_requests(self, request_ids: Sequence[str]) -> None:
        """Marks requests as complete, in one batch."""
        if request_ids:
            self._do(partial(self._close, REQUESTS, json.dumps(request_ids).encode()))

    @property
    def due(self) -> bool:
        """Whether the last sync is `sync_seconds` ago."""
        return self._clock() - self._synced >= self._sync_seconds

    def sync(self) -> None:
        """Makes everything so far survive a power cut; in a thread of its own, soon after."""
        self._synced = self._clock()
        self._do(self._sync)

    def sync_in_time(self) -> None:
        """As `sync`, but once `sync_seconds` are over, and not at all if the journal is deleted by then.

        Where no thread could wait for that, it is synced at once.
        """
        self._do(self._put_off)

    def flush(self) -> None:
        """Waits until the system has everything so far.

        Raises:
            WriteFailed: It refused to take it.
        """
        while self._flying:
            self._flying.popleft().result()

    def close(self) -> None:
        """Ends the stream and keeps the journal. Harmless when closed already.

        Raises:
            WriteFailed: The disk is full, or refuses otherwise; the journal is closed all the same.
        """
        if self._file.closed:
            return
        try:
            self.flush()
            if not self._broken:
                with writing(self.path):
                    self._stream.close()
                self._dirty = True
                self.sync()
                self._await_disk()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        # a sync may still be about to be put off
        if self._thread is not None:
            self._thread.shutdown()
        self._overtaken.set()
        if self._disk is not None:
            self._disk.shutdown()
        # what could not be written is tried once more by buffered files, and fails once more
        with suppress(OSError):
            self._buffer.close()
        with suppress(OSError):
            self._file.close()

    def replace(self, path: Path) -> None:
        """Takes the name of an earlier journal, all of which this one holds by now."""
        self.sync()
        self._await_disk()
        with writing(self.path):
            self.path.replace(path)
            sync_folder(path.parent)
        self.path = path

    def delete(self) -> None:
        """Removes the journal, once the file that it stands for is published."""
        self._let_go()
        self.path.unlink(missing_ok=True)

    def _append(self, kind: bytes, name: bytes, table: pa.Table) -> None:
        if not table.schema.equals(self._schema):
            odd = sorted(set(table.schema.names) ^ set(self._schema.names)) or ["types"]
            raise SchemaRefused(f"other columns for the journal ({', '.join(odd)})")
        self._do(partial(self._write_table, table, kind, name))

    def _do(self, write: Callable[[], None]) -> None:
        """Write, or have a thread do so after a few other things."""
        if self._thread is None:
            write()
            return
        while len(self._flying) >= FLYING:
            self._flying.popleft().result()
        self._flying.append(self._thread.submit(write))

    def _await_disk(self) -> None:
        """Wait until everything so far survives a power cut, and raise what could not be done."""
        self.flush()
        if self._syncing is not None:
            self._syncing.result()

    def _write_table(self, table: pa.Table, kind: bytes, name: bytes) -> None:
        for batch in table.combine_chunks().to_batches():
            if batch.num_rows:
                self._write(batch, kind, name)
        self._sync_if_due()

    def _close(self, kind: bytes, names: bytes) -> None:
        self._write(self._closing, kind, names)
        self._sync_if_due()

    def _write(self, batch: pa.RecordBatch, kind: bytes, name: bytes) -> None:
        notes = {kind: name, CHECK: self._checks.of(name, batch)}
        if self._broken:
            raise WriteFailed(self.path, "an earlier write failed, and nothing after it could be read back")
        self._dirty, self._broken = True, True
        with writing(self.path):
            self._put(batch, notes)
        self._broken = False
        self.batches += 1

    def _put(self, batch: pa.RecordBatch, notes: Mapping[bytes, bytes]) -> None:
        self._stream.write_batch(batch, custom_metadata=notes)
        self._buffer.flush()

    def _sync_if_due(self) -> None:
        if self.due:
            self._sync()

    def _put_off(self) -> None:
        left = self._synced + self._sync_seconds - self._clock()
        if self._disk is None or left <= 0:
            self._sync()
            return
        self._overtaken.set()
        self._overtaken = Event()
        self._disk.submit(self._sync_late, left, self._overtaken)

    def _sync_late(self, seconds: float, overtaken: Event) -> None:
        if not overtaken.wait(min(seconds, TIMEOUT_MAX)):
            self._to_disk()

    def _sync(self) -> None:
        self._overtaken.set()
        self._synced = self._clock()
        if not self._dirty:
            return
        with writing(self.path):
            self._buffer.flush()
        if self._syncing is not None:
            self._syncing.result()
        # more may be written meanwhile, which is for the next time
        self._dirty = False
        if self._disk is None:
            self._to_disk()
        else:
            self._syncing = self._disk.submit(self._to_disk)

    def _to_disk(self) -> None:
        try:
            with writing(self.path):
                os.fsync(self._file.fileno())
        except WriteFailed:
            self._dirty = True
            raise


class _Checks:
    """A file that keeps nothing but a checksum of what is written: of batches nothing is copied for it.

    Args:
        empty: A batch of the schema.
    """

    closed = False

    def __init__(self, empty: pa.RecordBatch) -> None:
        self._sum = 0
        self._stream = pa.ipc.new_stream(pa.PythonFile(self, "w"), empty.schema)
        # the schema goes before the first one
        self._stream.write_batch(empty)

    def of(self, name: bytes, batch: pa.RecordBatch) -> bytes:
        """CRC-32 of a batch and what is said of its requests: the stream format has no checksums itself."""
        self._sum = zlib.crc32(name)
        self._stream.write_batch(batch)
        return check_text(self._sum)

    def write(self, data: Any) -> int:
        """Take bytes, or a buffer where it lies."""
        self._sum = zlib.crc32(data, self._sum)
        return len(data)

    def flush(self) -> None:
        """Nothing waits."""


def check_text(checksum: int) -> bytes:
    """A checksum as a batch tells it."""
    return f"{checksum:08x}".encode()


def _pairs(header_text: str, run_id: str, part: int, parts: int | None) -> dict[str, str]:
    pairs = {
        "dflash.format_version": str(FORMAT_VERSION),
        "dflash.run_id": run_id,
        "dflash.part": str(part),
        "dflash.header": header_text,
    }
    if parts is not None:
        pairs["dflash.parts"] = str(parts)
    return pairs | {"dflash.seal": seal(pairs)}

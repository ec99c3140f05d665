"""Reads a journal up to the first torn byte."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from dflash.draftfile.columns import FORMAT_VERSION
from dflash.draftfile.errors import (
    FileMissing,
    JournalEmpty,
    JournalUnreadable,
    NewerFormat,
    NotAFile,
    SealBroken,
)
from dflash.draftfile.footer import Pairs
from dflash.draftfile.header import Header
from dflash.draftfile.journal import CHECK, REQUEST, REQUESTS, check_text
from dflash.draftfile.metadata import seal
from dflash.draftfile.requests import RANK, request_starts


class Entry(NamedTuple):
    """Rows of one request; `closed` when the recorder said that they are all."""

    request_id: str
    table: pa.Table
    closed: bool


class JournalContents(NamedTuple):
    """A whole journal.

    Attributes:
        closed, open: Rows by request, in the order of closing and of opening.
        torn_bytes: Bytes at the end that hold no whole batch.
    """

    header: Header
    closed: dict[str, pa.Table]
    open: dict[str, pa.Table]
    torn_bytes: int


@dataclass(slots=True)
class JournalReader:
    """One pass over a journal; memory is bounded by the open requests.

    Attributes:
        torn_bytes: Known once `entries` has ended.
    """

    path: Path
    header: Header
    run_id: str
    part: int
    parts: int | None
    _schema: pa.Schema
    torn_bytes: int = 0
    _open: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)

    def entries(self) -> Iterator[Entry]:
        """Every request as it closes, then the open ones."""
        self._open.clear()
        for request_id, batch in self._batches():
            if batch.num_rows:
                self._open.setdefault(request_id, []).append(batch)
            elif request_id in self._open:
                yield Entry(request_id, self._table(request_id), True)
        for request_id in list(self._open):
            yield Entry(request_id, self._table(request_id), False)

    def _table(self, request_id: str) -> pa.Table:
        table = pa.Table.from_batches(self._open.pop(request_id)).replace_schema_metadata()
        order = np.argsort(RANK[np.clip(table["kind"].to_numpy(), 0, len(RANK) - 1)], kind="stable")
        return table.take(pa.array(order)).combine_chunks()

    def _batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        with pa.OSFile(os.fsencode(self.path)) as file, pa.ipc.open_stream(file) as stream:
            good = file.tell()
            while True:
                found = _next(stream)
                if found is None:
                    break
                good = file.tell()
                yield from found
            self.torn_bytes = file.size() - max(good, _end_of_stream(file, good))


def open_journal(path: Path | str) -> JournalReader:
    """Reads the header of a journal.

    Raises:
        OpenError: No journal, or one that broke off before its header was written.
    """
    path = Path(path)
    if not path.is_file():
        raise NotAFile(path) if path.exists() else FileMissing(path, "the journal of a recording")
    if not path.stat().st_size:
        raise JournalEmpty(path)
    try:
        with pa.OSFile(os.fsencode(path)) as file, pa.ipc.open_stream(file) as stream:
            schema = stream.schema
    except (OSError, pa.ArrowException) as error:
        raise JournalUnreadable(path, str(error).splitlines()[0]) from error
    values = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    pairs = Pairs(path, values)
    if pairs.integer("dflash.format_version") > FORMAT_VERSION:
        raise NewerFormat(path, pairs.integer("dflash.format_version"), FORMAT_VERSION)
    if seal(values) != pairs.text("dflash.seal"):
        raise SealBroken(path, pairs.text("dflash.seal"), seal(values))
    header = Header.parse(pairs.text("dflash.header"), path)
    parts = pairs.integer("dflash.parts") if "dflash.parts" in values else None
    return JournalReader(
        path, header, pairs.text("dflash.run_id"), pairs.integer("dflash.part"), parts, schema
    )


def read_journal(path: Path | str) -> JournalContents:
    """Everything that a journal holds.

    Raises:
        OpenError: As `open_journal`.
    """
    reader = open_journal(path)
    entries = list(reader.entries())
    closed = {entry.request_id: entry.table for entry in entries if entry.closed}
    still = {entry.request_id: entry.table for entry in entries if not entry.closed}
    return JournalContents(reader.header, closed, still, reader.torn_bytes)


def _next(stream: pa.ipc.RecordBatchStreamReader) -> list[tuple[str, pa.RecordBatch]] | None:
    """Each request's part of the next whole batch, or None at the end or at the first damage."""
    try:
        batch, notes = stream.read_next_batch_with_custom_metadata()
        batch.validate(full=True)
        if notes is None:
            return None
        kind = REQUEST if REQUEST in notes else REQUESTS
        if notes[CHECK] != check_text(zlib.crc32(batch.serialize(), zlib.crc32(notes[kind]))):
            return None
        return [(notes[REQUEST].decode(), batch)] if kind == REQUEST else _apart(batch, notes[REQUESTS])
    except (StopIteration, OSError, KeyError, ValueError, pa.ArrowException):
        return None


def _apart(batch: pa.RecordBatch, closed: bytes) -> list[tuple[str, pa.RecordBatch]]:
    """A batch of several requests as one of each; without rows it closes those that are named."""
    if not batch.num_rows:
        return [(name, batch) for name in json.loads(closed)]
    starts = [*request_starts(pa.Table.from_batches([batch])).tolist(), batch.num_rows]
    # copies, as rows of an open request would hold those of others
    parts = [batch.take(pa.array(range(*ends))) for ends in zip(starts, starts[1:], strict=False)]
    return [(part["request_id"][0].as_py(), part) for part in parts]


def _end_of_stream(file: pa.OSFile, good: int) -> int:
    """Where the stream ends if it was closed in good order: after eight bytes of its own."""
    file.seek(good)
    return good + 8 if file.read(8) == b"\xff\xff\xff\xff\0\0\0\0" else good

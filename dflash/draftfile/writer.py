"""Writes one draft file: requests in, row groups at request boundaries, published only when complete."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa

from dflash.draftfile.aside import Aside
from dflash.draftfile.canonical import canonical_json
from dflash.draftfile.columns import FORMAT_VERSION, arrow_schema
from dflash.draftfile.digest import TableDigest, content_digest
from dflash.draftfile.errors import SchemaRefused
from dflash.draftfile.footer import METADATA_LIMIT
from dflash.draftfile.header import Header, encode_header
from dflash.draftfile.invariants import check_rows
from dflash.draftfile.joined import Encoded, Joined, Layout, encoded
from dflash.draftfile.journal import Journal
from dflash.draftfile.layout import ZSTD_LEVEL, file_schema, footer_bytes
from dflash.draftfile.metadata import sealed, stamp
from dflash.draftfile.other_settings import OTHER_SETTINGS, OtherSettings
from dflash.draftfile.publish import Publication, writing
from dflash.draftfile.requests import check_requests
from dflash.draftfile.summary import Summary
from dflash.draftfile.sums import Sums
from dflash.draftfile.threads import own_threads
from dflash.draftfile.view import Limits, Place

ROWS_PER_GROUP = 50_000
BYTES_PER_GROUP = 64 << 20
# what descriptions of row groups may take of a footer; the rest is the header's and the schema's
GROUPS_LIMIT = METADATA_LIMIT // 2

# threads that encode row groups, one each, and as many groups may be on their way into the file
ENCODERS = 2
# threads that check rows and digest columns meanwhile; the widest column keeps one of them busy
HELPERS = 3

RunStatus = Literal["finished", "interrupted", "recovered"]


class Published(NamedTuple):
    """A finished draft file.

    Attributes:
        bytes: Size of the file.
    """

    path: Path
    content_digest: str
    rows: int
    requests: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """Which file of which run; `parts` is known to the run's last file only."""

    run_id: str
    part: int
    parts: int | None

    def pairs(self) -> dict[str, str]:
        """The part as metadata pairs."""
        found = {"dflash.run_id": self.run_id, "dflash.part": str(self.part)}
        return found | ({"dflash.parts": str(self.parts)} if self.parts is not None else {})


class DraftFileWriter:
    """Writes `path` by way of `path.partial`; leaving the context without `finish` leaves nothing.

    Args:
        path: Where the file appears when it is complete.
        header: The header of design page 2; floats and big integers as numbers.
        run_id: Identity of the run; the same in all its files.
        part: Number of this file in the run, from 0.
        parts: Number of files of the run if this is the last one, else None.
        overwrite: Replace an existing file.
        row_group_rows, row_group_bytes: A row group closes at the first request boundary after either. Both
            double whenever half of the room that the footer has left is used, so that it never outgrows
            what readers accept.
        compression_level: Of zstd.
        apart: Encode row groups in threads while others check, digest and write them, in order, while the
            next one fills; what is wrong with one is then told when a later one closes, or at the end.

    Raises:
        HeaderInvalid: The header breaks `schemas/header_v1.schema.json`.
        OutputExists, OutputBusy, FolderNotWritable: The output cannot be written.
    """

    def __init__(
        self,
        path: Path | str,
        header: Mapping[str, Any],
        *,
        run_id: str,
        part: int = 0,
        parts: int | None = 1,
        overwrite: bool = False,
        row_group_rows: int = ROWS_PER_GROUP,
        row_group_bytes: int = BYTES_PER_GROUP,
        compression_level: int = ZSTD_LEVEL,
        apart: bool = False,
    ) -> None:
        self._header_text = encode_header(header)
        self.header = Header.parse(self._header_text)
        self._part = Part(run_id, part, parts)
        self._limits = Limits.of(self.header)
        self._features = self.header.features["mode"] != "none"
        self._group_limits = np.array([row_group_rows, row_group_bytes])
        self._buffered = np.zeros(2, np.int64)
        self._measured = 0
        self._estimated: list[pa.Table] = []
        self._level = compression_level
        self._digest, self._summary = TableDigest(), Summary()
        self._others = OtherSettings(self.header)
        self._buffer: list[pa.Table] = []
        self._requests: set[str] = set()
        self._rows = self._groups = self._described = 0
        self._grow_at = GROUPS_LIMIT // 2
        self._schema: pa.Schema | None = None
        self._joined: Joined | None = None
        self._codes = self._features and self.header.features.get("encoding") in ("int8", "fp8")
        self._encoders = own_threads("groups", ENCODERS) if apart else None
        self._joining = own_threads("joins") if apart else None
        self._helpers = own_threads("digests", HELPERS) if apart else None
        self._flying: deque[Future[None]] = deque()
        self._publication = Publication(Path(path), overwrite=overwrite)
        self._disk = own_threads("file") if apart else None
        self._adding = own_threads("sums") if apart else None
        self._sums = Sums() if apart else None
        self._aside = self._beside()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # each gives work to those after it
        for threads in (self._encoders, self._joining, self._helpers, self._disk, self._adding):
            if threads is not None:
                threads.shutdown()
        self._publication.discard()

    @property
    def path(self) -> Path:
        """Where the file will appear."""
        return self._publication.path

    def write_request(self, table: pa.Table, size: int | None = None) -> None:
        """Adds all rows of one request; they are checked when their row group closes.

        Args:
            table: `arrow_schema(features)`, where `features` is the header's mode not being `none`, and
                user columns `x_*`; every request has the same columns.
            size: About the bytes that it takes, where they are known; to find them out takes longer.

        Raises:
            SchemaRefused: Columns or types differ from the format's or from the first request's.
            DataError: The rows break an invariant of the format.
        """
        schema = self._accept(table.schema)
        # metadata alone may differ until the row group closes
        if not table.schema.equals(schema):
            table = pa.Table.from_arrays(table.columns, schema=schema)
        self._buffer.append(table)
        if size is None:
            self._estimated.append(table)
        else:
            self._measured += size
        self._buffered += np.array([table.num_rows, _size(table) if size is None else size])
        if self._is_full():
            self._flush()

    def _is_full(self) -> bool:
        """Whether the row group closes here; exact sizes take longer, and are taken where they decide."""
        rows, size = self._group_limits.tolist()
        if self._buffered[0] < rows and self._buffered[1] >= size:
            self._measured += sum(table.nbytes for table in self._estimated)
            self._estimated.clear()
            self._buffered[1] = self._measured
        return bool((self._buffered >= self._group_limits).any())

    def finish(
        self,
        run_status: RunStatus = "finished",
        lost: Mapping[str, Any] | None = None,
        journal: Journal | None = None,
    ) -> Published:
        """Writes what is buffered and the closing metadata, publishes, then deletes the journal.

        Args:
            run_status: How the run ended.
            lost: What a recovery could not bring back.
            journal: What the file makes superfluous.

        Raises:
            OutputExists: Another file took the name meanwhile.
            DataError: The rows break an invariant of the format.
            WriteFailed: The disk is full, or refuses otherwise.
        """
        self._flush()
        self._await_groups(0)
        columns = self._digest.column_digests()
        with writing(self.path):
            chunks = self._groups * len(self._layout().schema)
            self._close(sealed(self._pairs(run_status, lost, columns), chunks))
            stamp(self._publication.file, self._sums)
            size = self._publication.file.seek(0, io.SEEK_END)
            self._publication.publish()
        if journal is not None:
            journal.delete()
        return Published(self.path, content_digest(columns), self._rows, len(self._requests), size)

    def _pairs(
        self, status: RunStatus, lost: Mapping[str, Any] | None, columns: Mapping[str, str]
    ) -> dict[str, str]:
        pairs = {
            "dflash.format_version": str(FORMAT_VERSION),
            "dflash.requires": canonical_json(["features"] if self._features else []),
            **self._part.pairs(),
            "dflash.header": self._header_text,
            "dflash.run_status": status,
            "dflash.rows": str(self._rows),
            "dflash.requests": str(len(self._requests)),
            "dflash.summary": canonical_json(self._summary.to_dict()),
            OTHER_SETTINGS: canonical_json(self._others.to_dict()),
            "dflash.column_digests": canonical_json(columns),
            "dflash.content_digest": content_digest(columns),
            "dflash.complete": "true",
        }
        return pairs | ({"dflash.lost": canonical_json(lost)} if lost is not None else {})

    def _accept(self, schema: pa.Schema) -> pa.Schema:
        if self._schema is None:
            self._schema = file_schema(schema, self._features)
        elif self._schema.equals(schema):
            return self._schema
        if schema.names != self._schema.names:
            odd = sorted(set(schema.names) ^ set(self._schema.names))
            raise SchemaRefused(f"another set or order of columns ({', '.join(odd) or 'order'})")
        for field, wanted in zip(schema, self._schema, strict=True):
            if field.type != wanted.type:
                raise SchemaRefused(f"{field.name} as {field.type} instead of {wanted.type}")
        return self._schema

    def _beside(self) -> Aside | None:
        """The file as other threads write and sum it."""
        if self._disk is None or self._adding is None or self._sums is None:
            return None
        return Aside(self._publication.file, self._disk, (self._adding, self._sums.add))

    def _close(self, pairs: Mapping[str, str]) -> None:
        joined = self._open_joined()
        if self._aside is None or self._sums is None:
            joined.close(pairs)
            return
        self._aside.flush()
        self._sums.hold()
        joined.close(pairs)
        self._aside.flush()

    def _layout(self) -> Layout:
        return Layout(self._schema or arrow_schema(self._features), self._level, self._codes)

    def _open_joined(self) -> Joined:
        if self._joined is None:
            self._joined = Joined(self._aside or self._publication.file, self._layout())
        return self._joined

    def _flush(self) -> None:
        if not self._buffer:
            return
        group = pa.concat_tables(self._buffer)
        self._buffer, self._buffered = [], np.zeros(2, np.int64)
        self._measured = 0
        self._estimated.clear()
        if not group.num_rows:
            return
        place, layout = Place(self.path, self._groups), self._layout()
        if self._encoders is None or self._joining is None:
            whole = _combined(group, layout.schema)
            self._write_group(lambda: whole, place, lambda: encoded(whole, layout))
        else:
            self._await_groups(ENCODERS - 1)
            begun = self._encoders.submit(_combined, group, layout.schema)
            made = self._encoders.submit(lambda: encoded(begun.result(), layout))
            self._flying.append(self._joining.submit(self._write_group, begun.result, place, made.result))
        self._rows += group.num_rows
        self._groups += 1
        self._described += footer_bytes(group)
        if self._described > self._grow_at:
            self._group_limits = self._group_limits * 2
            self._grow_at = (self._described + GROUPS_LIMIT) // 2

    def _write_group(self, whole: Callable[[], pa.Table], place: Place, made: Callable[[], Encoded]) -> None:
        group = whole()
        if self._helpers is None:
            self._check(group, place)
            self._join(made())
            self._digest.update(group)
            return
        # what is wrong with rows is found while they are written: no file comes of them then
        widest, *others = self._digest.updates(group)
        works: list[Callable[[], None]] = [widest, partial(self._check, group, place), *others]
        meanwhile = [self._helpers.submit(work) for work in works]
        try:
            self._join(made())
        finally:
            # it comes before what it led to
            for done in meanwhile:
                done.result()

    def _check(self, group: pa.Table, place: Place) -> None:
        check_rows(group, self._limits, place)
        self._requests |= check_requests(group, self._requests, place)
        self._summary.add(group)
        self._others.add(group)

    def _join(self, group: Encoded) -> None:
        with writing(self.path):
            self._open_joined().add(group)

    def _await_groups(self, most: int) -> None:
        """Wait until so few row groups are under way; raise what another came to, at each call again."""
        while len(self._flying) > most or (self._flying and self._flying[0].done()):
            self._flying[0].result()
            self._flying.popleft()


def _combined(group: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows, each column in one piece but those of bytes, which are the most: none of these is moved."""
    kept = [field.name for field in group.schema if pa.types.is_binary(field.type)]
    whole = group.drop_columns(kept).combine_chunks()
    columns = [(group if name in kept else whole)[name] for name in group.column_names]
    return pa.Table.from_arrays(columns, schema=schema)


def _size(table: pa.Table) -> int:
    """Bytes of a table, too many rather than too few: as a stream would hold it, and a bit for every byte."""
    size: int = sum(pa.ipc.get_record_batch_size(batch) for batch in table.to_batches())
    return size + size // 8

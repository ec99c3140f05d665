"""Opens draft files strictly: nothing is read that is not complete, sealed and of the format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dflash.draftfile.columns import COLUMN
from dflash.draftfile.errors import ColumnUnknown, FooterChanged, PageCorrupt, RowsDisagree
from dflash.draftfile.file_columns import check_columns
from dflash.draftfile.footer import check_body, check_footer, open_parquet, read_pairs
from dflash.draftfile.handles import Handles
from dflash.draftfile.header import Header
from dflash.draftfile.invariants import check_rows
from dflash.draftfile.metadata import CHECKSUM, CHUNK_CHECKSUMS, FOOTER_DIGEST, Chunk, checksum, group_chunks
from dflash.draftfile.requests import check_requests
from dflash.draftfile.threads import Threads, Work, made
from dflash.draftfile.view import Limits, Place

KEPT_UNUSED = 64 << 20
READ_AHEAD = 96 << 20
# lists are decoded with their offsets, and strings out of dictionaries
DECODED = 2
# a name fills many rows, and codes are quicker to compare
CODED = {"request_id": pa.dictionary(pa.int32(), pa.string())}
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class DraftFile:
    """A complete draft file, its metadata read and checked, its rows not yet.

    Attributes:
        parts: Number of files of the run; known to its last file only.
        capabilities: What a reader must know, `features` for one.
        column_digests: Hex SHA-256 by field id.
        lost: What a recovery could not bring back.
        chunk_checksums: CRC-32 of every column chunk, 8 hex digits each, row group by row group.
        size: Bytes.
        other_settings: Requests whose settings differ from the header's, by setting; `requests` in any. None
            where an older writer did not count them.
    """

    path: Path
    header: Header
    run_id: str
    part: int
    parts: int | None
    run_status: str
    rows: int
    requests: int
    row_groups: int
    capabilities: tuple[str, ...]
    summary: dict[str, Any]
    content_digest: str
    column_digests: Mapping[str, str]
    lost: object
    chunk_checksums: str
    footer_digest: str
    size: int
    schema: pa.Schema
    other_settings: Mapping[str, int] | None

    def __deepcopy__(self, memo: object) -> DraftFile:
        return self

    def tables(
        self, columns: Sequence[str] | None = None, threads: Threads | None = None
    ) -> Iterator[pa.Table]:
        """One table per row group, checksums verified and the invariants checked.

        Args:
            columns: Names in the order wanted; None for all.
            threads: Read row groups ahead, several at once; None reads each when it is asked for.

        Raises:
            ColumnUnknown: A name that the file does not have.
            DataError: A damaged page, or rows that break the format.
        """
        names = list(self.schema.names if columns is None else columns)
        for name in names:
            if name not in self.schema.names:
                raise ColumnUnknown(self.path, name, self.schema.names)
        seen, rows = set[str](), 0
        group = decoded = 0
        for table, requests in self._groups(names, threads):
            # decoding leaves as much freed memory with Arrow as the row group takes
            decoded += table.nbytes if threads is None else 0
            if decoded >= KEPT_UNUSED:
                pa.default_memory_pool().release_unused()
                decoded = 0
            if not requests.isdisjoint(seen):
                check_requests(table, seen, Place(self.path, group))
            seen |= requests
            rows, group = rows + table.num_rows, group + 1
            # a suspended generator would keep the row group while its reader goes on
            held = [table]
            del table
            yield held.pop()
        if rows != self.rows:
            raise RowsDisagree(f"{self.rows} rows", f"{rows}", self.path)

    def column_sizes(self) -> dict[str, int]:
        """Compressed bytes per column group, from the footer; user columns count as `user`."""
        sizes: Counter[str] = Counter()
        with open_parquet(self.path) as parquet:
            for group in range(parquet.metadata.num_row_groups):
                for chunk in group_chunks(parquet.metadata, group):
                    column = COLUMN.get(chunk.column)
                    sizes[column.group if column else "user"] += chunk.size
        return dict(sizes)

    def _groups(self, names: Sequence[str], threads: Threads | None) -> Iterator[tuple[pa.Table, set[str]]]:
        """Row groups with their requests; each is sound in itself."""
        schema, limits = pa.schema([self.schema.field(name) for name in names]), Limits.of(self.header)
        coded = pa.schema([field.with_type(CODED.get(field.name, field.type)) for field in schema])

        def read(handles: Handles, chunks: Sequence[Chunk], group: int) -> tuple[pa.Table, set[str]]:
            with handles.one() as (parquet, raw):
                for chunk in chunks:
                    self.check_chunk(raw, chunk, group)
                table = self.read_group(parquet, group, coded, alone=threads is None)
            check_rows(table, limits, Place(self.path, group))
            requests = check_requests(table, (), Place(self.path, group))
            for name in filter(names.__contains__, CODED):
                field = schema.field(name)
                table = table.set_column(names.index(name), field, table[name].cast(field.type))
            return table, requests

        def works(handles: Handles) -> Iterator[Work[tuple[pa.Table, set[str]]]]:
            for group in range(self.row_groups):
                chunks = group_chunks(handles.metadata, group, names)
                size = DECODED * sum(chunk.plain for chunk in chunks)
                yield Work(size, partial(read, handles, chunks, group))

        # the usual pool gives memory back at once that the next row group needs, if threads free it
        pool = pa.default_memory_pool() if threads is None else pa.system_memory_pool()
        with Handles(self.path, pool, tuple(CODED)) as handles:
            found = handles.metadata.metadata.get(FOOTER_DIGEST.encode(), b"").decode()
            if found != self.footer_digest:
                raise FooterChanged(self.path, self.footer_digest, found)
            yield from made(works(handles), READ_AHEAD, threads)

    def check_bytes(self) -> None:
        """Reads the whole file and holds it against its digest, columns that nobody asked for included.

        Raises:
            BodyChanged: Some byte is not what was written.
        """
        with open_parquet(self.path) as parquet:
            check_body(self.path, read_pairs(self.path, parquet))

    def check_chunk(self, raw: BinaryIO, chunk: Chunk, group: int) -> None:
        """Compares the bytes of one column chunk with their checksum.

        Raises:
            PageCorrupt: They differ.
        """
        place = chunk.number * CHECKSUM
        stored, found = self.chunk_checksums[place : place + CHECKSUM], checksum(raw, chunk)
        if found != stored:
            raise PageCorrupt(f"checksum {stored} of {chunk.column}", found, self.path, group)

    def read_group(
        self, parquet: pq.ParquetFile, group: int, schema: pa.Schema, *, alone: bool = True
    ) -> pa.Table:
        """One row group with the explicit schema.

        Args:
            alone: Decode columns in threads, since no other row group is being read.

        Raises:
            PageCorrupt: A page fails its checksum or cannot be decoded.
        """
        try:
            table = parquet.read_row_group(group, columns=schema.names, use_threads=alone)
            chosen = table.select(schema.names)
            if chosen.schema.types != schema.types:
                return chosen.cast(schema)
            return pa.Table.from_arrays(chosen.columns, schema=schema)
        except (OSError, ValueError, pa.ArrowException) as error:
            found = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PageCorrupt("pages that can be decoded", found, self.path, group) from error


def open_draft_file(path: Path | str) -> DraftFile:
    """Opens a draft file: caps, magic, version, capabilities, completeness, seal, header, columns.

    Raises:
        OpenError: No complete draft file that this version can read.
        ColumnError: The columns are not the format's.
    """
    path = Path(path)
    with open_parquet(path) as parquet:
        pairs = read_pairs(path, parquet)
        header = Header.parse(pairs.text("dflash.header"), path)
        capabilities = pairs.capabilities
        # first, since whoever rewrites a file changes columns, too
        check_footer(path, pairs)
        schema = check_columns(path, parquet, "features" in capabilities)
        found = DraftFile(
            path=path,
            header=header,
            run_id=pairs.text("dflash.run_id"),
            part=pairs.integer("dflash.part"),
            parts=pairs.integer("dflash.parts") if "dflash.parts" in pairs.values else None,
            run_status=pairs.text("dflash.run_status"),
            rows=pairs.integer("dflash.rows"),
            requests=pairs.integer("dflash.requests"),
            row_groups=parquet.metadata.num_row_groups,
            capabilities=capabilities,
            summary=pairs.summary,
            content_digest=pairs.text("dflash.content_digest"),
            column_digests=pairs.json("dflash.column_digests"),
            lost=pairs.json("dflash.lost") if "dflash.lost" in pairs.values else None,
            chunk_checksums=pairs.text(CHUNK_CHECKSUMS),
            footer_digest=pairs.text(FOOTER_DIGEST),
            size=path.stat().st_size,
            schema=schema,
            other_settings=pairs.other_settings,
        )
        if parquet.metadata.num_rows != found.rows:
            raise RowsDisagree(f"{found.rows} rows", f"{parquet.metadata.num_rows} in the footer", path)
        return found


def ahead(things: Iterator[Made]) -> Iterator[Made]:
    """The same things, each made in a thread of its own while the one before it is worked on."""
    with ThreadPoolExecutor(1, "dflash-read") as thread:
        coming = thread.submit(next, things, None)
        while (one := coming.result()) is not None:
            coming = thread.submit(next, things, None)
            # as in `DraftFile.tables`
            held = [one]
            del one
            yield held.pop()

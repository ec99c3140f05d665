"""Writes one draft file: requests in, row groups at request boundaries, published only when complete."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from dflash.draftfile.canonical import canonical_json
from dflash.draftfile.columns import COLUMN, FORMAT_VERSION, arrow_schema, is_user_column
from dflash.draftfile.digest import TableDigest, content_digest
from dflash.draftfile.errors import RowsDisagree, SchemaRefused
from dflash.draftfile.header import Header, encode_header
from dflash.draftfile.invariants import Limits, check_requests, check_rows
from dflash.draftfile.metadata import sealed, stamp
from dflash.draftfile.publish import Publication
from dflash.draftfile.summary import Summary

ROWS_PER_GROUP = 50_000
BYTES_PER_GROUP = 64 << 20
ZSTD_LEVEL = 3

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
        row_group_rows, row_group_bytes: A row group closes at the first request boundary after either.
        compression_level: Of zstd.

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
    ) -> None:
        self._header_text = encode_header(header)
        self.header = Header.parse(self._header_text)
        self._part = Part(run_id, part, parts)
        self._limits = Limits.of(self.header)
        self._group_limits = (row_group_rows, row_group_bytes)
        self._level = compression_level
        self._digest, self._summary = TableDigest(), Summary()
        self._buffer: list[pa.Table] = []
        self._requests: set[str] = set()
        self._rows = self._groups = 0
        self._schema: pa.Schema | None = None
        self._parquet: pq.ParquetWriter | None = None
        self._published: Published | None = None
        self._publication = Publication(Path(path), overwrite=overwrite)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._publication.discard()

    @property
    def path(self) -> Path:
        return self._publication.path

    def write_request(self, table: pa.Table) -> None:
        """Adds all rows of one request.

        Args:
            table: `arrow_schema()` and user columns `x_*`; every request has the same columns.

        Raises:
            SchemaRefused: Columns or types differ from the format's or from the first request's.
            DataError: The rows break an invariant of the format.
        """
        table = self._conform(table)
        check_rows(table, self._limits, self.path, self._groups)
        self._requests |= check_requests(table, self._requests, self.path, self._groups)
        self._summary.add(table)
        self._buffer.append(table)
        rows, size = self._group_limits
        if sum(part.num_rows for part in self._buffer) >= rows or sum(part.nbytes for part in self._buffer) >= size:
            self._flush()

    def finish(self, run_status: RunStatus = "finished", lost: Mapping[str, Any] | None = None) -> Published:
        """Writes what is buffered and the closing metadata, then publishes.

        Args:
            run_status: How the run ended.
            lost: What a recovery could not bring back.

        Raises:
            OutputExists: Another file took the name meanwhile.
        """
        if self._buffer or self._parquet is None:
            self._flush()
        if self._parquet is None:
            raise RowsDisagree("a Parquet writer", "none", self.path)
        columns = self._digest.column_digests()
        pairs = self._pairs(run_status, lost, columns)
        self._parquet.add_key_value_metadata(sealed(pairs))
        self._parquet.close()
        stamp(self._publication.file)
        size = self._publication.file.seek(0, io.SEEK_END)
        self._publication.publish()
        return Published(self.path, content_digest(columns), self._rows, self._summary.requests, size)

    def _pairs(self, status: RunStatus, lost: Mapping[str, Any] | None, columns: Mapping[str, str]) -> dict[str, str]:
        capabilities = ["features"] if self._schema is not None and "feature_values" in self._schema.names else []
        pairs = {
            "dflash.format_version": str(FORMAT_VERSION),
            "dflash.requires": canonical_json(capabilities),
            **self._part.pairs(),
            "dflash.header": self._header_text,
            "dflash.run_status": status,
            "dflash.rows": str(self._rows),
            "dflash.requests": str(self._summary.requests),
            "dflash.summary": canonical_json(self._summary.to_dict()),
            "dflash.column_digests": canonical_json(columns),
            "dflash.content_digest": content_digest(columns),
            "dflash.complete": "true",
        }
        return pairs | ({"dflash.lost": canonical_json(lost)} if lost is not None else {})

    def _conform(self, table: pa.Table) -> pa.Table:
        if self._schema is None:
            self._schema = file_schema(table.schema)
        if table.schema.names != self._schema.names:
            odd = sorted(set(table.schema.names) ^ set(self._schema.names))
            raise SchemaRefused(f"another set or order of columns ({', '.join(odd) or 'order'})")
        for field, wanted in zip(table.schema, self._schema, strict=True):
            if field.type != wanted.type:
                raise SchemaRefused(f"{field.name} as {field.type} instead of {wanted.type}")
        return table.cast(self._schema)

    def _flush(self) -> None:
        schema = self._schema or arrow_schema()
        if self._parquet is None:
            self._parquet = open_parquet(self._publication.file, schema, self._level)
        if not self._buffer:
            return
        group = pa.concat_tables(self._buffer).combine_chunks()
        self._buffer = []
        self._parquet.write_table(group, row_group_size=max(1, group.num_rows))
        self._digest.update(group)
        self._rows += group.num_rows
        self._groups += 1


def file_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a file whose first request has these columns.

    Raises:
        SchemaRefused: A column of the format is missing or an unknown one is there.
    """
    base = arrow_schema("feature_values" in schema.names)
    users = [field for field in schema if is_user_column(field.name)]
    for name in schema.names:
        if name not in base.names and not is_user_column(name):
            raise SchemaRefused(f"the unknown column {name}")
    for name in base.names:
        if name not in schema.names:
            raise SchemaRefused(f"no column {name}")
    return pa.schema([*base, *users])


def open_parquet(file: Any, schema: pa.Schema, level: int = ZSTD_LEVEL) -> pq.ParquetWriter:
    """A Parquet writer with the encodings of the format."""
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=level,
        use_dictionary=leaf_paths(schema, "dictionary"),
        use_byte_stream_split=leaf_paths(schema, "byte_stream_split"),
        write_page_checksum=True,
        write_page_index=True,
    )


def leaf_paths(schema: pa.Schema, encoding: str) -> list[str]:
    """Leaf paths of the columns with an encoding; a bare list name would be ignored silently."""
    wanted = [name for name in schema.names if name in COLUMN and COLUMN[name].encoding == encoding]
    return [f"{name}.list.element" if COLUMN[name].is_list else name for name in wanted]

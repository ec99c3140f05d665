"""Opens draft files strictly: nothing is read that is not complete, sealed and of the format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash.draftfile.columns import COLUMN
from dflash.draftfile.errors import ColumnUnknown, PageCorrupt, RowsDisagree
from dflash.draftfile.footer import check_columns, check_footer, open_parquet, read_pairs
from dflash.draftfile.header import Header
from dflash.draftfile.invariants import check_rows
from dflash.draftfile.requests import check_requests
from dflash.draftfile.view import Limits, Place


@dataclass(frozen=True, slots=True)
class DraftFile:
    """A complete draft file, its metadata read and checked, its rows not yet.

    Attributes:
        parts: Number of files of the run; known to its last file only.
        capabilities: What a reader must know, `features` for one.
        column_digests: Hex SHA-256 by field id.
        lost: What a recovery could not bring back.
        size: Bytes.
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
    size: int
    schema: pa.Schema

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """One table per row group, page checksums verified and the invariants checked.

        Args:
            columns: Names in the order wanted; None for all.

        Raises:
            ColumnUnknown: A name that the file does not have.
            DataError: A damaged page, or rows that break the format.
        """
        names = list(self.schema.names if columns is None else columns)
        for name in names:
            if name not in self.schema.names:
                raise ColumnUnknown(self.path, name, self.schema.names)
        schema = pa.schema([self.schema.field(name) for name in names])
        limits, seen, rows = Limits.of(self.header), set[str](), 0
        with open_parquet(self.path) as parquet:
            for group in range(self.row_groups):
                table = self._read_group(parquet, group, schema)
                check_rows(table, limits, Place(self.path, group))
                seen |= check_requests(table, seen, Place(self.path, group))
                rows += table.num_rows
                yield table
        if rows != self.rows:
            raise RowsDisagree(f"{self.rows} rows", f"{rows}", self.path)

    def column_sizes(self) -> dict[str, int]:
        """Compressed bytes per column group, from the footer; user columns count as `user`."""
        sizes: Counter[str] = Counter()
        with open_parquet(self.path) as parquet:
            metadata = parquet.metadata
            for group in range(metadata.num_row_groups):
                for index in range(metadata.num_columns):
                    chunk = metadata.row_group(group).column(index)
                    column = COLUMN.get(chunk.path_in_schema.split(".")[0])
                    sizes[column.group if column else "user"] += chunk.total_compressed_size
        return dict(sizes)

    def _read_group(self, parquet: pq.ParquetFile, group: int, schema: pa.Schema) -> pa.Table:
        try:
            table = parquet.read_row_group(group, columns=schema.names)
            table = table.select(schema.names).cast(schema)
            table.validate(full=True)
            return table
        except (OSError, pa.ArrowException) as error:
            found = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PageCorrupt("pages that match their checksums", found, self.path, group) from error


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
        schema = check_columns(path, parquet, "features" in capabilities)
        check_footer(path, pairs)
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
            summary=pairs.json("dflash.summary"),
            content_digest=pairs.text("dflash.content_digest"),
            column_digests=pairs.json("dflash.column_digests"),
            lost=pairs.json("dflash.lost") if "dflash.lost" in pairs.values else None,
            size=path.stat().st_size,
            schema=schema,
        )
        if parquet.metadata.num_rows != found.rows:
            raise RowsDisagree(f"{found.rows} rows", f"{parquet.metadata.num_rows} in the footer", path)
        return found

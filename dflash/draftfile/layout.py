"""How the columns lie in Parquet: schema of a file, encodings, compression."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dflash.draftfile.columns import COLUMN, arrow_schema, is_user_column
from dflash.draftfile.digest import has_digest
from dflash.draftfile.errors import SchemaRefused

ZSTD_LEVEL = 3
# eight-bit codes of hidden states lose a quarter by zstd, and take three to five times as long to encode
CODES = "feature_values"
_DESCRIBED = 250
_LONGEST_STATISTIC = 4096


class Takes(Protocol):
    """What a Parquet writer needs of a file."""

    @property
    def closed(self) -> bool:
        """Whether it takes nothing more."""

    def write(self, data: bytes, /) -> int:
        """Take some bytes."""

    def flush(self) -> None:
        """Have them taken."""


def file_schema(schema: pa.Schema, features: bool) -> pa.Schema:
    """The schema of a file whose first request has these columns.

    Raises:
        SchemaRefused: A column of the format is missing or an unknown one is there.
    """
    base = arrow_schema(features)
    users = [field for field in schema if is_user_column(field.name)]
    for name in schema.names:
        if name not in base.names and not is_user_column(name):
            raise SchemaRefused(f"the unknown column {name}")
    for field in users:
        if not field.name.isidentifier():
            raise SchemaRefused(f"{field.name!r}, which is no plain name")
        if not has_digest(field.type):
            raise SchemaRefused(f"{field.name} of type {field.type}, which has no digest")
    for name in base.names:
        if name not in schema.names:
            raise SchemaRefused(f"no column {name}")
    return pa.schema([*base, *users])


def parquet_writer(
    file: Takes, schema: pa.Schema, level: int = ZSTD_LEVEL, codes: bool = False
) -> pq.ParquetWriter:
    """A Parquet writer with the encodings of the format.

    Args:
        level: Of zstd.
        codes: Whether hidden states are kept in eight bits a number, which are not compressed.
    """
    plain = {CODES} if codes else set()
    packed = {leaf_path(field) for field in schema} - plain
    return pq.ParquetWriter(
        file,
        schema,
        compression=dict.fromkeys(packed, "zstd") | dict.fromkeys(plain, "none"),
        compression_level=dict.fromkeys(packed, level),
        use_dictionary=leaf_paths(schema, "dictionary"),
        use_byte_stream_split=leaf_paths(schema, "byte_stream_split"),
        write_page_checksum=True,
        write_page_index=True,
    )


def footer_bytes(group: pa.Table) -> int:
    """At least what the footer needs for this row group: offsets, statistics and checksum of each column."""
    longest: list[int] = [
        pc.max(pc.binary_length(column)).as_py() or 0
        for column in group.columns
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    ]
    # minimum and maximum are there twice, and left out if they are longer
    repeated = sum(4 * size for size in longest if size <= _LONGEST_STATISTIC)
    return _DESCRIBED * int(group.num_columns) + repeated


def leaf_path(field: pa.Field) -> str:
    """The path of a column's values in Parquet."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)


def leaf_paths(schema: pa.Schema, encoding: str) -> list[str]:
    """Leaf paths of the columns with an encoding; a bare list name would be ignored silently."""
    wanted = [field for field in schema if field.name in COLUMN and COLUMN[field.name].encoding == encoding]
    return [leaf_path(field) for field in wanted]

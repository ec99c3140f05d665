"""The `dflash.*` pairs of the Parquet metadata, their seal, and what covers the bytes around them.

Parquet's page checksums leave out page headers, statistics, page index and footer, so three pairs are
written as zeros and filled in after the file is closed: checksums of the column chunks, digests of the
body and of the footer.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import pyarrow.parquet as pq

from dflash.draftfile.canonical import canonical_json
from dflash.draftfile.sums import Sums

PREFIX = "dflash."
# in files of `replay -o`, which are no draft files
VERDICTS = "dflash.verdicts_version"
MAGIC = b"PAR1"
CHUNK_CHECKSUMS, BODY_DIGEST, FOOTER_DIGEST = (
    "dflash.chunk_checksums",
    "dflash.body_digest",
    "dflash.footer_digest",
)
STAMPS = (CHUNK_CHECKSUMS, BODY_DIGEST, FOOTER_DIGEST)
CHECKSUM, DIGEST = 8, 64
BLOCK = 1 << 20


class Chunk(NamedTuple):
    """Bytes of one column in one row group.

    Attributes:
        column: Name of the column.
        number: Place of its checksum: counts over the columns, then over the row groups.
        plain: Bytes before compression.
    """

    column: str
    number: int
    start: int
    size: int
    plain: int


def sealed(pairs: Mapping[str, str], chunks: int) -> dict[str, str]:
    """The pairs with their seal and with zeros where `stamp` will write.

    Args:
        chunks: Row groups times leaf columns.
    """
    blanks = {
        CHUNK_CHECKSUMS: "0" * CHECKSUM * chunks,
        BODY_DIGEST: "0" * DIGEST,
        FOOTER_DIGEST: "0" * DIGEST,
    }
    return {**pairs, "dflash.seal": seal(pairs), **blanks}


def seal(pairs: Mapping[str, str]) -> str:
    """SHA-256 of the canonical JSON of all `dflash.*` pairs but the seal and the stamps that follow it."""
    kept = {key: value for key, value in pairs.items() if key.startswith(PREFIX)}
    for key in ("dflash.seal", *STAMPS):
        kept.pop(key, None)
    return hashlib.sha256(canonical_json(kept).encode()).hexdigest()


def footer_start(file: BinaryIO) -> int:
    """Offset of the footer of a Parquet file."""
    size = file.seek(0, 2)
    file.seek(size - 8)
    return size - 8 - int(struct.unpack("<I", file.read(4))[0])


def stamp(file: BinaryIO, sums: Sums | None = None) -> None:
    """Fills in the checksums and digests of a closed Parquet file that was written with zeros.

    Args:
        sums: Of all that was written; without them the file is read again.
    """
    metadata = pq.read_metadata(file)
    groups = range(metadata.num_row_groups)
    chunks = [chunk for group in groups for chunk in group_chunks(metadata, group)]
    start = footer_start(file)
    body = body_digest(file, start) if sums is None else sums.body(start)
    file.seek(start)
    footer = _fill(file.read(), CHUNK_CHECKSUMS, "".join(_checksums(file, chunks, sums)))
    footer = _fill(footer, BODY_DIGEST, body)
    footer = _fill(footer, FOOTER_DIGEST, hashlib.sha256(footer).hexdigest())
    file.seek(start)
    file.write(footer)


def group_chunks(metadata: pq.FileMetaData, group: int, names: Collection[str] | None = None) -> list[Chunk]:
    """Where the column chunks of a row group lie; those of all columns unless some are named."""
    row_group, width, found = metadata.row_group(group), metadata.num_columns, []
    for index in range(width):
        name = metadata.schema.column(index).path.split(".")[0]
        if names is not None and name not in names:
            continue
        column = row_group.column(index)
        start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        sizes = column.total_compressed_size, column.total_uncompressed_size
        found.append(Chunk(name, group * width + index, start, *sizes))
    return found


def checksum(file: BinaryIO, chunk: Chunk) -> str:
    """CRC-32 of a column chunk with its page headers, in hex."""
    file.seek(chunk.start)
    left, found = chunk.size, 0
    while left > 0 and (block := file.read(min(BLOCK, left))):
        found, left = zlib.crc32(block, found), left - len(block)
    return f"{found:0{CHECKSUM}x}"


def _checksums(file: BinaryIO, chunks: Sequence[Chunk], sums: Sums | None) -> list[str]:
    known = None if sums is None else sums.checksums([(chunk.start, chunk.size) for chunk in chunks])
    if known is None:
        return [checksum(file, chunk) for chunk in chunks]
    return [f"{each:0{CHECKSUM}x}" for each in known]


def body_digest(file: BinaryIO, end: int) -> str:
    """SHA-256 of the bytes before the footer: pages, their headers, the page index."""
    digest = hashlib.sha256()
    file.seek(0)
    while end > 0 and (block := file.read(min(BLOCK, end))):
        digest.update(block)
        end -= len(block)
    return digest.hexdigest()


def footer_digest(file: BinaryIO, start: int, stored: str) -> str:
    """SHA-256 of the footer to the end of the file, with zeros where its own digest stands."""
    file.seek(start)
    footer = file.read().replace(_entry(FOOTER_DIGEST, stored), _entry(FOOTER_DIGEST, "0" * DIGEST))
    return hashlib.sha256(footer).hexdigest()


def _fill(footer: bytes, key: str, text: str) -> bytes:
    blank = _entry(key, "0" * len(text))
    if footer.count(blank) != 1:
        raise ValueError(
            f"expected zeros for {key} once in the footer, found them {footer.count(blank)} times"
        )
    return footer.replace(blank, _entry(key, text))


def _entry(key: str, value: str) -> bytes:
    """Key and value in Thrift's compact protocol: a field header and a length before the value."""
    length, size = b"", len(value)
    while size >= 0x80:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return key.encode() + b"\x18" + length + bytes([size]) + value.encode()

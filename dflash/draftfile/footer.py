"""The end of the file: caps, `dflash.*` pairs, digests of the bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from dflash.draftfile.columns import FORMAT_VERSION
from dflash.draftfile.errors import (
    BodyChanged,
    FileEmpty,
    FileMissing,
    FileTruncated,
    FileUnreadable,
    FooterChanged,
    FooterCorrupt,
    Incomplete,
    JournalEmpty,
    JournalGiven,
    MetadataInvalid,
    MetadataTooLarge,
    NewerFormat,
    NotADraftFile,
    NotAFile,
    NotParquet,
    SealBroken,
    TrailingBytes,
    UnknownCapability,
    VerdictsGiven,
)
from dflash.draftfile.metadata import (
    BODY_DIGEST,
    FOOTER_DIGEST,
    MAGIC,
    VERDICTS,
    body_digest,
    footer_digest,
    footer_start,
    seal,
)
from dflash.draftfile.other_settings import OTHER_SETTINGS
from dflash.draftfile.summary import Summary

METADATA_LIMIT = 16 << 20
THRIFT_ITEMS = 1 << 20
SMALLEST = 12
# the first field of Thrift's compact protocol: number 1, a 32-bit integer
FOOTER_BEGINS = b"\x15"
# how far back the end of a file is looked for
TRAILING = 1 << 20
CAPABILITIES = ("features",)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The sealed `dflash.*` pairs of one file."""

    path: Path
    values: Mapping[str, str]

    def text(self, key: str) -> str:
        """The value of a pair.

        Raises:
            MetadataInvalid: It is missing.
        """
        if key not in self.values:
            raise MetadataInvalid(self.path, key, "it is missing")
        return self.values[key]

    def integer(self, key: str) -> int:
        """The value of a pair as a count."""
        found = self.text(key)
        if not (found.isascii() and found.isdigit()):
            raise MetadataInvalid(self.path, key, f"expected a count, found {found[:40]!r}")
        return int(found)

    def json(self, key: str) -> Any:
        """The value of a pair as JSON."""
        try:
            return json.loads(self.text(key))
        except ValueError as error:
            raise MetadataInvalid(self.path, key, f"expected JSON ({error})") from error

    @property
    def summary(self) -> dict[str, Any]:
        """The counts of `Summary`, checked to be all there."""
        found = self.json("dflash.summary")
        try:
            return Summary.from_dict(found).to_dict()
        except (KeyError, TypeError) as error:
            raise MetadataInvalid(self.path, "dflash.summary", f"a count is missing ({error})") from error

    @property
    def other_settings(self) -> dict[str, int] | None:
        """How many requests have other settings than the header; None where an older writer left it out."""
        if OTHER_SETTINGS not in self.values:
            return None
        found = self.json(OTHER_SETTINGS)
        if not (isinstance(found, dict) and all(type(count) is int for count in found.values())):
            raise MetadataInvalid(self.path, OTHER_SETTINGS, f"expected counts, found {str(found)[:80]}")
        return found

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities that a reader must know."""
        found = self.json("dflash.requires")
        if not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
            raise MetadataInvalid(
                self.path, "dflash.requires", f"expected a list of names, found {str(found)[:80]}"
            )
        return tuple(found)


@contextmanager
def open_parquet(
    path: Path, metadata: pq.FileMetaData | None = None, *, pages: bool = True, coded: Sequence[str] = ()
) -> Iterator[pq.ParquetFile]:
    """The Parquet file, capped.

    Args:
        metadata: Of the file, if it was read before.
        pages: Verify page checksums, which those of whole column chunks make unnecessary.
        coded: Columns to read as dictionaries.

    Raises:
        OpenError: No Parquet file, or a damaged or oversized footer.
    """
    _check_ends(path)
    try:
        parquet = pq.ParquetFile(
            path,
            metadata=metadata,
            read_dictionary=list(coded),
            page_checksum_verification=pages,
            thrift_string_size_limit=METADATA_LIMIT,
            thrift_container_size_limit=THRIFT_ITEMS,
        )
    except (OSError, ValueError, pa.ArrowException, MemoryError) as error:
        raise FooterCorrupt(path, _first_line(error)) from error
    with parquet:
        yield parquet


def read_pairs(path: Path, parquet: pq.ParquetFile) -> Pairs:
    """The `dflash.*` pairs, once version, capabilities, completeness and seal are right."""
    raw = parquet.metadata.metadata or {}
    try:
        values = {key.decode(): value.decode() for key, value in raw.items() if key.startswith(b"dflash.")}
    except UnicodeDecodeError as error:
        raise MetadataInvalid(path, "dflash.*", f"expected UTF-8 ({error})") from error
    pairs = Pairs(path, values)
    if "dflash.format_version" not in values:
        raise VerdictsGiven(path) if VERDICTS in values else NotADraftFile(path)
    version = pairs.integer("dflash.format_version")
    if version > FORMAT_VERSION:
        raise NewerFormat(path, version, FORMAT_VERSION)
    for entry in pairs.capabilities:
        name, _, since = entry.partition("@")
        if name not in CAPABILITIES:
            raise UnknownCapability(path, name, since or None, CAPABILITIES)
    if values.get("dflash.complete") != "true":
        raise Incomplete(path)
    if seal(values) != pairs.text("dflash.seal"):
        raise SealBroken(path, pairs.text("dflash.seal"), seal(values))
    return pairs


def check_footer(path: Path, pairs: Pairs) -> None:
    """Recomputes the digest of the footer's bytes: statistics and offsets have no checksum of their own."""
    stored = pairs.text(FOOTER_DIGEST)
    with path.open("rb") as file:
        found = footer_digest(file, footer_start(file), stored)
    if found != stored:
        raise FooterChanged(path, stored, found)


def check_body(path: Path, pairs: Pairs) -> None:
    """Recomputes the digest of all bytes before the footer; reads the whole file."""
    stored = pairs.text(BODY_DIGEST)
    with path.open("rb") as file:
        found = body_digest(file, footer_start(file))
    if found != stored:
        raise BodyChanged(path, stored, found)


def _check_ends(path: Path) -> None:
    try:
        if not path.is_file():
            raise NotAFile(path) if path.exists() else FileMissing(path)
        with path.open("rb") as file:
            size, head = path.stat().st_size, file.read(4)
            journal = path.suffix == ".journal"
            if not size:
                raise JournalEmpty(path) if journal else FileEmpty(path)
            if head != MAGIC:
                raise JournalGiven(path) if journal else NotParquet(path, head)
            if size < SMALLEST:
                raise FileTruncated(path, f"{size} bytes")
            file.seek(size - 8)
            length, tail = struct.unpack("<I4s", file.read(8))
            beyond = _beyond(file, size) if tail != MAGIC else 0
    except OSError as error:
        raise FileUnreadable(path, error.strerror or str(error)) from error
    if beyond:
        raise TrailingBytes(path, beyond)
    if tail != MAGIC:
        raise FileTruncated(path, f"it ends with {tail!r}")
    if length > METADATA_LIMIT:
        raise MetadataTooLarge(path, length, METADATA_LIMIT)
    if length > size - SMALLEST:
        raise FileTruncated(path, f"the footer claims {length} of {size} bytes")


def _beyond(file: BinaryIO, size: int) -> int:
    """How many bytes follow what looks like the end of a Parquet file; 0 if nothing does."""
    start = max(0, size - TRAILING)
    file.seek(start)
    read = file.read()
    at = read.rfind(MAGIC)
    while at >= 8:
        (length,) = struct.unpack("<I", read[at - 4 : at])
        begin = start + at - 4 - length
        if begin >= len(MAGIC):
            file.seek(begin)
            if file.read(1) == FOOTER_BEGINS:
                return size - (start + at + len(MAGIC))
        at = read.rfind(MAGIC, 0, at)
    return 0


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__

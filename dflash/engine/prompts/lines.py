"""Bytes to lines: plain, gzip or zstd, recognised by content; UTF-8 with or without a mark; LF or CRLF."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from dflash.engine.prompts.errors import (
    DamagedCompression,
    DecompressorMissing,
    LineTooLong,
    NotText,
    NotUtf8,
    PromptError,
)

MAX_LINE = 64 << 20
_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_LARGEST_WINDOW = 1 << 31
_KINDS = {
    codecs.BOM_UTF16_LE: "UTF-16 text",
    codecs.BOM_UTF16_BE: "UTF-16 text",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PK\x03\x04": "a ZIP archive",
    b"%PDF": "a PDF document",
    b"SQLite format 3": "an SQLite database",
    b"GGUF": "a GGUF model",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
}


class Line(NamedTuple):
    """One line without its ending; `text` is the error if the bytes are no text."""

    place: str
    text: str | PromptError


def read_lines(stream: BinaryIO, name: str) -> Iterator[Line]:
    """Read lines as they arrive; blank ones are left out.

    Args:
        stream: Bytes, compressed or not; every frame or member of it is read.
        name: What errors call the stream.

    Raises:
        DamagedCompression: The compressed stream is cut short or corrupt.
        NotText: It begins as files of another kind do, or with bytes that no text has.
        LineTooLong: A line has over 64 MiB.
    """
    for number, raw in enumerate(_split(_texts(_decompressed(stream, name), name), name), 1):
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        place = f"{name}:{number}"
        text = _decode(raw.removesuffix(b"\r"), place)
        if isinstance(text, PromptError) or text.strip():
            yield Line(place, text)


def _texts(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The chunks, if they begin as text does."""
    start = b""
    # no more than the first line: the next may be typed in an hour
    while b"\n" not in start and len(start) < _CHUNK and (chunk := next(chunks, None)) is not None:
        start += chunk
    if kind := _other_kind(start):
        raise NotText(
            name,
            f"expected prompts as lines of UTF-8 text or JSON Lines, plain, .gz or .zst, found {kind}; "
            "write them to such a file.",
        )
    yield start
    yield from chunks


def _other_kind(start: bytes) -> str | None:
    """What a file is that begins so, if it is no text; text may hold a zero, or the name of a kind."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        if b"\0" not in start:
            return None
    else:
        if b"\0" not in start or not start.startswith(tuple(_KINDS)):
            return None
    return next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), "binary data")


def _decode(raw: bytes, place: str) -> str | NotUtf8:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
        return NotUtf8(place, f"expected UTF-8, found {found}.")


def _split(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    rest, number = bytearray(), 0
    for chunk in chunks:
        *complete, tail = chunk.split(b"\n")
        for piece in complete:
            number += 1
            yield bytes(rest + piece)
            rest.clear()
        rest += tail
        if len(rest) > MAX_LINE:
            raise LineTooLong(f"{name}:{number + 1}", f"expected lines of at most {MAX_LINE >> 20} MiB")
    if rest:
        yield bytes(rest)


def _decompressed(stream: BinaryIO, name: str) -> Iterator[bytes]:
    start = _at_least(stream, len(_ZSTD))
    if start.startswith(_GZIP):
        yield from _gunzip(_Rejoined(start, stream), name)
    elif start.startswith(_ZSTD):
        yield from _unzstd(_Rejoined(start, stream), name)
    elif name.endswith((".gz", ".zst")) and start:
        raise DamagedCompression(name, "expected compressed data, found something else.")
    else:
        yield from _chunks(_Rejoined(start, stream))


def _at_least(stream: BinaryIO, size: int) -> bytes:
    start = b""
    while len(start) < size and (more := stream.read(size - len(start))):
        start += more
    return start


class _Rejoined(io.RawIOBase):
    """A stream with its first bytes put back; reads return what has arrived instead of waiting for more."""

    def __init__(self, start: bytes, rest: BinaryIO) -> None:
        self._start = start
        self._read = getattr(rest, "read1", rest.read)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._start or self._read(len(buffer))
        piece, self._start = piece[: len(buffer)], piece[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


def _chunks(stream: io.RawIOBase) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk


def _gunzip(stream: io.RawIOBase, name: str) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=stream, mode="rb") as unpacked:
            while chunk := unpacked.read1(_CHUNK):
                yield chunk
    except EOFError as error:
        raise DamagedCompression(name, "expected a complete gzip stream, but it is cut short.") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DamagedCompression(name, f"expected a gzip stream, found damage ({error}).") from error


def _unzstd(stream: io.RawIOBase, name: str) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        reason = "expected the package zstandard to unpack it, found none; install it, or unpack the file."
        raise DecompressorMissing(name, reason) from error
    context = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    frame, begun = context.decompressobj(), False
    try:
        for packed in _chunks(stream):
            while packed:
                yield frame.decompress(packed)
                packed, begun = frame.unused_data, True
                if frame.eof:
                    frame, begun = context.decompressobj(), False
                else:
                    packed = b""
    except zstandard.ZstdError as error:
        raise DamagedCompression(name, f"expected a zstd stream, found damage ({error}).") from error
    if begun:
        raise DamagedCompression(name, "expected a complete zstd stream, but it is cut short.")

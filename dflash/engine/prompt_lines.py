"""Bytes to lines: plain, gzip or zstd, recognised by content; UTF-8 with or without a mark; LF or CRLF."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from dflash.engine.prompt_errors import (
    DamagedCompression,
    DecompressorMissing,
    LineTooLong,
    NotUtf8,
    PromptError,
)

MAX_LINE = 64 << 20
_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_LARGEST_WINDOW = 1 << 31
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


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
        LineTooLong: A line has over 64 MiB.
    """
    for number, raw in enumerate(_split(_decompressed(stream, name), name), 1):
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        place = f"{name}:{number}"
        text = _decode(raw.removesuffix(b"\r"), place)
        if isinstance(text, PromptError) or text.strip():
            yield Line(place, text)


def _decode(raw: bytes, place: str) -> str | NotUtf8:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = " It looks like UTF-16." if raw.startswith(_UTF16) else ""
        found = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
        return NotUtf8(place, f"expected UTF-8, found {found}.{hint}")


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

"""The `dflash.*` pairs of the Parquet metadata, their seal, and the digests of the bytes around them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import BinaryIO

from dflash.draftfile.canonical import canonical_json

PREFIX = "dflash."
MAGIC = b"PAR1"
BLANK = "0" * 64
FILE_DIGESTS = ("dflash.body_digest", "dflash.footer_digest")
CHUNK = 1 << 20


def sealed(pairs: Mapping[str, str]) -> dict[str, str]:
    """The pairs with their seal and with blanks where the digests of the bytes will go."""
    return {**pairs, "dflash.seal": seal(pairs), **dict.fromkeys(FILE_DIGESTS, BLANK)}


def seal(pairs: Mapping[str, str]) -> str:
    """SHA-256 of the canonical JSON of all `dflash.*` pairs but the seal and the digests written after it."""
    kept = {key: value for key, value in pairs.items() if key.startswith(PREFIX)}
    for key in ("dflash.seal", *FILE_DIGESTS):
        kept.pop(key, None)
    return hashlib.sha256(canonical_json(kept).encode()).hexdigest()


def footer_start(file: BinaryIO) -> int:
    """Offset of the footer of a Parquet file."""
    size = file.seek(0, 2)
    file.seek(size - 8)
    return size - 8 - int(struct.unpack("<I", file.read(4))[0])


def stamp(file: BinaryIO) -> None:
    """Fills in the two digests of a closed Parquet file that was written with blanks."""
    start = footer_start(file)
    body = body_digest(file, start)
    file.seek(start)
    footer = _fill(file.read(), FILE_DIGESTS[0], body)
    footer = _fill(footer, FILE_DIGESTS[1], hashlib.sha256(footer).hexdigest())
    file.seek(start)
    file.write(footer)


def body_digest(file: BinaryIO, end: int) -> str:
    """SHA-256 of the bytes before the footer: pages, their headers, the page index."""
    digest = hashlib.sha256()
    file.seek(0)
    while end > 0 and (chunk := file.read(min(CHUNK, end))):
        digest.update(chunk)
        end -= len(chunk)
    return digest.hexdigest()


def footer_digest(file: BinaryIO, start: int, stored: str) -> str:
    """SHA-256 of the footer to the end of the file, with zeros where its own digest stands."""
    file.seek(start)
    return hashlib.sha256(file.read().replace(stored.encode(), BLANK.encode())).hexdigest()


def _fill(footer: bytes, key: str, digest: str) -> bytes:
    place = footer.index(BLANK.encode(), footer.index(key.encode()))
    return footer[:place] + digest.encode() + footer[place + len(BLANK) :]

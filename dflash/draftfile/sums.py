"""Checksums and the digest of a Parquet file as it is written, so that nothing of it is read again."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

# CRC-32's polynomial, and x to the eighth modulo it: the highest power is the lowest bit
POLYNOMIAL, BYTE = 0xEDB88320, 1 << 23


class Sums:
    """What is known of a file's bytes, given all of them in order, in pieces."""

    def __init__(self) -> None:
        self._body = hashlib.sha256()
        self._sizes, self._checksums = array("Q"), array("L")
        self._last: list[bytes] | None = None

    def add(self, pieces: Sequence[bytes]) -> None:
        """Take what comes next."""
        for piece in pieces:
            self._sizes.append(len(piece))
            self._checksums.append(zlib.crc32(piece))
            if self._last is None:
                self._body.update(piece)
            else:
                self._last.append(piece)

    def hold(self) -> None:
        """Keep what comes from now on: the footer, which is not of the body, begins in it."""
        self._last = []

    def body(self, end: int) -> str:
        """SHA-256 of the bytes before the footer, which begins at `end`."""
        last = b"".join(self._last or ())
        digest = self._body.copy()
        digest.update(last[: len(last) + end - sum(self._sizes)])
        return digest.hexdigest()

    def checksums(self, extents: Sequence[tuple[int, int]]) -> list[int] | None:
        """CRC-32 of extents, each a start and a size, from those of their pieces.

        Returns:
            None where they do not follow each other, or one begins or ends in the midst of a piece.
        """
        starts, sizes = np.array(extents, np.int64).reshape(-1, 2).T
        ends, begins = starts + sizes, np.append(0, np.array(self._sizes, np.int64).cumsum())
        first, last = np.searchsorted(begins, starts), np.searchsorted(begins, ends)
        apart = np.isin(starts, begins).all() and np.isin(ends, begins).all()
        if not len(extents) or not apart or (first[1:] != last[:-1]).any():
            return None
        pieces = slice(first[0], last[-1])
        behind = ends.repeat(last - first) - begins[1:][pieces]
        sums = shifted(np.array(self._checksums, np.uint32)[pieces], behind)
        found: list[int] = np.bitwise_xor.reduceat(sums, first - pieces.start).tolist()
        return found


def shifted(sums: Words, sizes: npt.NDArray[np.int64]) -> Words:
    """What CRC-32 of some bytes each adds to that of the same with so many bytes behind them.

    As zlib's `crc32_combine`: times x to the power of eight times the size.
    """
    power, left, found = np.array([BYTE], np.uint32), sizes, sums
    while left.any():
        found = np.where(left % 2 == 1, _product(power, found), found)
        power, left = _product(power, power), left // 2
    return found


def _product(one: Words, other: Words) -> Words:
    """Products of polynomials over bits, modulo CRC-32's."""
    found = np.zeros(np.broadcast_shapes(one.shape, other.shape), np.uint32)
    for bit in range(31, -1, -1):
        found ^= np.where(one >> np.uint32(bit) & 1, other, np.uint32(0))
        other = other >> np.uint32(1) ^ np.where(other & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return found

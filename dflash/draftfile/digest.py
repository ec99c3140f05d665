"""Digests of the content: the same for the same values, whatever compression, row groups or versions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dflash.draftfile.canonical import canonical_json
from dflash.draftfile.columns import COLUMN

Bytes = npt.NDArray[np.uint8]

# bytes that stay near the processor; memory for many more takes longer to get than to fill
_AT_ONCE = 1 << 18
# above it, values of text or bytes take less time one by one
_LONG = 1 << 10
# up to so many elements a row, equal rows take less time as a whole
_FEW = 16


class ColumnDigest:
    """SHA-256 over the rows of one column, fed in file order.

    A list is its length (int32) and, for each element, a validity byte and the value; a null list has
    length -1. A scalar is a validity byte and the value. Strings and binaries are a length (int32,
    null -1) and the bytes. All little-endian; a null element's value is zero; every NaN is the same.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen = False

    def update(self, column: pa.ChunkedArray | pa.Array) -> None:
        """Adds rows, in file order."""
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        for chunk in chunks:
            self._seen = self._seen or chunk.null_count < len(chunk)
            rows = max(1, _AT_ONCE * len(chunk) // max(1, chunk.nbytes))
            if rows <= _AT_ONCE // _LONG and _is_text(chunk.type):
                for piece in _pieces(chunk):
                    self._hash.update(piece)
                continue
            for start in range(0, len(chunk), rows):
                self._hash.update(encode(chunk.slice(start, rows)))

    def hexdigest(self) -> str | None:
        """The digest, or None if every row was null."""
        return self._hash.hexdigest() if self._seen else None


class TableDigest:
    """Column digests of a stream of tables with the same columns."""

    def __init__(self) -> None:
        self._columns: dict[str, ColumnDigest] = {}

    def update(self, table: pa.Table) -> None:
        """Adds the rows of a table, in file order."""
        for update in self.updates(table):
            update()

    def updates(self, table: pa.Table) -> list[Callable[[], None]]:
        """What adds the rows of each column, the most bytes first; threads may share this work."""
        digests = [
            (self._columns.setdefault(name, ColumnDigest()), table[name]) for name in table.column_names
        ]
        digests.sort(key=lambda each: -each[1].nbytes)
        return [partial(digest.update, column) for digest, column in digests]

    def column_digests(self) -> dict[str, str]:
        """Hex digests by field id (by name for user columns); all-null columns are left out."""
        found = {digest_key(name): column.hexdigest() for name, column in self._columns.items()}
        return {key: digest for key, digest in found.items() if digest is not None}


def digest_key(name: str) -> str:
    """Field id of a column of the format, name of a user column."""
    column = COLUMN.get(name)
    return str(column.field_id) if column else name


def content_digest(column_digests: Mapping[str, str]) -> str:
    """SHA-256 of the canonical JSON of the column digests without the volatile columns."""
    volatile = {str(column.field_id) for column in COLUMN.values() if column.volatile}
    kept = {key: digest for key, digest in column_digests.items() if key not in volatile}
    return hashlib.sha256(canonical_json(kept).encode()).hexdigest()


def has_digest(kind: pa.DataType) -> bool:
    """Whether columns of this type can be digested: numbers, booleans, times, text, and lists but of text."""
    if pa.types.is_list(kind):
        return _is_plain(kind.value_type)
    return _is_plain(kind) or _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_plain(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_timestamp)
    return any(test(kind) for test in tests)


def encode(array: pa.Array) -> bytes | pa.Buffer:
    """The digest's bytes of one array (see `ColumnDigest`)."""
    kind = array.type
    if pa.types.is_list(kind):
        return _encode_list(array)
    if _is_text(kind):
        return _encode_text(array)
    return _elements(array).tobytes()


def _encode_list(array: pa.ListArray) -> bytes | pa.Buffer:
    lengths = array.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False).astype("<i4")
    return _weave(lengths, _elements(array.flatten()))


def _encode_text(array: pa.Array) -> bytes | pa.Buffer:
    lengths, data = _texts(array)
    return _weave(lengths, data.reshape(-1, 1))


def _pieces(array: pa.Array) -> Iterator[bytes | memoryview]:
    """What `_encode_text` gives, in pieces of `_AT_ONCE` bytes; a value that is longer is not copied."""
    lengths, data = _texts(array)
    heads, whole, start = lengths.tobytes(), data.data, 0
    parts: list[bytes | memoryview] = []
    size = 0
    for row, length in enumerate(lengths.tolist()):
        end = start + max(0, length)
        parts += heads[4 * row : 4 * row + 4], whole[start:end]
        size += end - start
        if size >= _AT_ONCE:
            last = [parts.pop()] if end - start >= _AT_ONCE else []
            yield b"".join(parts)
            yield from last
            parts, size = [], 0
        start = end
    yield b"".join(parts)


def _texts(array: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Lengths of text or bytes, -1 for null, and all of them one behind the other."""
    view = array if pa.types.is_binary(array.type) else array.cast(pa.binary())
    lengths = pc.binary_length(view).fill_null(-1).to_numpy(zero_copy_only=False)
    return lengths.astype("<i4", copy=False), _bytes(view.drop_null())


def _bytes(values: pa.Array) -> Bytes:
    """All bytes of a binary array without nulls, one value behind the other."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def _weave(lengths: npt.NDArray[np.int32], elements: Bytes) -> bytes | pa.Buffer:
    """Each row's length before its elements; elements is [count, width]."""
    width, rows = elements.shape[1], len(lengths)
    if rows and 0 <= lengths[0] <= _FEW and (lengths == lengths[0]).all():
        parts = lengths.view(np.uint8).reshape(rows, 4), elements.reshape(rows, -1)
        return np.concatenate(parts, axis=1).tobytes()
    heads = _binaries(np.full(rows, 4), lengths)
    bodies = _binaries(np.maximum(lengths, 0).astype(np.int64) * width, elements)
    nothing = pa.scalar(b"", pa.large_binary())
    found: pa.Buffer = pc.binary_join_element_wise(heads, bodies, nothing).buffers()[2]
    return found.slice(0, lengths.nbytes + elements.nbytes)


def _binaries(sizes: npt.NDArray[np.int64], data: npt.NDArray[Any]) -> pa.Array:
    """The bytes of an array, so many a row."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _elements(values: pa.Array) -> Bytes:
    """[count, 1 + width]: a validity byte and the value of each element."""
    data = _raw(values)
    packed = np.empty(len(values), np.dtype([("valid", "u1"), ("value", data.dtype)]))
    packed["valid"] = 1 if values.null_count == 0 else values.is_valid().to_numpy(zero_copy_only=False)
    packed["value"] = data
    return packed.view(np.uint8).reshape(len(values), packed.itemsize)


def _raw(values: pa.Array) -> npt.NDArray[Any]:
    """Little-endian numbers; zero for nulls, one NaN for every NaN."""
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    data = values.fill_null(0).to_numpy(zero_copy_only=False)
    if data.dtype.kind == "f":
        data = np.where(np.isnan(data), data.dtype.type("nan"), data)
    little: npt.NDArray[Any] = data.astype(data.dtype.newbyteorder("<"), copy=False)
    return little

"""What is said between a decoding process and its recorder: pickles of plain things, arrays beside them."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# arrays begin at multiples of this, as numpy likes them
ALIGNED = 16
_SIZE = struct.Struct("<Q")

Buffer = bytes | memoryview


class AskedRequest(NamedTuple):
    """What a recorder must know of a request."""

    request_id: str
    order: int
    prompt_tokens: list[int] | None = None
    prompt_text: str | None = None
    info: str | None = None

    def info_json(self) -> str:
        """As `Request.info_json`."""
        return self.info or "{}"


class FarLane(NamedTuple):
    """A lane of another process."""

    index: int
    request: AskedRequest


def packed_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its arrays [n] as tuples of kind and bytes, which pickle several times faster."""
    return {
        name: (value.dtype.char, value.tobytes())
        if type(value) is np.ndarray and value.dtype.char != "O"
        else _packed(value)
        for name, value in row.items()
    }


def unpacked_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row that was packed; its arrays cannot be written to."""
    return {name: _unpacked(value) if type(value) is tuple else value for name, value in row.items()}


def dumps(*message: Any) -> bytes:
    """One message."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def loads(message: bytes) -> tuple[Any, ...]:
    """The message that `dumps` made, in the process that was started to read it."""
    found: tuple[Any, ...] = pickle.loads(message)
    return found


def framed(*message: Any) -> list[Buffer]:
    """One message in pieces, its arrays as they lie in memory.

    How many pieces follow, their sizes, then the pieces, each from a multiple of `ALIGNED` on: the pickle and
    its buffers.
    """
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    pieces = [memoryview(text), *(buffer.raw() for buffer in buffers)]
    sizes = b"".join(_SIZE.pack(size) for size in (len(pieces), *map(len, pieces)))
    found: list[Buffer] = []
    for piece in (sizes, *pieces):
        found += piece, _gap(len(piece))
    return found


def unframed(text: bytes) -> tuple[Any, ...]:
    """The message that `framed` made; its arrays lie in `text` and cannot be written to."""
    view, (count,) = memoryview(text), _SIZE.unpack_from(text)
    sizes = [_SIZE.unpack_from(text, _SIZE.size * place)[0] for place in range(1, count + 1)]
    start = _SIZE.size * (count + 1)
    pieces = []
    for size in sizes:
        start += len(_gap(start))
        pieces.append(view[start : start + size])
        start += size
    found: tuple[Any, ...] = pickle.loads(pieces[0], buffers=pieces[1:])
    return found


def _gap(size: int) -> bytes:
    return bytes(-size % ALIGNED)


def _packed(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        return value.dtype.char, np.ma.getdata(value).tobytes(), mask.tobytes()
    return list(value) if isinstance(value, np.ndarray | tuple) else value


def _unpacked(value: tuple[Any, ...]) -> Any:
    data = np.frombuffer(value[1], dtype=value[0])
    return data if len(value) == 2 else np.ma.masked_array(data, np.frombuffer(value[2], dtype=bool))

"""What is said between a decoding process and its recorder: pickles of plain things, arrays beside them."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# arrays begin at multiples of this, as numpy likes them
ALIGNED = 16
_GAPS = [bytes(-size % ALIGNED) for size in range(ALIGNED)]
_SIZE = struct.Struct("<Q")
# no pieces, bytes of the form, bytes of what is no array
_HEAD = struct.Struct("<QQQ8x")
# above this, a copy costs more than a piece of its own
_SMALL = 1 << 16

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
    """The row with its arrays [n] as tuples of kind and bytes, which pickle several times faster.

    Many bytes are not pickled: `unpacked_row` has them as they lie in the message, until which they must stay
    as they are.
    """
    return {
        name: (value.dtype.char, value.tobytes())
        if type(value) is np.ndarray and value.dtype.char != "O"
        else _bytes(value)
        if type(value) is bytes or type(value) is memoryview
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


class _Form(NamedTuple):
    """What messages of a form have in common: their tuple's kind, and its arrays'; None for other values."""

    kind: type
    arrays: list[np.dtype[Any] | None]


class Forms:
    """Frames tuples of arrays several times faster than `framed`, as most of them are alike.

    A message is the sizes of two pickles, what all messages of the form have in common, the shapes of arrays
    and the tuple's other values, and the arrays.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[Any, ...], bytes] = {}
        self._heard: dict[bytes, _Form] = {}

    def framed(self, known: tuple[Any, ...], values: tuple[Any, ...]) -> list[Buffer]:
        """A message: a tuple of plain things, and one some of whose values are arrays.

        `unframed` gives it as one tuple, the values, in a tuple of their kind, last.
        """
        key: list[Any] = [type(values)]
        pieces: list[Buffer] = []
        others, shapes = [], []
        for value in values:
            if type(value) is np.ndarray:
                key.append(value.dtype.char)
                shapes.append(value.shape)
                pieces += _bytes_of(value), _gap(value.nbytes)
            else:
                key.append(None)
                others.append(value)
        form = self._said.get(said := tuple(key))
        if form is None:
            form = self._said[said] = _form(values)
        rest = pickle.dumps((known, others, shapes), pickle.HIGHEST_PROTOCOL)
        return [_HEAD.pack(0, len(form), len(rest)), form, rest, _gap(len(rest)), *pieces]

    def unframed(self, text: Buffer) -> tuple[Any, ...]:
        """A message that `framed` made, here or elsewhere; its arrays lie in `text`."""
        _, size, last = _HEAD.unpack_from(text)
        end = _HEAD.size + size
        said = bytes(text[_HEAD.size : end])
        form = self._heard.get(said)
        if form is None:
            kind, types = pickle.loads(said)
            form = self._heard[said] = _Form(kind, [each and np.dtype(each) for each in types])
        known, *rest = pickle.loads(memoryview(text)[end : end + last])
        others, shapes = map(iter, rest)
        end += last + len(_gap(last))
        values: list[Any] = []
        for dtype in form.arrays:
            if dtype is None:
                values.append(next(others))
                continue
            values.append(np.ndarray(next(shapes), dtype, text, end))
            end += values[-1].nbytes + len(_gap(values[-1].nbytes))
        return *known, tuple.__new__(form.kind, values)


def _form(values: tuple[Any, ...]) -> bytes:
    told = [value.dtype.str if type(value) is np.ndarray else None for value in values]
    text = pickle.dumps((type(values), told), pickle.HIGHEST_PROTOCOL)
    return text + _gap(len(text))


def _bytes_of(array: NDArray[Any]) -> Buffer:
    if array.nbytes <= _SMALL:
        return array.tobytes()
    return np.ascontiguousarray(array).data.cast("B")


def is_form(text: Buffer) -> bool:
    """Whether a message is of `Forms`."""
    (count,) = _SIZE.unpack_from(text)
    return bool(count == 0)


def unframed(text: Buffer) -> tuple[Any, ...]:
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
    return _GAPS[size % ALIGNED]


def _bytes(value: Buffer) -> Any:
    return pickle.PickleBuffer(value) if len(value) > _SMALL else bytes(value)


def _packed(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        return value.dtype.char, np.ma.getdata(value).tobytes(), mask.tobytes()
    return list(value) if isinstance(value, np.ndarray | tuple) else value


def _unpacked(value: tuple[Any, ...]) -> Any:
    data = np.frombuffer(value[1], dtype=value[0])
    return data if len(value) == 2 else np.ma.masked_array(data, np.frombuffer(value[2], dtype=bool))

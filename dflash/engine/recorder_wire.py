"""What is said between a recording process and its recorder: pickles of plain things, arrays as bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

_SHAPED = "array of kind, shape and bytes"


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


def packed_given(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with the arrays in them, and in mappings among them, as marked tuples."""
    return tuple(_each(item, _shaped) for item in given)


def unpacked_given(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments that were packed; their arrays cannot be written to."""
    return tuple(_each(item, _unshaped) for item in given)


def dumps(*message: Any) -> bytes:
    """One message."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def loads(message: bytes) -> tuple[Any, ...]:
    """The message that `dumps` made, in the process that was started to read it."""
    found: tuple[Any, ...] = pickle.loads(message)
    return found


def _each(item: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(item, Mapping):
        return {name: change(value) for name, value in item.items()}
    return change(item)


def _shaped(value: Any) -> Any:
    if type(value) is np.ndarray and value.dtype.char != "O":
        return _SHAPED, value.dtype.char, value.shape, value.tobytes()
    return value


def _unshaped(value: Any) -> Any:
    if type(value) is tuple and value and value[0] == _SHAPED:
        return np.frombuffer(value[3], dtype=value[1]).reshape(value[2])
    return value


def _packed(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        return value.dtype.char, np.ma.getdata(value).tobytes(), mask.tobytes()
    return list(value) if isinstance(value, np.ndarray | tuple) else value


def _unpacked(value: tuple[Any, ...]) -> Any:
    data = np.frombuffer(value[1], dtype=value[0])
    return data if len(value) == 2 else np.ma.masked_array(data, np.frombuffer(value[2], dtype=bool))

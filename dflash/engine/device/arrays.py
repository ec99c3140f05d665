"""Records of device rounds in host memory: flat words, and the arrays that lie in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

STARTED, DRAFTED, VERIFIED, ENDED = range(4)


class Part(NamedTuple):
    """Where an array lies in a record.

    Attributes:
        kind: Its numpy type.
        shape: Of one record.
        start: In 32-bit words.
    """

    kind: str
    shape: tuple[int, ...]
    start: int


Layout = Mapping[str, Part]


class Records(Mapping[str, NDArray[Any]]):
    """Arrays `[records, ...]` by name, without a copy, each made when it is asked for.

    Attributes:
        flat: the words `[records, words]` int32 that hold them all.
    """

    def __init__(self, flat: NDArray[np.int32], layout: Layout) -> None:
        self.flat = flat
        self._layout = layout
        self._made: Arrays = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._made:
            self._made[name] = _array(self.flat, self._layout[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout)

    def __len__(self) -> int:
        return len(self._layout)


def _array(flat: NDArray[np.int32], part: Part) -> NDArray[Any]:
    size, kind = prod(part.shape), np.dtype(part.kind)
    end = part.start + -(-size * kind.itemsize // 4)
    return flat[:, part.start : end].view(kind)[:, :size].reshape(len(flat), *part.shape)

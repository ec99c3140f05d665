"""Records of device rounds in host memory: flat words, and the arrays that lie in them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, Self

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


class Records(Arrays):
    """Arrays `[records, ...]` by name, and the words `[records, words]` int32 that hold them all."""

    flat: NDArray[np.int32]

    @classmethod
    def of(cls, flat: NDArray[np.int32], layout: Layout) -> Self:
        """The arrays in `flat`, without a copy."""
        found = cls((name, _array(flat, part)) for name, part in layout.items())
        found.flat = flat
        return found


def _array(flat: NDArray[np.int32], part: Part) -> NDArray[Any]:
    size, kind = prod(part.shape), np.dtype(part.kind)
    end = part.start + -(-size * kind.itemsize // 4)
    return flat[:, part.start : end].view(kind)[:, :size].reshape(len(flat), *part.shape)

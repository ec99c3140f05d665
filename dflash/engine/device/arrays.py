"""Records of device rounds in host memory: flat words, and the arrays that lie in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

STARTED, DRAFTED, VERIFIED, ENDED = range(4)
# fields that are of a round, and of no lane
OF_ROUNDS = ("times", "packed")


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


class Packed(NamedTuple):
    """Features of all that records commit, encoded: by record and lane, anchors first.

    Attributes:
        values: `[rows, bytes]` uint8.
        scales: `[rows, scales]` float32; None for `bf16`.
        lent: Whether they are written over later.
    """

    values: NDArray[np.uint8]
    scales: NDArray[np.float32] | None
    lent: bool


class Records(Mapping[str, NDArray[Any]]):
    """Arrays `[records, ...]` by name, without a copy, each made when it is asked for.

    Attributes:
        flat: the words `[records, words]` int32 that hold them all.
        layout: where each lies.
        features: what is kept beside them of hidden states.
    """

    def __init__(self, flat: NDArray[np.int32], layout: Layout, features: Packed | None = None) -> None:
        self.flat = flat
        self.features = features
        self.layout = layout
        self._made: Arrays = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._made:
            self._made[name] = _array(self.flat, self.layout[name])
        return self._made[name]

    @property
    def committed(self) -> NDArray[np.int64]:
        """Rows `[records, lanes]` that each lane's round keeps: of its anchor and its accepted nodes."""
        found: NDArray[np.int64] = np.where(self["live"] > 0, self["count"] + 1, 0).astype(np.int64)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)


def _array(flat: NDArray[np.int32], part: Part) -> NDArray[Any]:
    size, kind = prod(part.shape), np.dtype(part.kind)
    end = part.start + -(-size * kind.itemsize // 4)
    return flat[:, part.start : end].view(kind)[:, :size].reshape(len(flat), *part.shape)

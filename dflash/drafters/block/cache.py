"""ContextCache: keys and values of the target's taps, computed once a committed token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash.drafters.block.attention import KeyValue


class ContextCache:
    """One preallocated store a layer for several lanes, each tensor [lanes, KV heads, capacity, head].

    Row t of a lane belongs to position t of its trunk.
    """

    def __init__(self, lanes: int, capacity: int) -> None:
        self.lanes = lanes
        self.capacity = capacity
        self.lengths = [0] * lanes
        self._stores: list[KeyValue] = []

    def reset(self, lane: int) -> None:
        """Forget a lane's context."""
        self.lengths[lane] = 0

    def append(self, lane: int, fresh: Sequence[KeyValue]) -> None:
        """Add rows behind a lane's context, one [1, KV heads, m, head] pair a layer."""
        start = self.lengths[lane]
        end = start + fresh[0].keys.shape[2]
        self._reserve(end, fresh)
        for store, rows in zip(self._stores, fresh, strict=True):
            store.keys[lane, :, start:end] = rows.keys[0]
            store.values[lane, :, start:end] = rows.values[0]
        self.lengths[lane] = end

    def read(self, lanes: Sequence[int], length: int) -> list[KeyValue]:
        """The first `length` rows of some lanes, [n, KV heads, length, head] a layer.

        Rows beyond a lane's own context are to be masked. One lane, or all lanes in order, are views.
        """
        index: slice | Tensor
        if len(lanes) == 1 or list(lanes) == list(range(self.lanes)):
            index = slice(lanes[0], lanes[0] + len(lanes))
        else:
            index = torch.tensor(lanes, device=self._stores[0].keys.device)
        return [
            KeyValue(store.keys[index, :, :length], store.values[index, :, :length]) for store in self._stores
        ]

    def extend(self, lane: int, count: int, like: Sequence[KeyValue]) -> list[KeyValue]:
        """Lengthen a lane's context by `count` rows, which the caller writes; returns all lanes' stores.

        `like` is one pair a layer, [1, KV heads, any number of rows, head].
        """
        end = self.lengths[lane] + count
        self._reserve(end, like)
        self.lengths[lane] = end
        return self._stores

    def whole(self, rows: int) -> list[KeyValue]:
        """All lanes' stores, one a layer, with room for `rows` rows; empty before the first `append`.

        Rows behind a lane's context are scratch: the next `append` writes over them.
        """
        self._reserve(rows, self._stores)
        return self._stores

    def become(self, source: ContextCache, length: int) -> None:
        """Have layers like another cache, with `length` rows in every lane, which the caller writes."""
        like = [KeyValue(store.keys[:1, :, :0], store.values[:1, :, :0]) for store in source._stores]
        self._reserve(length, like)
        self.lengths = [length] * self.lanes

    @property
    def nbytes(self) -> int:
        """Bytes held, all layers and lanes."""
        return sum(tensor.nbytes for store in self._stores for tensor in store)

    def _reserve(self, length: int, like: Sequence[KeyValue]) -> None:
        if self._stores and length <= self.capacity:
            return
        while self.capacity < length:
            self.capacity *= 2
        held, self._stores = self._stores, [KeyValue(*map(self._empty, rows)) for rows in like]
        for old, new in zip(held, self._stores, strict=False):
            for source, goal in zip(old, new, strict=True):
                goal[:, :, : source.shape[2]] = source

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.lanes, like.shape[1], self.capacity, like.shape[3])

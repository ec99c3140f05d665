"""TrunkCache: one preallocated K/V store a layer, shared by the trunk and the nodes that hang off it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache


class TrunkCache(Cache):
    """Keys and values of several lanes: rows [0, length) are the trunk, the rows after it are scratch for
    nodes.

    Shapes: one tensor of keys and one of values a layer, each [lanes, kv heads, capacity, head dim],
    allocated at the first update. `stage` says which rows the next forward writes; `update` returns every row
    below `extent`.
    """

    def __init__(self, lanes: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.lanes = lanes
        self.capacity = capacity
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self._lanes: Tensor = torch.empty(0, dtype=torch.long)
        self._rows: Tensor = torch.empty(0, dtype=torch.long)
        self._extent = 0

    def stage(self, lanes: Tensor, rows: Tensor, extent: int) -> None:
        """Announce the rows of the next forward: `lanes` [n], `rows` [n, width]; attention sees rows <
        `extent`.
        """
        self._lanes, self._rows, self._extent = lanes, rows, extent

    def update(  # type: ignore[override]
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Scatter [n, kv heads, width, head dim] to the staged rows; return what queries may attend to."""
        return (
            self._store(self.keys, key_states, layer_idx),
            self._store(self.values, value_states, layer_idx),
        )

    def _store(self, store: dict[int, Tensor], states: Tensor, layer: int) -> Tensor:
        if layer not in store:
            heads, dim = states.shape[1], states.shape[3]
            store[layer] = states.new_zeros(self.lanes, heads, self.capacity, dim)
        store[layer][self._lanes[:, None], :, self._rows] = states.transpose(1, 2)
        if len(self._lanes) == self.lanes:
            return store[layer][:, :, : self._extent]
        return store[layer][self._lanes, :, : self._extent]

    @torch.inference_mode()
    def commit(self, lane: int, source: Tensor, start: int) -> None:
        """Copy the rows `source` [m] of a lane to rows start, start + 1, …, through a temporary."""
        for store in (self.keys, self.values):
            for tensor in store.values():
                tensor[lane, :, start : start + len(source)] = tensor[lane][:, source]

    def fit(self, rows: int) -> None:
        """Have room for `rows` rows, by doubling."""
        capacity = self.capacity
        while capacity < rows:
            capacity *= 2
        self.reserve(capacity)

    @torch.inference_mode()
    def reserve(self, capacity: int) -> None:
        """Grow to at least `capacity` rows, keeping what is stored."""
        if capacity <= self.capacity:
            return
        for store in (self.keys, self.values):
            for layer, tensor in store.items():
                grown = tensor.new_zeros(self.lanes, tensor.shape[1], capacity, tensor.shape[3])
                grown[:, :, : self.capacity] = tensor
                store[layer] = grown
        self.capacity = capacity

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Lanes have lengths of their own; callers pass positions, so no single length is offered."""
        return 0

    def nbytes(self) -> int:
        """Bytes held, all layers and lanes."""
        stores = (*self.keys.values(), *self.values.values())
        return sum(tensor.nbytes for tensor in stores)

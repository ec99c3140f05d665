"""Lanes of the dense pass: each has a copy of one request's trunk, and scores the draft from one anchor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dflash.drafters.base import Drafter
from dflash.drafters.block.drafter import BlockFamily
from dflash.kernels.ancestors import MAX_NODES
from dflash.kernels.attention_checks import Impl
from dflash.kernels.round_rows import RowStores, spread_lane
from dflash.target.native import NativeTrunk, padded_width
from dflash.target.native_layers import KeyValue

# rows of a step: enough to keep a device busy, which few rows do not
STEP_ROWS = 512
# bytes of all copies of a trunk, the drafter's context with it
COPIES = 4 << 30


def lanes_for(width: int, lane_bytes: int) -> int:
    """How many lanes of so many rows a step the dense pass takes."""
    return max(1, min(STEP_ROWS // width, COPIES // lane_bytes))


class _Known:
    """Where the caches of a model's layers lie, told to the device when they have moved."""

    def __init__(self) -> None:
        self._place: list[tuple[int, torch.Size]] = []
        self._addresses: list[Tensor] = []

    def at(self, pairs: Sequence[KeyValue]) -> list[RowStores]:
        """Caches as they lie now, those of like heads together."""
        tensors = [tensor for pair in pairs for tensor in pair]
        alike: dict[tuple[int, int], list[Tensor]] = {}
        for tensor in tensors:
            alike.setdefault((tensor.shape[1], tensor.shape[3]), []).append(tensor)
        place = [(tensor.data_ptr(), tensor.shape) for tensor in tensors]
        if place != self._place:
            found = [RowStores.of(group) for group in alike.values()]
            # not the caches themselves, which may be outgrown
            self._place, self._addresses = place, [stores.addresses for stores in found]
            return found
        return [
            RowStores(tuple(group), at) for group, at in zip(alike.values(), self._addresses, strict=True)
        ]


def _spread(
    source: Sequence[RowStores], goal: Sequence[RowStores], lane: int, length: int, impl: Impl
) -> None:
    for old, new in zip(source, goal, strict=True):
        spread_lane(old, new, lane, length, impl=impl)


@dataclass(frozen=True, slots=True)
class DenseLanes:
    """Caches beside those of the live lanes, on the same weights.

    Anchors must be taken from the last to the first: what a lane writes for one lies behind what it reads
    for those before it.

    Attributes:
        drafter: one with lanes of its own where blocks are computed at the ends of contexts; else the
            engine's, which is asked for anchors in the middle of its lanes.
        known: live caches and these, then contexts of the live drafter and of this one.
    """

    trunk: NativeTrunk
    drafter: Drafter
    known: tuple[_Known, ...] = field(default_factory=lambda: tuple(_Known() for _ in range(4)))

    @classmethod
    def beside(cls, trunk: NativeTrunk, drafter: Drafter, nodes: int, capacity: int) -> DenseLanes:
        """Make lanes for drafts of `nodes` nodes from trunks of which `capacity` rows are held."""
        width = padded_width(nodes + 1, trunk.step.way.mode)
        count = lanes_for(width, capacity * _token_bytes(trunk, drafter))
        if isinstance(drafter, BlockFamily) and drafter.native is not None:
            drafter = drafter.beside(count, capacity)
        return cls(trunk.beside(count, capacity), drafter)

    @property
    def count(self) -> int:
        """How many there are."""
        return self.trunk.cache.lanes

    @property
    def own_drafter(self) -> BlockFamily | None:
        """The drafter, if it has a lane for each of these."""
        drafter = self.drafter
        return drafter if isinstance(drafter, BlockFamily) and drafter.native is not None else None

    def follow(self, trunk: NativeTrunk, drafter: Drafter, lane: int, length: int) -> None:
        """Copy the first `length` rows of a live lane into every lane."""
        impl = self.trunk.step.way.impl
        live, own, live_context, own_context = self.known
        _spread(live.at(trunk.stores()), own.at(self.trunk.stores()), lane, length, impl)
        if (mine := self.own_drafter) is not None and isinstance(drafter, BlockFamily):
            mine.follow(drafter, length)
            source, goal = (each.cache.whole(length) for each in (drafter, mine))
            _spread(live_context.at(source), own_context.at(goal), lane, length, impl)


def rows_needed(trunk: NativeTrunk, drafter: Drafter, tokens: int) -> int:
    """Rows that copies of a trunk of so many tokens need, and no fewer than the live caches have."""
    block = drafter.config.block_size if isinstance(drafter, BlockFamily) else 0
    needed = tokens + max(MAX_NODES, block)
    rows = trunk.cache.capacity
    while rows < needed:
        rows *= 2
    return rows


def backwards(positions: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    """Groups of up to `count` positions, the last ones first; each is in order."""
    for end in range(len(positions), 0, -count):
        yield positions[max(0, end - count) : end]


def _token_bytes(trunk: NativeTrunk, drafter: Drafter) -> int:
    sizes, width = trunk.step.sizes, trunk.step.embedding.element_size()
    found = 2 * len(trunk.step.layers) * sizes.kv_heads * sizes.head * width
    if isinstance(drafter, BlockFamily) and drafter.native is not None:
        own = drafter.native
        found += 2 * len(own.layers) * own.sizes.kv_heads * own.sizes.head * own.layers[0].norm.element_size()
    return found

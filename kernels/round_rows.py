"""Rows of all layers' caches at once: accepted ones move to the trunk's end, a trunk goes to other lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import DtypeRefused, LayoutRefused, ShapeRefused
from dflash.kernels.tensor_checks import check_dense


class RowStores(NamedTuple):
    """Caches of keys and values that are laid out alike."""

    stores: tuple[Tensor, ...]
    """Each `[lanes, KV heads, capacity, head]`."""
    addresses: Tensor
    """int64 `[stores]`, where each begins."""

    @classmethod
    def of(cls, stores: Sequence[Tensor]) -> RowStores:
        """Take caches, which must stay where they are.

        Raises:
            ShapeRefused, LayoutRefused: they are not alike, or not contiguous.
        """
        first = stores[0]
        for store in stores:
            if store.shape != first.shape or store.dtype != first.dtype:
                raise ShapeRefused("stores", f"{tuple(first.shape)} like the first", store.shape)
            if not store.is_contiguous():
                raise LayoutRefused("stores", "contiguous memory", store.stride(), store.shape)
        addresses = torch.tensor([store.data_ptr() for store in stores], dtype=torch.int64)
        return cls(tuple(stores), addresses.to(first.device))


def keep_rows(
    stores: RowStores,
    path: Tensor,
    lengths: Tensor,
    *,
    kept: int,
    impl: Impl = "triton",
    pdl: bool = True,
) -> None:
    """Copy row length + 1 + path[i] of each lane to row length + 1 + i, through a temporary.

    Args:
        stores: the caches.
        path: int32 `[lanes, nodes]`, accepted nodes in order, then -1.
        lengths: int32 `[lanes]`, rows before the anchor's.
        kept: most accepted nodes.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    first = stores.stores[0]
    lanes, nodes = len(first), path.shape[-1]
    check_dense("path", path, torch.int32, (lanes, nodes), first)
    check_dense("lengths", lengths, torch.int32, (lanes,), first)
    if not 1 <= kept <= nodes:
        raise ShapeRefused("kept", f"1 to {nodes} rows", kept)
    if impl == "reference":
        _reference(stores, path[:, :kept], lengths)
        return
    require_device("path", path)
    from dflash.kernels.round_rows_triton import launch_keep

    launch_keep(stores, path, lengths, kept, pdl and not interpreted())


def spread_lane(source: RowStores, goal: RowStores, lane: int, length: int, *, impl: Impl = "triton") -> None:
    """Make the first `length` rows of every lane of `goal` those of one lane of `source`.

    Args:
        source: caches of one device, in the order of those of `goal`.
        goal: as many caches of as many heads, in the same dtype; their lanes and capacities are their own.
        lane: of `source`.
        length: rows.
        impl: `triton` or `reference`.

    Raises:
        ShapeRefused, DtypeRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    here, there = source.stores[0], goal.stores[0]
    alike = here.shape[1], here.shape[3]
    if len(source.stores) != len(goal.stores) or (there.shape[1], there.shape[3]) != alike:
        raise ShapeRefused("goal", f"{len(source.stores)} caches of heads {alike}", there.shape)
    if here.dtype != there.dtype:
        raise DtypeRefused("goal", str(here.dtype), there.dtype, there.shape)
    if not 0 <= lane < len(here):
        raise ShapeRefused("lane", f"0 to {len(here) - 1}", lane)
    if not 0 <= length <= min(here.shape[2], there.shape[2]):
        raise ShapeRefused("length", f"0 to {min(here.shape[2], there.shape[2])} rows", length)
    if impl == "reference":
        for old, new in zip(source.stores, goal.stores, strict=True):
            new[:, :, :length] = old[lane, :, :length]
        return
    require_device("source", here)
    from dflash.kernels.round_rows_triton import launch_spread

    launch_spread(source, goal, lane, length)


def _reference(stores: RowStores, path: Tensor, lengths: Tensor) -> None:
    lane, place = (path >= 0).nonzero(as_tuple=True)
    goal = lengths[lane].long() + 1 + place
    source = lengths[lane].long() + 1 + path[lane, place]
    for store in stores.stores:
        store[lane, :, goal] = store[lane, :, source]

"""Keys and values of new rows, written to their places in a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, require_device
from dflash.kernels.errors import LayoutRefused, ShapeRefused
from dflash.kernels.tensor_checks import check_dense


def store_rows(
    k: Tensor, v: Tensor, places: Tensor, keys: Tensor, values: Tensor, *, impl: Impl = "triton"
) -> None:
    """Write the rows of `k` and `v` into a cache.

    Args:
        k: `[lanes, KV heads, width, head]`, of any strides, each head's numbers side by side; likewise `v`.
        places: int32 `[lanes x width, 2]`, lane and row of the cache; lane -1 is stored nowhere.
        keys: `[cache lanes, KV heads, capacity, head]`, in the dtype of k; likewise `values`.
        impl: `triton`, or the PyTorch `reference`.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    lanes, heads, width, head = k.shape
    if v.shape != k.shape:
        raise ShapeRefused("v", str(tuple(k.shape)), v.shape)
    check_dense("places", places, torch.int32, (lanes * width, 2), k)
    for name, store in (("keys", keys), ("values", values)):
        check_dense(name, store, k.dtype, (len(keys), heads, keys.shape[2], head), k)
    for name, rows in (("k", k), ("v", v)):
        if rows.stride(3) != 1:
            raise LayoutRefused(name, "the numbers of a head side by side", rows.stride(), rows.shape)
    if impl == "reference":
        reference_store_rows(k, v, places, keys, values)
        return
    require_device("k", k)
    from dflash.kernels.store_triton import launch_store

    launch_store(k, v, places, keys, values)


def reference_store_rows(k: Tensor, v: Tensor, places: Tensor, keys: Tensor, values: Tensor) -> None:
    """The specification of `store_rows`."""
    stored = places[:, 0] >= 0
    lane, row = places[stored].long().T
    for new, store in ((k, keys), (v, values)):
        store[lane, :, row] = new.transpose(1, 2).flatten(0, 1)[stored]

"""`store_rows`: new keys and values land in their places and nowhere else."""

from __future__ import annotations

import pytest
import torch

from dflash.kernels.errors import KernelArgumentError
from dflash.kernels.store_rows import store_rows


def given(head: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Rows of 3 lanes as a projection leaves them, places in another order, and a cache of 4 lanes."""
    g = torch.Generator().manual_seed(seed)
    lanes, width, heads, capacity = 3, 5, 2, 16
    k, v = (torch.randn(lanes, width, heads, head, generator=g).to(dtype).transpose(1, 2) for _ in "kv")
    every = torch.randperm(4 * capacity, generator=g)[: lanes * width]
    places = torch.stack([every // capacity, every % capacity], dim=1).int()
    places[torch.rand(lanes * width, generator=g) < 0.3, 0] = -1
    keys, values = (torch.full((4, heads, capacity, head), torch.nan, dtype=dtype) for _ in "kv")
    return k, v, places, keys, values


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("head", [64, 96, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_writes_rows_where_their_places_say(head: int, dtype: torch.dtype, seed: int) -> None:
    k, v, places, keys, values = given(head, dtype, seed)
    store_rows(k, v, places, keys, values)
    expected = torch.full_like(keys, torch.nan), torch.full_like(values, torch.nan)
    for index, (lane, row) in enumerate(places.tolist()):
        if lane >= 0:
            for store, new in zip(expected, (k, v), strict=True):
                store[lane, :, row] = new[index // 5, :, index % 5]
    for found, store in zip((keys, values), expected, strict=True):
        torch.testing.assert_close(found, store, atol=0, rtol=0, equal_nan=True)
    again = torch.full_like(keys, torch.nan), torch.full_like(values, torch.nan)
    store_rows(k, v, places, *again, impl="reference")
    torch.testing.assert_close(again, (keys, values), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("wrong", ["v", "places", "keys", "values", "layout", "impl"])
def test_what_does_not_fit_is_refused(wrong: str) -> None:
    k, v, places, keys, values = given(64, torch.float32)
    impl = "reference"
    if wrong == "v":
        v = v[:, :, :4]
    elif wrong == "places":
        places = places.long()
    elif wrong == "keys":
        keys = keys[..., :32].contiguous()
    elif wrong == "values":
        values = values.half()
    elif wrong == "layout":
        k = k.transpose(2, 3).contiguous().transpose(2, 3)
    else:
        impl = "fast"
    with pytest.raises(KernelArgumentError):
        store_rows(k, v, places, keys, values, impl=impl)

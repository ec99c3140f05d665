"""Dense attention in PyTorch: the specification of the attention kernels."""

from __future__ import annotations

import torch
from torch import Tensor


def cache_rows(cache: Tensor, pages: Tensor | None) -> Tensor:
    """Return the rows of a cache in trunk order, `[lanes, KV heads, capacity, head]`."""
    if pages is None:
        return cache
    gathered = cache[pages.long()]
    return gathered.transpose(1, 2).flatten(2, 3)


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    words: Tensor | None,
    tail: int,
    pages: Tensor | None,
    scale: float,
) -> Tensor:
    """Attend densely in float32 (float64 for float64 q); rows that no slot may see are never multiplied."""
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys, values = cache_rows(k, pages).to(work), cache_rows(v, pages).to(work)
    group = q.shape[2] // keys.shape[1]
    bit = torch.arange(keys.shape[2], device=q.device) - lengths[:, None]
    in_tail = (bit >= 0) & (bit < tail)
    seen = in_tail[:, None].expand(-1, q.shape[1], -1)
    if words is not None:
        seen = seen & ((words[:, :, None] >> bit.clamp(0, 63)[:, None]) & 1).bool()
    seen = seen | (bit < 0)[:, None]
    used = seen.any(1)[:, None, :, None]
    keys = torch.where(used, keys, 0).repeat_interleave(group, 1)
    values = torch.where(used, values, 0).repeat_interleave(group, 1)
    scores = torch.einsum("bqhd,bhkd->bhqk", q.to(work), keys) * scale
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhqk,bhkd->bqhd", weights, values).to(q.dtype)

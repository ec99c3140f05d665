"""K1 and K2: attention of tree slots over a trunk and a tree tail in one K/V cache, masked by 64-bit words.

Verify: queries are the anchor and its nodes. Draft step: one query a branch, all branches' rows in the tail.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_attention, check_output
from dflash.kernels.attention_plan import Mode, Tile
from dflash.kernels.attention_scratch import Scratch, fitting_scratch, make_plan, make_scratch


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


def tree_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    words: Tensor,
    tail: int,
    *,
    pages: Tensor | None = None,
    scale: float | None = None,
    mode: Mode = "fast",
    impl: Impl = "triton",
    out: Tensor | None = None,
    scratch: Scratch | None = None,
    tile: Tile | None = None,
    pdl: bool = True,
) -> Tensor:
    """Attend over rows [0, length) of the cache, and over row length + j where bit j of the word is set.

    Safe in a CUDA graph: grid and scratch depend on sizes only, lengths and words are read on the device.

    Args:
        q: `[lanes, queries, heads, head]`, float16 or bfloat16; head 64, 96 or 128; 1-8 heads a KV head.
        k: `[lanes, KV heads, capacity, head]`, or `[pages, KV heads, page, head]` with `pages`; likewise `v`.
        lengths: int32 `[lanes]`, trunk rows of each lane (the anchor's included once its K/V is written).
        words: int64 `[lanes, queries]` from `ancestor_words`; 0 sees the trunk only.
        tail: rows after the trunk that words speak of, at most 64.
        pages: int32 `[lanes, pages a lane]`, pages of 16, 32, 64, … rows.
        scale: of the scores; 1/sqrt(head) if None.
        mode: `fast`, or `replay-exact`: the same bits whatever the other lanes are.
        impl: `triton`, or the PyTorch `reference`; never a silent fallback.
        out: where to write, shaped as q.
        scratch: from `attention_scratch`, to share between calls on one stream; allocated if None.
        tile: another configuration than the table's.
        pdl: start the prologue under the preceding kernel's tail.

    Returns:
        `[lanes, queries, heads, head]` in the dtype of q; zeros where a slot sees nothing.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    sizes = check_attention(q, k, v, lengths, words, tail, pages, impl)
    check_output(out, q)
    factor = sizes.head**-0.5 if scale is None else scale
    if impl == "reference":
        result = reference_attention(q, k, v, lengths, words, tail, pages, factor)
        return result if out is None else out.copy_(result)
    from dflash.kernels.attention_launch import launch

    out = torch.empty_like(q) if out is None else out
    chosen = make_plan(sizes, mode, tile)
    held = fitting_scratch(scratch, q, sizes, chosen)
    launch(q, k, v, lengths, words, pages, out, sizes, factor, chosen, held, pdl)
    return out


def attention_scratch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    words: Tensor | None,
    tail: int,
    *,
    pages: Tensor | None = None,
    mode: Mode = "fast",
    tile: Tile | None = None,
) -> Scratch:
    """Allocate scratch memory once for the calls of one shape; the arguments are those of the call."""
    sizes = check_attention(q, k, v, lengths, words, tail, pages, "triton")
    return make_scratch(q, sizes, make_plan(sizes, mode, tile))

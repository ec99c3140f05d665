"""K1 and K2: attention of tree slots over a trunk and a tree tail in one K/V cache, masked by 64-bit words.

Verify: queries are the anchor and its nodes. Draft step: one query a branch, all branches' rows in the tail.
"""

from __future__ import annotations

from torch import Tensor

from dflash.kernels.attention_call import attend
from dflash.kernels.attention_checks import Impl, check_attention
from dflash.kernels.attention_plan import Mode, Tile
from dflash.kernels.attention_scratch import Scratch, make_plan, make_scratch


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
        scale: of the scores, positive; 1/sqrt(head) if None.
        mode: `fast`, or `replay-exact`: the same bits whatever the other lanes are.
        impl: `triton`, or the PyTorch `reference`; never a silent fallback.
        out: where to write, shaped as q.
        scratch: from `attention_scratch`, to share between calls on one stream; allocated if None.
        tile: another configuration than the table's.
        pdl: start the prologue under the preceding kernel's tail.

    Returns:
        `[lanes, queries, heads, head]` in the dtype of q; zeros where a slot sees nothing.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
    """
    return attend(
        q, k, v, lengths, words, tail, pages=pages, scale=scale, mode=mode, impl=impl, out=out,
        scratch=scratch, tile=tile, pdl=pdl,
    )  # fmt: skip


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

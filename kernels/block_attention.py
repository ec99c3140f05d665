"""K3: attention of a drafted block over context K/V and the whole block, in both directions."""

from __future__ import annotations

from torch import Tensor

from dflash.kernels.attention_call import attend
from dflash.kernels.attention_checks import Impl
from dflash.kernels.attention_plan import Mode, Tile
from dflash.kernels.attention_scratch import Scratch


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
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
    """Attend each of the block's n rows over rows [0, length + n) of the cache.

    Args:
        q: `[lanes, n, heads, head]`, the block's mask tokens, n ≤ 64.
        k: context and block rows, `[lanes, KV heads, capacity, head]` or paged as in `tree_attention`;
            rows length..length + n - 1 hold the block. Likewise `v`.
        lengths: int32 `[lanes]`, context rows of each lane.
        pages: as in `tree_attention`, and so are `scale`, `mode`, `impl`, `out`, `scratch`, `tile`, `pdl`.

    Returns:
        `[lanes, n, heads, head]` in the dtype of q.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
    """
    tail = q.shape[1] if q.dim() == 4 else 0
    return attend(
        q, k, v, lengths, None, tail, pages=pages, scale=scale, mode=mode, impl=impl, out=out,
        scratch=scratch, tile=tile, pdl=pdl,
    )  # fmt: skip

"""K3: attention of a drafted block over context K/V and the whole block, in both directions."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_attention, check_output
from dflash.kernels.attention_plan import Mode, Tile
from dflash.kernels.attention_scratch import Scratch, fitting_scratch, make_plan
from dflash.kernels.tree_attention import reference_attention


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
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    tail = q.shape[1] if q.dim() == 4 else 0
    sizes = check_attention(q, k, v, lengths, None, tail, pages, impl)
    check_output(out, q)
    factor = sizes.head**-0.5 if scale is None else scale
    if impl == "reference":
        result = reference_attention(q, k, v, lengths, None, tail, pages, factor)
        return result if out is None else out.copy_(result)
    from dflash.kernels.attention_launch import launch

    out = torch.empty_like(q) if out is None else out
    chosen = make_plan(sizes, mode, tile)
    held = fitting_scratch(scratch, q, sizes, chosen)
    launch(q, k, v, lengths, None, pages, out, sizes, factor, chosen, held, pdl)
    return out

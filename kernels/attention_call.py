"""One attention call, of a tree or of a block: checked, then computed by the implementation it names."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_attention, check_output
from dflash.kernels.attention_plan import Mode, Tile
from dflash.kernels.attention_reference import reference_attention
from dflash.kernels.attention_scratch import Scratch, fitting_scratch, make_plan
from dflash.kernels.errors import ScaleRefused


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    words: Tensor | None,
    tail: int,
    *,
    pages: Tensor | None,
    scale: float | None,
    mode: Mode,
    impl: Impl,
    out: Tensor | None,
    scratch: Scratch | None,
    tile: Tile | None,
    pdl: bool,
) -> Tensor:
    """Attend over the trunk and the `tail` rows after it; without words, every query sees all of those.

    The arguments are those of `tree_attention`.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
    """
    sizes = check_attention(q, k, v, lengths, words, tail, pages, impl)
    check_output(out, q)
    factor = sizes.head**-0.5 if scale is None else scale
    if not factor > 0:
        raise ScaleRefused(factor)
    if impl == "reference":
        result = reference_attention(q, k, v, lengths, words, tail, pages, factor)
        return result if out is None else out.copy_(result)
    from dflash.kernels.attention_launch import launch

    out = torch.empty_like(q) if out is None else out
    chosen = make_plan(sizes, mode, tile)
    held = fitting_scratch(scratch, q, sizes, chosen)
    launch(q, k, v, lengths, words, pages, out, sizes, factor, chosen, held, pdl)
    return out

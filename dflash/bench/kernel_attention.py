"""Our attention kernels on rotating buffers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dflash.bench.kernel_inputs import Inputs
from dflash.bench.kernel_shapes import Shape
from dflash.kernels.attention_plan import Mode
from dflash.kernels.block_attention import block_attention
from dflash.kernels.tree_attention import attention_scratch, tree_attention


def our_calls(shape: Shape, sets: list[Inputs], mode: Mode) -> list[Callable[[], torch.Tensor]]:
    """Our kernel on every buffer set."""
    first = sets[0]
    scratch = attention_scratch(*first[:5], shape.tail, mode=mode)
    out = torch.full_like(first.q, torch.nan)
    if first.words is None:
        return [lambda s=s: block_attention(*s[:4], mode=mode, scratch=scratch, out=out) for s in sets]
    return [lambda s=s: tree_attention(*s[:5], shape.tail, mode=mode, scratch=scratch, out=out) for s in sets]

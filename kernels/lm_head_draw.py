"""What both kernels of `lm_head_topk` read of a draw."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finite(x):
    """x where it may be subtracted, else 0."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def load_draw(Positions, Purposes, Paths, Keys, rows, PURPOSES: tl.constexpr, PATHS: tl.constexpr):
    """Philox counter words and key of each row."""
    position = tl.load(Positions + rows).to(tl.uint32, bitcast=True)
    purpose = (rows * 0).to(tl.uint32)
    path = purpose
    if PURPOSES:
        purpose = tl.load(Purposes + rows).to(tl.uint32, bitcast=True)
    if PATHS:
        path = tl.load(Paths + rows).to(tl.uint32, bitcast=True)
    k0 = tl.load(Keys + 2 * rows).to(tl.uint32, bitcast=True)
    k1 = tl.load(Keys + 2 * rows + 1).to(tl.uint32, bitcast=True)
    return position, purpose, path, k0, k1

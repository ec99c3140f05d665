"""The Triton kernel of `embed_rows`: a program takes one row from the table."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["scale"])
def embed_kernel(
    Tokens, Table, Gain, Out, Gained, Sums, stride_out, stride_gained, width, scale,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Look a row up, and leave what the norm that reads it needs; grid (rows)."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    keep = column < width
    gain = tl.load(Gain + column, mask=keep, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.load(Tokens + row).to(tl.int64)
    value = tl.load(Table + token * width + column, mask=keep, other=0.0).to(tl.float32) * scale
    stored = value.to(Out.dtype.element_ty)
    wide = stored.to(tl.float32)
    at = row.to(tl.int64)
    tl.store(Out + at * stride_out + column, stored, mask=keep)
    tl.store(Gained + at * stride_gained + column, (wide * gain).to(Out.dtype.element_ty), mask=keep)
    tl.store(Sums + row, tl.sum(wide * wide, 0))

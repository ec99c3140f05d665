"""The kernel behind `project_rows`: one program a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256
# turns whose loads are under way together
_TURNS = 8


@triton.jit(do_not_specialize=["scale"])
def project_row(
    Taps, Rows, Signs, Out, width, scale,
    BLOCK: tl.constexpr, TURNS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sum one row under every column of signs; grid (rows)."""
    place, column = tl.program_id(0), tl.arange(0, COLUMNS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    base = Taps + tl.load(Rows + place) * width
    total = tl.zeros([BLOCK, COLUMNS], tl.float32)
    for start in tl.range(0, width, BLOCK * TURNS):
        for turn in tl.static_range(TURNS):
            at = start + turn * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(base + at, mask=at < width, other=0.0).to(tl.float32)
            word = tl.load(Signs + at, mask=at < width, other=0)
            positive = ((word[:, None] >> column[None, :]) & 1) != 0
            total += tl.where(positive, value[:, None], -value[:, None])
    tl.store(Out + place * COLUMNS + column, tl.sum(total, 0) * scale)


def launch_prints(taps: Tensor, rows: Tensor, signs: Tensor, scale: float, out: Tensor, pdl: bool) -> None:
    """Run the kernel."""
    project_row[(len(rows),)](
        taps, rows, signs, out, taps.shape[1], scale,
        BLOCK=_BLOCK, TURNS=_TURNS, COLUMNS=out.shape[1], PDL=pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip

"""The kernel behind `keep_taps`: one program a lane and tile of its row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.round_inputs import RoundStart
from dflash.kernels.round_taps import TapRing

_BLOCK = 1024


@triton.jit(do_not_specialize=["places"])
def keep_row(
    Taps, Live, Lengths, Ring, places, width, lane_apart, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Copy a tile of an anchor's row; grid (lanes, tiles)."""
    lane = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(Lengths + lane) % places
    moves = (at < width) & (tl.load(Live + lane) > 0)
    row = tl.load(Taps + lane * lane_apart + at, mask=moves, other=0.0)
    tl.store(Ring + (lane * places + place) * width + at, row, mask=moves)


def launch_keep(taps: Tensor, start: RoundStart, ring: TapRing, pdl: bool) -> None:
    """Run the kernel."""
    lanes, places, width = ring.taps.shape
    keep_row[(lanes, -(-width // _BLOCK))](
        taps, start.live, start.lengths, ring.taps, places, width, len(taps) // lanes * width,
        BLOCK=_BLOCK, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip

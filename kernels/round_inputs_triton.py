"""The kernel behind `round_inputs`: one program a lane."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.round_inputs import RoundStart, RowInputs
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import power
from dflash.kernels.round_stamp_triton import write_clock


@triton.jit
def _place(
    Tokens, Positions, Places, Lengths, lane, live, length, token, rest, depth, row, used, width, first_token
):  # fmt: skip
    """Fill a lane's rows; tokens from `first_token` on are left alone."""
    at, real = lane * width + row, row < width
    stores = live & (row < used)
    tl.store(Tokens + at, tl.where(row == 0, token, rest), mask=real & (row < first_token))
    tl.store(Positions + at, tl.where(row < used, length + depth, 0), mask=real)
    tl.store(Places + 2 * at, tl.where(stores, lane, -1), mask=real)
    tl.store(Places + 2 * at + 1, tl.where(stores, length + row, 0), mask=real)
    tl.store(Lengths + lane, tl.where(live, length, 0))


@triton.jit(do_not_specialize=["slots", "width", "block", "mask_token"])
def place_lane(
    Live, Lengths, Anchors, Depths, StartLive, StartLengths, StartAnchors,
    Tokens, Positions, Places, Seen, BlockTokens, BlockPositions, BlockPlaces, BlockSeen,
    Time, slots, width, block, mask_token,
    ROWS: tl.constexpr, DRAFTS: tl.constexpr, TIMED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Place one lane's rows; grid (lanes)."""
    lane = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if TIMED:
        write_clock(Time, lane == 0)
    state, length, token = tl.load(Live + lane), tl.load(Lengths + lane), tl.load(Anchors + lane)
    tl.store(StartLive + lane, state)
    tl.store(StartLengths + lane, length)
    tl.store(StartAnchors + lane, token)
    live, row = state > 0, tl.arange(0, ROWS)
    depth = tl.load(Depths + row, mask=row < slots, other=0)
    _place(Tokens, Positions, Places, Seen, lane, live, length, token, 0, depth, row, slots, width, 1)
    if DRAFTS:
        rest = tl.where(mask_token < 0, token, mask_token)
        _place(
            BlockTokens, BlockPositions, BlockPlaces, BlockSeen, lane, live, length, token, rest, row, row,
            block, block, block,
        )  # fmt: skip


def launch_inputs(
    lanes: RoundLanes, tree: RoundTree, verify: RowInputs, block: RowInputs | None, mask_token: int,
    start: RoundStart, time: Tensor | None, pdl: bool,
) -> None:  # fmt: skip
    """Run the kernel; a block that is not there is stood in for by rows that are not written."""
    width = verify.tokens.shape[1]
    own = 0 if block is None else block.tokens.shape[1]
    place_lane[(len(lanes.live),)](
        lanes.live, lanes.lengths, lanes.anchors, tree.depths, *start, *verify, *(block or verify),
        lanes.live if time is None else time, tree.nodes + 1, width, own, mask_token,
        ROWS=power(max(width, own)), DRAFTS=block is not None, TIMED=time is not None, PDL=pdl, num_warps=1,
        launch_pdl=pdl,
    )  # fmt: skip

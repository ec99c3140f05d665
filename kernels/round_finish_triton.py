"""The kernel behind `round_finish`: one program a lane."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.accept_tree import Accepted
from dflash.kernels.round_finish import RoundEnd
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import power
from dflash.kernels.round_stamp_triton import write_clock


@triton.jit(do_not_specialize=["nodes", "kept", "ends", "width"])
def finish_lane(
    Tokens, Count, Path, Bonus, Eos, Live, Lengths, Anchors, Left,
    OutCount, OutPath, OutBonus, Emitted, Reason, Rows, Positions, Places,
    Time, nodes, kept, ends, width,
    NODES: tl.constexpr, KEPT: tl.constexpr, TIMED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """End one lane's round; grid (lanes)."""
    lane = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if TIMED:
        write_clock(Time, lane == 0)
    count, bonus = tl.load(Count + lane), tl.load(Bonus + lane)
    place, node = tl.arange(0, KEPT), tl.arange(0, NODES)
    left, length, live = tl.load(Left + lane), tl.load(Lengths + lane), tl.load(Live + lane) > 0
    stored = tl.load(Path + lane * nodes + node, mask=node < nodes, other=-1)
    # rows of a lane that rests may be another request's already
    tl.store(OutPath + lane * nodes + node, tl.where(live, stored, -1), mask=node < nodes)
    inside = place < count
    path = tl.load(Path + lane * nodes + place, mask=inside, other=0)
    token = tl.load(Tokens + lane * nodes + path, mask=inside, other=0)
    token = tl.where(inside, token, bonus)
    ended = place > KEPT
    for one in tl.range(0, ends):
        ended = ended | (token == tl.load(Eos + one))
    first_end = tl.min(tl.where(ended & (place <= count), place, KEPT), 0)
    emitted = tl.minimum(tl.minimum(count, first_end) + 1, left)
    reason = tl.where(first_end < emitted, 1, tl.where(emitted == left, 2, 0))
    tl.store(OutCount + lane, count)
    tl.store(OutBonus + lane, bonus)
    tl.store(Emitted + lane, emitted)
    tl.store(Reason + lane, reason)
    stays = live & (place <= count)
    before = tl.load(Path + lane * nodes + place - 1, mask=(place > 0) & (place <= count), other=-1)
    at, real = lane * kept + place, place < kept
    tl.store(Rows + at, tl.where(stays, lane * width + before + 1, 0).to(tl.int64), mask=real)
    tl.store(Positions + at, tl.where(stays, length + place, 0), mask=real)
    tl.store(Places + 2 * at, tl.where(stays, lane, -1), mask=real)
    tl.store(Places + 2 * at + 1, tl.where(stays, length + place, 0), mask=real)
    if live:
        tl.store(Lengths + lane, length + count + 1)
        tl.store(Left + lane, left - emitted)
        tl.store(Anchors + lane, bonus)
        tl.store(Live + lane, tl.where(reason == 0, 1, 0))


def launch_finish(
    tokens: Tensor, accepted: Accepted, eos: Tensor, tree: RoundTree, lanes: RoundLanes, width: int,
    out: RoundEnd, time: Tensor | None, pdl: bool,
) -> None:  # fmt: skip
    """Run the kernel."""
    kept = tree.length + 1
    finish_lane[(len(lanes.live),)](
        tokens, accepted.count, accepted.path, accepted.bonus, eos, lanes.live, lanes.lengths, lanes.anchors,
        lanes.left, *out, lanes.live if time is None else time, tree.nodes, kept, eos.numel(), width,
        NODES=power(tree.nodes), KEPT=power(kept), TIMED=time is not None, PDL=pdl, num_warps=1,
        launch_pdl=pdl,
    )  # fmt: skip

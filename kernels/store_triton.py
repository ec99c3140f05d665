"""The kernel behind `store_rows`: one program a row and KV head."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def store_row(
    K, V, Places, Keys, Values, k_lane, k_head, k_row, v_lane, v_head, v_row, width, capacity,
    HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy one head's key and value of a row; grid (lanes x width, KV heads)."""
    index, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane = tl.load(Places + 2 * index).to(tl.int64)
    place = tl.load(Places + 2 * index + 1)
    at = tl.arange(0, BLOCK)
    moves = (at < HEAD) & (lane >= 0)
    batch, row = (index // width).to(tl.int64), (index % width).to(tl.int64)
    goal = ((lane * HEADS + head) * capacity + place) * HEAD + at
    key = tl.load(K + batch * k_lane + head * k_head + row * k_row + at, mask=moves, other=0.0)
    value = tl.load(V + batch * v_lane + head * v_head + row * v_row + at, mask=moves, other=0.0)
    tl.store(Keys + goal, key, mask=moves)
    tl.store(Values + goal, value, mask=moves)


def launch_store(k: Tensor, v: Tensor, places: Tensor, keys: Tensor, values: Tensor) -> None:
    """Run the kernel."""
    lanes, heads, width, head = k.shape
    if not lanes * width:
        return
    store_row[(lanes * width, heads)](
        k, v, places, keys, values, *k.stride()[:3], *v.stride()[:3], width, keys.shape[2],
        HEADS=heads, HEAD=head, BLOCK=triton.next_power_of_2(head), num_warps=1,
    )  # fmt: skip

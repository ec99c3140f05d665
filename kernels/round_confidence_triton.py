"""The kernel behind `confidences`: one program a node."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.round_confidence import ConfidenceWeights
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import power


@triton.jit(do_not_specialize=["nodes", "branches", "rank"])
def confidence_node(
    Hidden, Tokens, Anchors, Weight, Bias, Table, Out,
    lane_apart, slot_apart, width, nodes, branches, rank,
    WIDTH: tl.constexpr, RANK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One node's confidence; grid (lanes, nodes)."""
    lane, node = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.arange(0, WIDTH)
    row = Hidden + lane.to(tl.int64) * lane_apart + (node // branches) * slot_apart
    state = tl.load(row + column, mask=column < width, other=0.0).to(tl.float32)
    weight = tl.load(Weight + column, mask=column < width, other=0.0).to(tl.float32)
    logit = tl.sum(state * weight, 0) + tl.load(Bias).to(tl.float32)
    if RANK > 0:
        first = node < branches
        drafted = tl.load(Tokens + lane * nodes + node - branches, mask=node >= branches, other=0)
        token = tl.maximum(tl.where(first, tl.load(Anchors + lane), drafted), 0).to(tl.int64)
        r = tl.arange(0, RANK)
        known = tl.load(Table + token * rank + r, mask=r < rank, other=0.0).to(tl.float32)
        logit += tl.sum(known * tl.load(Weight + width + r, mask=r < rank, other=0.0).to(tl.float32), 0)
    tl.store(Out + lane * nodes + node, 1.0 / (1.0 + tl.exp(-logit)))


def launch_confidences(
    hidden: Tensor, tokens: Tensor, weights: ConfidenceWeights, tree: RoundTree, lanes: RoundLanes,
    out: Tensor, pdl: bool,
) -> None:  # fmt: skip
    """Run the kernel; a table that is not there is stood in for by one that is not read."""
    rank = 0 if weights.table is None else weights.table.shape[1]
    confidence_node[(len(hidden), tree.nodes)](
        hidden, tokens, lanes.anchors, weights.weight, weights.bias,
        hidden if weights.table is None else weights.table, out,
        hidden.stride(0), hidden.stride(1), hidden.shape[2], tree.nodes, tree.branches, rank,
        WIDTH=power(hidden.shape[2]), RANK=power(rank) if rank else 0, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip

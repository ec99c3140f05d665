"""The kernel behind `cut_nodes`: one program a lane."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash.kernels.round_cut import RoundLimits
from dflash.kernels.round_lanes import RoundTree
from dflash.kernels.round_slots import power


@triton.jit(do_not_specialize=["nodes", "branches"])
def cut_lane(
    Tokens, Length, Branches, nodes, branches, NODES: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Take away the tokens outside of one lane's limits; grid (lanes)."""
    lane, node = tl.program_id(0), tl.arange(0, NODES)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    deep = node // branches >= tl.load(Length + lane)
    wide = node % branches >= tl.load(Branches + lane)
    gone = tl.full([NODES], -1, tl.int32)
    tl.store(Tokens + lane * nodes + node, gone, mask=(node < nodes) & (deep | wide))


def launch_cut(tokens: Tensor, limits: RoundLimits, tree: RoundTree, pdl: bool) -> None:
    """Run the kernel."""
    cut_lane[(len(tokens),)](
        tokens, *limits, tree.nodes, tree.branches, NODES=power(tree.nodes), PDL=pdl, num_warps=1,
        launch_pdl=pdl,
    )  # fmt: skip

"""What each node of a drafted tree is expected to be accepted with, in one launch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import LayoutRefused, ShapeRefused
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.tensor_checks import check_dense


class ConfidenceWeights(NamedTuple):
    """A linear layer with one output over a slot's hidden state and, if it reads it, the token before."""

    weight: Tensor
    """`[hidden + rank]`; rank 0 without a table."""
    bias: Tensor
    """`[1]`."""
    table: Tensor | None
    """`[tokens, rank]`, contiguous."""


def confidences(
    hidden: Tensor,
    tokens: Tensor,
    weights: ConfidenceWeights,
    tree: RoundTree,
    lanes: RoundLanes,
    out: Tensor,
    *,
    impl: Impl = "triton",
    pdl: bool = True,
) -> None:
    """Compute the sigmoid of the layer at every node, in float32.

    Args:
        hidden: `[lanes, length, hidden]`, rows in one piece.
        tokens: int32 `[lanes, nodes]`, drafted; -1 for none.
        weights: of the layer.
        tree: of every lane.
        lanes: anchors are read.
        out: float32 `[lanes, nodes]`.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    count, width = len(lanes.anchors), hidden.shape[-1]
    if hidden.shape != (count, tree.length, width):
        raise ShapeRefused("hidden", f"[{count}, {tree.length}, hidden]", hidden.shape)
    if hidden.stride(2) != 1:
        raise LayoutRefused("hidden", "a last dimension of stride 1", hidden.stride(), hidden.shape)
    rank = 0 if weights.table is None else weights.table.shape[1]
    check_dense("tokens", tokens, torch.int32, (count, tree.nodes), hidden)
    check_dense("weights.weight", weights.weight, hidden.dtype, (width + rank,), hidden)
    check_dense("weights.bias", weights.bias, hidden.dtype, (1,), hidden)
    check_dense("out", out, torch.float32, (count, tree.nodes), hidden)
    if impl == "reference":
        _reference(hidden, tokens, weights, tree, lanes, out)
        return
    require_device("hidden", hidden)
    from dflash.kernels.round_confidence_triton import launch_confidences

    launch_confidences(hidden, tokens, weights, tree, lanes, out, pdl and not interpreted())


def _reference(
    hidden: Tensor,
    tokens: Tensor,
    weights: ConfidenceWeights,
    tree: RoundTree,
    lanes: RoundLanes,
    out: Tensor,
) -> None:
    width, branches = hidden.shape[2], tree.branches
    logit = hidden.float() @ weights.weight[:width].float() + weights.bias.float()
    logit = logit.repeat_interleave(branches, 1)
    if weights.table is not None:
        first = lanes.anchors[:, None].expand(-1, branches)
        before = torch.cat([first, tokens[:, : tree.nodes - branches]], 1).clamp_min(0)
        logit = logit + weights.table[before.long()].float() @ weights.weight[width:].float()
    out.copy_(logit.sigmoid())

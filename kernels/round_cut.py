"""Drafted trees cut to what each lane asked for: nodes outside of its shape are no longer there."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.round_lanes import RoundTree
from dflash.kernels.tensor_checks import check_dense


class RoundLimits(NamedTuple):
    """The shape of each lane's next tree, within the tree that all lanes draft."""

    length: Tensor
    """int32 `[lanes]`."""
    branches: Tensor
    """int32 `[lanes]`."""

    @classmethod
    def make(cls, lanes: int, device: torch.device | str) -> RoundLimits:
        """Allocate limits that leave nothing."""
        return cls(*torch.zeros((2, lanes), dtype=torch.int32, device=device))


def cut_nodes(
    tokens: Tensor, limits: RoundLimits, tree: RoundTree, *, impl: Impl = "triton", pdl: bool = True
) -> None:
    """Take the tokens of nodes outside of their lane's limits away.

    Args:
        tokens: int32 `[lanes, nodes]`; becomes -1 where a node is too deep or of a branch too many.
        limits: of each lane.
        tree: of every lane.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    count = len(tokens)
    check_dense("tokens", tokens, torch.int32, (count, tree.nodes), tokens)
    for name, limit in zip(limits._fields, limits, strict=True):
        check_dense(f"limits.{name}", limit, torch.int32, (count,), tokens)
    if impl == "reference":
        branch = torch.arange(tree.nodes, device=tokens.device) % tree.branches
        outside = (tree.depths[1:] > limits.length[:, None]) | (branch >= limits.branches[:, None])
        tokens.masked_fill_(outside, -1)
        return
    require_device("tokens", tokens)
    from dflash.kernels.round_cut_triton import launch_cut

    launch_cut(tokens, limits, tree, pdl and not interpreted())

"""The first launch of a device round: where every lane's anchor stands becomes what both models read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import ShapeRefused
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_stamp import stamp
from dflash.kernels.tensor_checks import check_dense


class RowInputs(NamedTuple):
    """What a forward of `width` rows a lane reads; words are fixed, and so are tokens after the first."""

    tokens: Tensor
    """int32 `[lanes, width]`."""
    positions: Tensor
    """int32 `[lanes, width]`."""
    places: Tensor
    """int32 `[lanes, width, 2]`: lane and cache row; lane -1 stores nothing."""
    lengths: Tensor
    """int32 `[lanes]`: trunk rows that every row of the lane sees."""


class RoundStart(NamedTuple):
    """The lanes as a round found them, for its record; int32 `[lanes]` each."""

    live: Tensor
    lengths: Tensor
    anchors: Tensor


def round_inputs(
    lanes: RoundLanes,
    tree: RoundTree,
    verify: RowInputs,
    block: RowInputs | None,
    mask_token: int,
    start: RoundStart,
    *,
    time: Tensor | None = None,
    impl: Impl = "triton",
    pdl: bool = True,
) -> None:
    """Place every lane's rows behind its trunk; rows of a lane without a request store nothing.

    Args:
        lanes: read.
        tree: of every lane; its depths are the rows' distances from the anchor.
        verify: rows of the anchor, of the tree's nodes, and of padding; the nodes' tokens are left alone.
        block: rows of the drafter's block, one behind the other; None without a drafter.
        mask_token: of the block's later rows; -1 repeats the anchor's.
        start: where the lanes' state is copied to.
        time: int64 `[1]`, gets the clock's nanoseconds as `stamp` has them; None for no clock.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    _check(lanes, tree, verify, block, start)
    if impl == "reference":
        _reference(lanes, tree, verify, block, mask_token, start)
        if time is not None:
            stamp(time, 0, impl="reference")
        return
    require_device("lanes.live", lanes.live)
    from dflash.kernels.round_inputs_triton import launch_inputs

    clock = None if interpreted() else time
    launch_inputs(lanes, tree, verify, block, mask_token, start, clock, pdl and not interpreted())


def _check(
    lanes: RoundLanes, tree: RoundTree, verify: RowInputs, block: RowInputs | None, start: RoundStart
) -> None:
    count = len(lanes.live)
    for name, tensor in (("live", lanes.live), ("lengths", lanes.lengths), ("anchors", lanes.anchors)):
        check_dense(f"lanes.{name}", tensor, torch.int32, (count,), lanes.live)
        check_dense(f"start.{name}", getattr(start, name), torch.int32, (count,), lanes.live)
    for label, rows in (("verify", verify), ("block", block)):
        if rows is not None:
            width = rows.tokens.shape[-1]
            check_dense(f"{label}.tokens", rows.tokens, torch.int32, (count, width), lanes.live)
            check_dense(f"{label}.positions", rows.positions, torch.int32, (count, width), lanes.live)
            check_dense(f"{label}.places", rows.places, torch.int32, (count, width, 2), lanes.live)
            check_dense(f"{label}.lengths", rows.lengths, torch.int32, (count,), lanes.live)
    if verify.tokens.shape[1] <= tree.nodes:
        raise ShapeRefused("verify.tokens", f"more than {tree.nodes} rows", verify.tokens.shape)


def _reference(
    lanes: RoundLanes, tree: RoundTree, verify: RowInputs, block: RowInputs | None, mask_token: int,
    start: RoundStart,
) -> None:  # fmt: skip
    for goal, tensor in zip(start, (lanes.live, lanes.lengths, lanes.anchors), strict=True):
        goal.copy_(tensor)
    depths = torch.zeros(verify.tokens.shape[1], dtype=torch.int32, device=tree.depths.device)
    depths[: tree.nodes + 1] = tree.depths
    _place(lanes, verify, depths, tree.nodes + 1)
    if block is not None:
        width = block.tokens.shape[1]
        _place(lanes, block, torch.arange(width, device=tree.depths.device), width)
        rest = lanes.anchors[:, None] if mask_token < 0 else mask_token
        block.tokens[:, 1:] = rest


def _place(lanes: RoundLanes, rows: RowInputs, depths: Tensor, used: int) -> None:
    row = torch.arange(rows.tokens.shape[1], device=depths.device)
    lane = torch.arange(len(lanes.live), device=depths.device)[:, None]
    stores = (lanes.live > 0)[:, None] & (row < used)
    rows.tokens[:, 0] = lanes.anchors
    rows.positions.copy_(torch.where(row < used, lanes.lengths[:, None] + depths, 0))
    rows.places[..., 0] = torch.where(stores, lane, -1).int()
    rows.places[..., 1] = torch.where(stores, lanes.lengths[:, None] + row, 0).int()
    rows.lengths.copy_(torch.where(lanes.live > 0, lanes.lengths, 0))

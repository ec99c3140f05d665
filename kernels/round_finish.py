"""The end of a device round: what is emitted, whether the request ends, where the accepted rows belong."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.accept_tree import Accepted
from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_stamp import stamp
from dflash.kernels.tensor_checks import check_dense

GOES_ON, EOS, LENGTH = 0, 1, 2


class RoundEnd(NamedTuple):
    """What a round came to; `kept` is length + 1 rows, the anchor's and the accepted nodes'."""

    count: Tensor
    """int32 `[lanes]`: accepted nodes."""
    path: Tensor
    """int32 `[lanes, nodes]`: accepted nodes from the anchor down, then -1; all -1 in a lane that rests."""
    bonus: Tensor
    """int32 `[lanes]`."""
    emitted: Tensor
    """int32 `[lanes]`: of the accepted nodes and the bonus token, those before the request's end."""
    reason: Tensor
    """int32 `[lanes]`: `GOES_ON`, `EOS` or `LENGTH`."""
    rows: Tensor
    """int64 `[lanes, kept]`: by row of the new trunk, the verified row that it was; 0 for none."""
    positions: Tensor
    """int32 `[lanes, kept]`."""
    places: Tensor
    """int32 `[lanes, kept, 2]`: lane and cache row; lane -1 where nothing was accepted."""


def round_finish(
    tokens: Tensor,
    accepted: Accepted,
    eos: Tensor,
    tree: RoundTree,
    lanes: RoundLanes,
    width: int,
    out: RoundEnd,
    *,
    time: Tensor | None = None,
    impl: Impl = "triton",
    pdl: bool = True,
) -> None:
    """Emit exactly what plain decoding would, and move every live lane on to its next anchor.

    Args:
        tokens: int32 `[lanes, nodes]`.
        accepted: of `accept_tree`; without nodes, counts of 0 and the choices as bonus tokens.
        eos: int32 `[any number]`, tokens that end a request.
        tree: of every lane.
        lanes: read and moved on.
        width: rows a lane in the verified batch.
        out: where to write.
        time: int64 `[1]`, gets the clock's nanoseconds as `stamp` has them; None for no clock.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    _check(tokens, accepted, eos, tree, lanes, out)
    if impl == "reference":
        _reference(tokens, accepted, eos, lanes, width, out)
        if time is not None:
            stamp(time, 0, impl="reference")
        return
    require_device("tokens", tokens)
    from dflash.kernels.round_finish_triton import launch_finish

    clock = None if interpreted() else time
    launch_finish(tokens, accepted, eos, tree, lanes, width, out, clock, pdl and not interpreted())


def _check(
    tokens: Tensor, accepted: Accepted, eos: Tensor, tree: RoundTree, lanes: RoundLanes, out: RoundEnd
) -> None:
    count, kept = len(lanes.live), tree.length + 1
    check_dense("tokens", tokens, torch.int32, (count, tree.nodes), lanes.live)
    check_dense("eos", eos, torch.int32, (eos.numel(),), lanes.live)
    check_dense("accepted.path", accepted.path, torch.int32, (count, tree.nodes), lanes.live)
    for name in ("count", "bonus"):
        check_dense(f"accepted.{name}", getattr(accepted, name), torch.int32, (count,), lanes.live)
    for name in ("count", "bonus", "emitted", "reason"):
        check_dense(f"out.{name}", getattr(out, name), torch.int32, (count,), lanes.live)
    check_dense("out.path", out.path, torch.int32, (count, tree.nodes), lanes.live)
    check_dense("out.rows", out.rows, torch.int64, (count, kept), lanes.live)
    check_dense("out.positions", out.positions, torch.int32, (count, kept), lanes.live)
    check_dense("out.places", out.places, torch.int32, (count, kept, 2), lanes.live)


def _reference(
    tokens: Tensor, accepted: Accepted, eos: Tensor, lanes: RoundLanes, width: int, out: RoundEnd
) -> None:
    count, kept = accepted.count, out.rows.shape[1]
    place = torch.arange(kept, device=tokens.device)
    path = torch.nn.functional.pad(accepted.path, (0, 1), value=-1)[:, :kept]
    drafted = torch.nn.functional.pad(tokens, (0, 1)).gather(1, path.clamp_min(0).long())
    emits = torch.where(place < count[:, None], drafted, accepted.bonus[:, None])
    ends = (emits[..., None] == eos).any(-1) & (place <= count[:, None])
    first_end = torch.where(ends, place, kept).amin(1)
    emitted = torch.minimum(torch.minimum(count + 1, first_end + 1), lanes.left)
    reason = torch.where(emitted == lanes.left, LENGTH, GOES_ON)
    reason = torch.where(first_end < emitted, EOS, reason)
    live = lanes.live > 0
    stays = live[:, None] & (place <= count[:, None])
    lane = torch.arange(len(tokens), device=tokens.device)[:, None]
    nodes = torch.nn.functional.pad(path[:, : kept - 1] + 1, (1, 0))
    out.count.copy_(count), out.bonus.copy_(accepted.bonus)
    # rows of a lane that rests may be another request's already
    out.path.copy_(torch.where(live[:, None], accepted.path, -1))
    out.emitted.copy_(emitted), out.reason.copy_(reason)
    out.rows.copy_(torch.where(stays, lane * width + nodes, 0))
    out.positions.copy_(torch.where(stays, lanes.lengths[:, None] + place, 0))
    out.places[..., 0] = torch.where(stays, lane, -1).int()
    out.places[..., 1] = out.positions
    lanes.lengths.add_(torch.where(live, count + 1, 0))
    lanes.left.sub_(torch.where(live, emitted, 0))
    lanes.anchors.copy_(torch.where(live, accepted.bonus, lanes.anchors))
    lanes.live.copy_((live & (reason == GOES_ON)).int())

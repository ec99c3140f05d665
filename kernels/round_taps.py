"""Hidden states of plain rounds, kept by position until a drafter's context takes them in, many at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import ShapeRefused
from dflash.kernels.round_inputs import RoundStart
from dflash.kernels.tensor_checks import check_dense


class TapRing(NamedTuple):
    """The newest tapped rows of every lane, that of position t in place t mod `places`."""

    taps: Tensor
    """`[lanes, places, width]`."""
    known: Tensor
    """int32 `[lanes]`: the first position that the drafter's context does not have."""

    @classmethod
    def make(cls, lanes: int, places: int, like: Tensor) -> TapRing:
        """Allocate for rows like those of a tensor `[rows, width]`."""
        known = torch.zeros(lanes, dtype=torch.int32, device=like.device)
        return cls(like.new_zeros(lanes, places, like.shape[1]), known)


class PendingRows(NamedTuple):
    """Rows that a drafter's context lacks."""

    taps: Tensor
    """`[lanes x rows, width]`."""
    positions: Tensor
    """int32 `[lanes x rows]`."""
    places: Tensor
    """int32 `[lanes x rows, 2]`: lane and position; lane -1 where there is none."""


def keep_taps(
    taps: Tensor, start: RoundStart, ring: TapRing, *, impl: Impl = "triton", pdl: bool = True
) -> None:
    """Keep the row of every live lane's anchor.

    Args:
        taps: `[lanes x rows, width]`, each lane's anchor first.
        start: of the round.
        ring: where to keep them.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    lanes, places, width = ring.taps.shape
    if taps.dim() != 2 or taps.shape[1] != width or len(taps) % lanes:
        raise ShapeRefused("taps", f"[a multiple of {lanes} rows, {width}]", taps.shape)
    check_dense("taps", taps, ring.taps.dtype, tuple(taps.shape), ring.taps)
    check_dense("ring.taps", ring.taps, taps.dtype, (lanes, places, width), taps)
    for name in ("live", "lengths"):
        check_dense(f"start.{name}", getattr(start, name), torch.int32, (lanes,), taps)
    if impl == "reference":
        place = (start.lengths % places).long()
        lane = torch.arange(lanes, device=taps.device)
        rows = taps.view(lanes, -1, width)[:, 0]
        ring.taps[lane, place] = torch.where(start.live[:, None] > 0, rows, ring.taps[lane, place])
        return
    require_device("taps", taps)
    from dflash.kernels.round_taps_triton import launch_keep

    launch_keep(taps, start, ring, pdl and not interpreted())


def pending_rows(ring: TapRing, lengths: Tensor, rows: int) -> PendingRows:
    """The rows from each lane's `known` position to its trunk's end, at most `rows` of them.

    Args:
        ring: read.
        lengths: int32 `[lanes]`, trunk rows.
        rows: room a lane.
    """
    lanes, places, width = ring.taps.shape
    positions = ring.known[:, None] + torch.arange(rows, dtype=torch.int32, device=lengths.device)
    there = positions < lengths[:, None]
    lane = torch.arange(lanes, dtype=torch.int32, device=lengths.device)[:, None]
    kept = ring.taps[lane.long(), (positions % places).long()]
    positions = torch.where(there, positions, 0)
    goals = torch.stack([torch.where(there, lane, -1), positions], -1)
    return PendingRows(kept.view(-1, width), positions.flatten(), goals.flatten(0, 1))

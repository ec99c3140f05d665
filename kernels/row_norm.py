"""The RMSNorm before a product: of its own rows, or shared with the launch that made them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_plan import Mode
from dflash.kernels.errors import ScaleRefused, ShapeRefused
from dflash.kernels.product_checks import check_tensor, work_dtype
from dflash.kernels.product_plan import product_plan

PARTS_AT_ONCE = 64


class CarriedNorm(NamedTuple):
    """What the launch that makes rows leaves for the norm that reads them, which needs no pass of its own.

    Sums of squares are in parts, one a column tile: added up in their order, they repeat.
    """

    gain: Tensor
    """`[width]`, the weight of the norm."""
    rows: Tensor
    """`[rows, width]`: the rows times `gain`."""
    squares: Tensor
    """float32 `[parts, rows]`: what each part of a row adds to its sum of squares, before `gain`."""


Norm = Tensor | CarriedNorm | None


class NormLaunch(NamedTuple):
    """What a kernel is given of a norm."""

    x: Tensor
    gain: Tensor
    squares: Tensor
    own: bool
    """The kernel makes the sums of squares itself."""
    parts: int
    parts_at_once: int
    """A power of two; 0 where nothing was carried."""


def carried_norm(gain: Tensor, rows: int, depth: int, mode: Mode = "fast") -> CarriedNorm:
    """Room for the norm of what `row_product` makes of `rows` rows of `depth`, as wide as `gain`."""
    parts = product_plan("rows", rows, -(-len(gain) // 2), depth, mode, None).column_tiles
    squares = torch.empty(parts, rows, dtype=torch.float32, device=gain.device)
    return CarriedNorm(gain, gain.new_empty(rows, len(gain)), squares)


def check_norm(x: Tensor, norm: Norm, eps: float) -> None:
    """Refuse a norm that does not belong to rows `x`.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ScaleRefused: before the launch.
    """
    if norm is None:
        return
    if isinstance(norm, CarriedNorm):
        check_carried("norm", norm, x)
    else:
        check_tensor("norm", norm, x.dtype, (x.shape[1],), x)
    if not eps > 0:
        raise ScaleRefused(eps)


def check_carried(name: str, carried: CarriedNorm, x: Tensor, parts: int | None = None) -> None:
    """Refuse what does not belong to rows `x` `[rows, width]`.

    Args:
        parts: how many the launch makes; None for any.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused: before the launch.
    """
    check_tensor(f"{name}.gain", carried.gain, x.dtype, (x.shape[1],), x)
    check_tensor(f"{name}.rows", carried.rows, x.dtype, tuple(x.shape), x, dense=False)
    squares = carried.squares
    if squares.dim() != 2 or not len(squares) or parts not in (None, len(squares)):
        raise ShapeRefused(f"{name}.squares", f"[{parts or 'parts'}, {len(x)}]", squares.shape)
    check_tensor(f"{name}.squares", squares, torch.float32, (len(squares), len(x)), x)


def launch_norm(x: Tensor, norm: Norm) -> NormLaunch:
    """The kernel's side of a norm; a tensor that is not there is stood in for by one that is not read."""
    if isinstance(norm, CarriedNorm):
        parts = len(norm.squares)
        at_once = min(1 << (parts - 1).bit_length(), PARTS_AT_ONCE)
        return NormLaunch(norm.rows, x, norm.squares, False, parts, at_once)
    return NormLaunch(x, x if norm is None else norm, x, norm is not None, 0, 0)


def normed(x: Tensor, norm: Norm, eps: float) -> Tensor:
    """RMSNorm of rows (Zhang and Sennrich 2019) in the references; the rows where none is asked."""
    if isinstance(norm, CarriedNorm):
        wide = norm.rows.to(work_dtype(norm.rows))
        mean = norm.squares.sum(0).to(wide.dtype) / wide.shape[1]
        return wide * torch.rsqrt(mean + eps)[:, None]
    wide = x.to(work_dtype(x))
    if norm is None:
        return wide
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * norm.to(wide.dtype)


def leave_norm(carried: CarriedNorm, made: Tensor) -> None:
    """The reference of what the launch that makes `made` leaves; all squares in the first part."""
    wide = made.to(work_dtype(made))
    carried.rows.copy_(wide * carried.gain.to(wide.dtype))
    carried.squares.zero_()[0] = wide.square().sum(-1)

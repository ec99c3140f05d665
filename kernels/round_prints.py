"""Fingerprints of a round's committed rows: their hidden states, projected on random signs."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import ShapeRefused
from dflash.kernels.tensor_checks import check_dense


def sign_words(matrix: Tensor) -> Tensor:
    """Signs of a projection `[width, up to 31]` as int32 `[width]`: bit j is that of column j, set for +."""
    bits = torch.arange(matrix.shape[1], device=matrix.device)
    return ((matrix > 0).int() << bits.int()).sum(1).int()


def project_rows(
    taps: Tensor,
    rows: Tensor,
    signs: Tensor,
    scale: float,
    out: Tensor,
    *,
    impl: Impl = "triton",
    pdl: bool = True,
) -> None:
    """Sum each wanted row's numbers under every column of signs, times `scale`.

    Args:
        taps: `[rows, width]`, contiguous.
        rows: int64 `[wanted]`, which rows.
        signs: int32 `[width]` of `sign_words`.
        scale: of the sums.
        out: float32 `[wanted, columns]`.
        impl: `triton` or `reference`.
        pdl: start under the preceding kernel's tail.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    wanted, columns = len(rows), out.shape[-1]
    if taps.dim() != 2 or columns & (columns - 1) or columns > 16:
        raise ShapeRefused("out", "a power of two of columns, at most 16", out.shape)
    check_dense("taps", taps, taps.dtype, tuple(taps.shape), taps)
    check_dense("rows", rows, torch.int64, (wanted,), taps)
    check_dense("signs", signs, torch.int32, (taps.shape[1],), taps)
    check_dense("out", out, torch.float32, (wanted, columns), taps)
    if impl == "reference":
        bits = (signs[:, None] >> torch.arange(columns, device=signs.device)) & 1
        out.copy_(taps[rows].float() @ (bits * 2 - 1).float() * scale)
        return
    require_device("taps", taps)
    from dflash.kernels.round_prints_triton import launch_prints

    launch_prints(taps, rows, signs, scale, out, pdl and not interpreted())

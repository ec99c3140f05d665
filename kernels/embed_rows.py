"""Rows of an embedding table, and what the norm that reads them needs, in one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, check_runnable, interpreted
from dflash.kernels.errors import ShapeRefused
from dflash.kernels.product_checks import check_tensor, work_dtype
from dflash.kernels.row_norm import CarriedNorm, check_carried, leave_norm

MAX_WIDTH = 16384


def embed_rows(
    tokens: Tensor,
    table: Tensor,
    out: Tensor,
    carry: CarriedNorm,
    *,
    scale: float = 1.0,
    impl: Impl = "triton",
    pdl: bool = True,
) -> Tensor:
    """Write table[tokens] x scale, and leave the norm that reads it.

    Args:
        tokens: int32 `[rows]`, below the table's length: looked up on the device, not checked.
        table: `[vocabulary, width]`, contiguous, at most 16,384 wide.
        out: where to write, `[rows, width]`; rows may be apart.
        carry: with one part of squares.
        scale: of the embeddings.
        impl: `triton`, or the PyTorch `reference`; never a silent fallback.
        pdl: start under the preceding kernel's tail. The table and the norm's weight must not be written by
            it.

    Returns:
        `out`.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
    """
    check_choice("impl", Impl, impl)
    if table.dim() != 2 or not 1 <= table.shape[1] <= MAX_WIDTH or not len(table):
        raise ShapeRefused("table", f"[vocabulary, 1 to {MAX_WIDTH}]", table.shape)
    if tokens.dim() != 1 or not len(tokens):
        raise ShapeRefused("tokens", "[rows] with a row at least", tokens.shape)
    check_tensor("tokens", tokens, torch.int32, tuple(tokens.shape), table)
    check_tensor("table", table, table.dtype, tuple(table.shape), table)
    check_tensor("out", out, table.dtype, (len(tokens), table.shape[1]), table, dense=False)
    check_carried("carry", carry, out, 1)
    if impl == "reference":
        wide = torch.nn.functional.embedding(tokens, table).to(work_dtype(table)) * scale
        leave_norm(carry, out.copy_(wide))
        return out
    check_runnable("table", table)
    _launch(tokens, table, out, carry, scale, pdl and not interpreted())
    return out


def _launch(tokens: Tensor, table: Tensor, out: Tensor, carry: CarriedNorm, scale: float, pdl: bool) -> None:
    from dflash.kernels.embed_triton import embed_kernel

    width = table.shape[1]
    embed_kernel[(len(tokens),)](
        tokens, table, carry.gain, out, carry.rows, carry.squares, out.stride(0), carry.rows.stride(0), width,
        scale, BLOCK=1 << (width - 1).bit_length(), PDL=pdl, num_warps=4 if width < 4096 else 8,
        launch_pdl=pdl,
    )  # fmt: skip

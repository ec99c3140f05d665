"""K8: the first half of a gated MLP in one launch: RMSNorm, gate and up projection, SiLU and product."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, interpreted
from dflash.kernels.attention_plan import Mode
from dflash.kernels.errors import ShapeRefused
from dflash.kernels.product_checks import check_product, output_like
from dflash.kernels.product_launch import asked_later, launch_options
from dflash.kernels.product_plan import ProductPlan, ProductTile, product_plan
from dflash.kernels.product_scratch import ProductScratch, fitting_product_scratch
from dflash.kernels.row_norm import Norm, check_norm, launch_norm, normed


def gate_up(
    x: Tensor,
    weight: Tensor,
    norm: Norm,
    *,
    eps: float = 1e-6,
    mode: Mode = "fast",
    impl: Impl = "triton",
    out: Tensor | None = None,
    scratch: ProductScratch | None = None,
    tile: ProductTile | None = None,
    pdl: bool = True,
    later: Tensor | None = None,
) -> Tensor:
    """Compute silu(norm(x) @ gate.T) * (norm(x) @ up.T), in float32 until stored (SwiGLU, Shazeer 2020).

    Args:
        x: `[rows, depth]`, as in `row_product`, and so are `eps`, `mode`, `impl`, `scratch`, `tile`, `pdl`,
            `later`.
        weight: `[2 x inner, depth]`, the gate's rows, then the up projection's.
        norm: as in `row_product`; None for none.
        out: where to write, `[rows, inner]`; rows may be apart.

    Returns:
        `[rows, inner]` in the dtype of x.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
    """
    check_product(x, weight, None, mode, impl, later)
    check_norm(x, norm, eps)
    if len(weight) % 2:
        raise ShapeRefused("weight", "as many rows for gate as for up", weight.shape)
    inner = len(weight) // 2
    out = output_like(out, "out", x, inner)
    if impl == "reference":
        rows = normed(x, norm, eps)
        gate, up = (rows @ weight.to(rows.dtype).T).chunk(2, dim=-1)
        return out.copy_(torch.nn.functional.silu(gate) * up)
    plan = gate_up_plan(len(x), inner, x.shape[1], mode, tile)
    _launch(x, weight, norm, out, eps, plan, scratch, pdl and not interpreted(), later)
    return out


def gate_up_plan(
    rows: int, inner: int, depth: int, mode: Mode = "fast", tile: ProductTile | None = None
) -> ProductPlan:
    """The launch of a `gate_up`, for `product_scratch`."""
    return product_plan("gate-up", rows, inner, depth, mode, tile)


def _launch(
    x: Tensor, weight: Tensor, norm: Norm, out: Tensor, eps: float, plan: ProductPlan,
    scratch: ProductScratch | None, pdl: bool, later: Tensor | None = None,
) -> None:  # fmt: skip
    from dflash.kernels import product_triton

    depth = x.shape[1]
    held = fitting_product_scratch(scratch, plan, x.device)
    of = launch_norm(x, norm)
    product_triton.gate_up_kernel[(plan.column_tiles, plan.row_tiles, plan.splits)](
        of.x, weight, of.gain, of.squares, out, *held, of.x.stride(0), out.stride(0),
        len(x), len(weight) // 2, depth, plan.blocks, of.parts, eps,
        *asked_later(later, pdl),
        **launch_options(plan, depth, of, pdl),
    )  # fmt: skip

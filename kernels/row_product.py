"""K8: a few rows times a weight, with bias, residual and norm: O projection, down projection, head."""

from __future__ import annotations

from torch import Tensor

from dflash.kernels.attention_checks import Impl, interpreted
from dflash.kernels.attention_plan import Mode
from dflash.kernels.product_checks import check_product, check_tensor, output_like
from dflash.kernels.product_launch import asked_later, launch_options
from dflash.kernels.product_plan import ProductPlan, ProductTile, product_plan
from dflash.kernels.product_scratch import ProductScratch, fitting_product_scratch
from dflash.kernels.row_norm import (
    CarriedNorm,
    Norm,
    check_carried,
    check_norm,
    launch_norm,
    leave_norm,
    normed,
)


def row_product(
    x: Tensor,
    weight: Tensor,
    *,
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    norm: Norm = None,
    carry: CarriedNorm | None = None,
    eps: float = 1e-6,
    mode: Mode = "fast",
    impl: Impl = "triton",
    out: Tensor | None = None,
    scratch: ProductScratch | None = None,
    tile: ProductTile | None = None,
    pdl: bool = True,
    later: Tensor | None = None,
) -> Tensor:
    """Compute norm(x) @ weight.T + bias + residual, in float32 until it is stored.

    Made for up to 64 rows, where the weight's bytes decide; more rows read it again.

    Args:
        x: `[rows, depth]`, float16 or bfloat16; rows may be apart.
        weight: `[columns, depth]`, contiguous.
        residual: `[rows, columns]`; may be `out`.
        bias: `[columns]`.
        norm: of x: `[depth]`, the weight of an RMSNorm, or what the launch that made x carried of it. With
            float16, x times the weight must be finite.
        carry: of the output, from `carried_norm`: what the launch that reads it next will take as its norm.
        eps: of the norm of x.
        mode: `fast`, or `replay-exact`: the same bits whatever the other rows are.
        impl: `triton`, or the PyTorch `reference`; never a silent fallback.
        out: where to write, `[rows, columns]`; rows may be apart.
        scratch: from `product_scratch`, to share between calls on one stream; allocated if None.
        tile: another configuration than the table's.
        pdl: start under the preceding kernel's tail. The weight, norm and bias must not be written by it.
        later: a weight that a later launch reads; with `pdl` it comes into L2 meanwhile, if it is small.

    Returns:
        `[rows, columns]` in the dtype of x.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
    """
    check_product(x, weight, bias, mode, impl, later)
    check_norm(x, norm, eps)
    out = output_like(out, "out", x, len(weight))
    if residual is not None:
        check_tensor("residual", residual, x.dtype, tuple(out.shape), x, dense=False)
    plan = row_plan(len(x), len(weight), x.shape[1], mode, tile)
    if carry is not None:
        check_carried("carry", carry, out, plan.column_tiles)
    if impl == "reference":
        _reference(x, weight, norm, bias, residual, out, carry, eps)
        return out
    _launch(x, weight, norm, bias, residual, out, carry, eps, plan, scratch, pdl and not interpreted(), later)
    return out


def row_plan(
    rows: int, columns: int, depth: int, mode: Mode = "fast", tile: ProductTile | None = None
) -> ProductPlan:
    """The launch of a `row_product`, for `product_scratch`."""
    return product_plan("rows", rows, -(-columns // 2), depth, mode, tile)


def _reference(
    x: Tensor, weight: Tensor, norm: Norm, bias: Tensor | None, residual: Tensor | None, out: Tensor,
    carry: CarriedNorm | None, eps: float,
) -> None:  # fmt: skip
    rows = normed(x, norm, eps)
    result = rows @ weight.to(rows.dtype).T
    for term in (bias, residual):
        result = result if term is None else result + term
    out.copy_(result)
    if carry is not None:
        leave_norm(carry, out)


def _launch(
    x: Tensor, weight: Tensor, norm: Norm, bias: Tensor | None, residual: Tensor | None, out: Tensor,
    carry: CarriedNorm | None, eps: float, plan: ProductPlan, scratch: ProductScratch | None, pdl: bool,
    later: Tensor | None = None,
) -> None:  # fmt: skip
    from dflash.kernels import product_triton

    depth = x.shape[1]
    held = fitting_product_scratch(scratch, plan, x.device)
    of, to = launch_norm(x, norm), carry or CarriedNorm(x, out, out)
    product_triton.row_kernel[(plan.column_tiles, plan.row_tiles, plan.splits)](
        of.x, weight, of.gain, of.squares, x if bias is None else bias,
        x if residual is None else residual, out, *to, *held,
        of.x.stride(0), 0 if residual is None else residual.stride(0), out.stride(0), to.rows.stride(0),
        len(x), len(weight), depth, plan.blocks, of.parts, eps,
        *asked_later(later, pdl),
        BIAS=bias is not None, RESIDUAL=residual is not None, CARRY=carry is not None,
        **launch_options(plan, depth, of, pdl),
    )  # fmt: skip

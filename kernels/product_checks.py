"""Everything that is checked about the small products before a launch; nothing here reads device memory."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, check_runnable
from dflash.kernels.attention_plan import Mode
from dflash.kernels.errors import DeviceRefused, DtypeRefused, LayoutRefused, ShapeRefused

_WORK = {torch.float64: torch.float64}


def work_dtype(x: Tensor) -> torch.dtype:
    """What the references compute in: float64 for float64 rows, else float32."""
    return _WORK.get(x.dtype, torch.float32)


def check_tensor(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], like: Tensor, *, dense: bool = True
) -> None:
    """Refuse a tensor of another dtype, shape or device, or whose rows are not packed.

    Args:
        dense: contiguous as a whole; otherwise rows may be apart, each starting on 16 bytes.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused: before the launch.
    """
    if tensor.dtype != dtype:
        raise DtypeRefused(name, str(dtype), tensor.dtype, tensor.shape)
    if tuple(tensor.shape) != shape:
        raise ShapeRefused(name, str(shape), tensor.shape)
    if tensor.device != like.device:
        raise DeviceRefused(name, f"{like.device} as x", tensor.device, tensor.shape)
    if dense and not tensor.is_contiguous():
        raise LayoutRefused(name, "contiguous memory", tensor.stride(), tensor.shape)
    if not dense:
        _check_rows(name, tensor)


def _check_rows(name: str, tensor: Tensor) -> None:
    if tensor.stride(-1) != 1:
        raise LayoutRefused(name, "a last dimension of stride 1", tensor.stride(), tensor.shape)
    step = 16 // tensor.element_size()
    if tensor.data_ptr() % 16 or any(stride % step for stride in tensor.stride()[:-1]):
        raise LayoutRefused(name, "rows that start on 16 bytes", tensor.stride(), tensor.shape)


def check_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, mode: Mode, impl: Impl, later: Tensor | None = None
) -> None:
    """Refuse what no small product takes: rows, a weight, a bias, and the weight of a later launch.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
    """
    check_choice("impl", Impl, impl)
    check_choice("mode", Mode, mode)
    if x.dim() != 2 or not len(x):
        raise ShapeRefused("x", "[rows, depth] with a row at least", x.shape)
    if weight.dim() != 2 or weight.shape[1] != x.shape[1] or weight.shape[1] % 16:
        raise ShapeRefused("weight", f"[columns, {x.shape[1]}] as x, a multiple of 16", weight.shape)
    check_tensor("x", x, x.dtype, tuple(x.shape), x, dense=False)
    check_tensor("weight", weight, x.dtype, tuple(weight.shape), x)
    if bias is not None:
        check_tensor("bias", bias, x.dtype, (len(weight),), x)
    if later is not None:
        check_tensor("later", later, x.dtype, tuple(later.shape), x)
        _check_rows("later", later)
    if impl == "triton":
        check_runnable("x", x)


def output_like(out: Tensor | None, name: str, x: Tensor, columns: int) -> Tensor:
    """The output `[rows, columns]` that was given, or a new one.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused: what was given does not fit.
    """
    if out is None:
        return x.new_empty(len(x), columns)
    check_tensor(name, out, x.dtype, (len(x), columns), x, dense=False)
    return out

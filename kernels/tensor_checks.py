"""One check that a tensor is what a launcher reads without asking its strides."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.errors import DeviceRefused, DtypeRefused, LayoutRefused, ShapeRefused


def check_dense(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuse a tensor that is not of this dtype and shape, contiguous, and where `like` is.

    Raises:
        DtypeRefused, ShapeRefused, LayoutRefused, DeviceRefused: before the launch.
    """
    if tensor.dtype != dtype:
        raise DtypeRefused(name, str(dtype), tensor.dtype, tensor.shape)
    if tuple(tensor.shape) != shape:
        raise ShapeRefused(name, str(shape), tensor.shape)
    if not tensor.is_contiguous():
        raise LayoutRefused(name, "contiguous memory", tensor.stride(), tensor.shape)
    if tensor.device != like.device:
        raise DeviceRefused(name, str(like.device), tensor.device, tensor.shape)

"""Philox4x32-10 (Salmon et al. 2011, Random123) on the device, word for word what the CPU draws."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, require_device
from dflash.kernels.errors import DeviceRefused, DtypeRefused, LayoutRefused, ShapeRefused

_MASK = 0xFFFFFFFF
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_BLOCK = 128


def _high(a: int, b: Tensor) -> Tensor:
    return ((a >> 16) * b + (((a & 0xFFFF) * b) >> 16)) >> 16


def philox_words(counters: list[Tensor], keys: list[Tensor]) -> list[Tensor]:
    """Run the ten rounds in PyTorch on int64 tensors that hold words below 2**32; the four result words."""
    c0, c1, c2, c3 = counters
    k0, k1 = keys
    for _ in range(10):
        high0, low0 = _high(_MULTIPLY[0], c0), (_MULTIPLY[0] * c0) & _MASK
        high1, low1 = _high(_MULTIPLY[1], c2), (_MULTIPLY[1] * c2) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return [c0, c1, c2, c3]


def word_bits(words: Tensor) -> Tensor:
    """Return int64 words in [0, 2**32) as int32 with the same bits."""
    return torch.where(words > 0x7FFFFFFF, words - (1 << 32), words).to(torch.int32)


def _check(counters: Tensor, keys: Tensor) -> None:
    for name, tensor, width in (("counters", counters, 4), ("keys", keys, 2)):
        if tensor.dtype != torch.int32:
            raise DtypeRefused(name, "int32 (the bits of the words)", tensor.dtype, tensor.shape)
        if tensor.dim() != 2 or tensor.shape != (counters.shape[0], width):
            raise ShapeRefused(name, f"[{counters.shape[0]}, {width}]", tensor.shape)
        if not tensor.is_contiguous():
            raise LayoutRefused(name, "contiguous memory", tensor.stride(), tensor.shape)
        if tensor.device != counters.device:
            raise DeviceRefused(name, str(counters.device), tensor.device, tensor.shape)


def philox(counters: Tensor, keys: Tensor, *, impl: Impl = "triton") -> Tensor:
    """Return the four random words of each counter.

    Args:
        counters: int32 `[N, 4]`, the bits of the counter words.
        keys: int32 `[N, 2]`, the bits of the key words.
        impl: `triton` or `reference`.

    Returns:
        int32 `[N, 4]`, the bits of the words.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before the launch.
    """
    check_choice("impl", Impl, impl)
    _check(counters, keys)
    if impl == "reference":
        words = philox_words(
            [counters[:, i].long() & _MASK for i in range(4)], [keys[:, i].long() & _MASK for i in range(2)]
        )
        return torch.stack([word_bits(w) for w in words], -1)
    require_device("counters", counters)
    from dflash.kernels.philox_triton import philox_kernel

    out = torch.empty_like(counters)
    philox_kernel[(-(-len(counters) // _BLOCK),)](counters, keys, out, len(counters), BLOCK=_BLOCK)
    return out

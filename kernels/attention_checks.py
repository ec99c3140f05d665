"""Everything that is checked about attention arguments before a launch; nothing here reads device memory."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from dflash.kernels.ancestors import MAX_NODES
from dflash.kernels.errors import (
    ChoiceRefused,
    DeviceRefused,
    DtypeRefused,
    LayoutRefused,
    ShapeRefused,
    TritonMissing,
)

Impl = Literal["triton", "reference"]
HEAD_SIZES = (64, 96, 128)
MAX_GROUP = 8


class Sizes(NamedTuple):
    """The sizes of one attention call."""

    batch: int
    queries: int
    heads: int
    head: int
    kv_heads: int
    group: int
    tail: int
    page: int
    """Rows a page; 0 for contiguous K/V."""
    capacity: int
    """Most cache rows a lane can hold."""


def check_choice(name: str, choices: Any, found: object) -> None:
    """Refuse a word that is not one of a Literal's.

    Raises:
        ChoiceRefused: lists them.
    """
    if found not in get_args(choices):
        raise ChoiceRefused(name, get_args(choices), found)


def check_output(out: Tensor | None, q: Tensor) -> None:
    """Refuse an output that is not shaped, typed, placed and laid out as the queries may be.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused: before the launch.
    """
    if out is not None:
        if out.shape != q.shape:
            raise ShapeRefused("out", f"{tuple(q.shape)} as q", out.shape)
        _values("out", out, q)


def _same_place(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.device != like.device:
        raise DeviceRefused(name, f"{like.device} as q", tensor.device, tensor.shape)


def _integers(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], like: Tensor) -> None:
    _same_place(name, tensor, like)
    if tensor.dtype != dtype:
        raise DtypeRefused(name, str(dtype), tensor.dtype, tensor.shape)
    if tuple(tensor.shape) != shape:
        raise ShapeRefused(name, str(shape), tensor.shape)
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise LayoutRefused(name, "a last dimension of stride 1", tensor.stride(), tensor.shape)


def _values(name: str, tensor: Tensor, like: Tensor) -> None:
    _same_place(name, tensor, like)
    if tensor.dtype != like.dtype:
        raise DtypeRefused(name, f"{like.dtype} as q", tensor.dtype, tensor.shape)
    if tensor.stride(-1) != 1:
        raise LayoutRefused(name, "a last dimension of stride 1", tensor.stride(), tensor.shape)
    step = 16 // tensor.element_size()
    if tensor.data_ptr() % 16 or any(s % step for s in tensor.stride()[:-1]):
        raise LayoutRefused(name, "rows that start on 16 bytes", tensor.stride(), tensor.shape)


def _heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.dim() != 4:
        raise ShapeRefused("q", "[lanes, queries, heads, head]", q.shape)
    if k.dim() != 4 or k.shape != v.shape:
        raise ShapeRefused("k, v", "two equal [lanes or pages, KV heads, rows, head]", (*k.shape, *v.shape))
    heads, head = q.shape[2:]
    if head not in HEAD_SIZES or k.shape[3] != head:
        raise ShapeRefused("head", f"one of {HEAD_SIZES}, the same in q and k", (head, k.shape[3]))
    if heads % k.shape[1] or heads // k.shape[1] > MAX_GROUP:
        raise ShapeRefused("heads", f"1 to {MAX_GROUP} query heads a KV head", (heads, k.shape[1]))


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    words: Tensor | None,
    tail: int,
    pages: Tensor | None,
    impl: Impl,
) -> Sizes:
    """Return the sizes of an attention call, or refuse it.

    Raises:
        ShapeRefused, DtypeRefused, LayoutRefused, DeviceRefused, ChoiceRefused: before anything is launched.
    """
    check_choice("impl", Impl, impl)
    _heads(q, k, v)
    batch, queries, heads, head = q.shape
    if not 0 <= tail <= MAX_NODES:
        raise ShapeRefused("tail", f"0 to {MAX_NODES} rows after the trunk", tail)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _values(name, tensor, q)
    _integers("lengths", lengths, torch.int32, (batch,), q)
    if words is not None:
        _integers("words", words, torch.int64, (batch, queries), q)
    if pages is None:
        if k.shape[0] != batch:
            raise ShapeRefused("k", f"{batch} lanes as q, or a page table", k.shape)
        page, capacity = 0, k.shape[2]
    else:
        page = k.shape[2]
        if page < 16 or page & (page - 1):
            raise ShapeRefused("k", "pages of 16, 32, 64, … rows", k.shape)
        _integers("pages", pages, torch.int32, (batch, pages.shape[-1]), q)
        capacity = page * pages.shape[-1]
    if impl == "triton":
        check_runnable("q", q)
    return Sizes(batch, queries, heads, head, k.shape[1], heads // k.shape[1], tail, page, capacity)


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, where CPU tensors and float32 are taken.

    Raises:
        TritonMissing: where Triton is not installed.
    """
    try:
        import triton
    except ModuleNotFoundError as error:
        raise TritonMissing from error
    return bool(triton.knobs.runtime.interpret)


def require_device(name: str, tensor: Tensor) -> None:
    """Refuse a CPU tensor unless kernels are interpreted.

    Raises:
        DeviceRefused, TritonMissing: before the launch.
    """
    if not interpreted() and tensor.device.type != "cuda":
        raise DeviceRefused(name, 'cuda (or impl="reference")', tensor.device, tensor.shape)


def check_runnable(name: str, tensor: Tensor) -> None:
    """Refuse a device or a dtype that kernels with matrix products do not run on.

    Raises:
        DeviceRefused, TritonMissing: on a CPU without the interpreter.
        DtypeRefused: float32 on a GPU; bfloat16 in the interpreter, which computes garbage with it.
    """
    require_device(name, tensor)
    if interpreted():
        if tensor.dtype not in (torch.float16, torch.float32):
            raise DtypeRefused(name, "float16 or float32 in the interpreter", tensor.dtype, tensor.shape)
    elif tensor.dtype not in (torch.float16, torch.bfloat16):
        raise DtypeRefused(name, "float16 or bfloat16", tensor.dtype, tensor.shape)

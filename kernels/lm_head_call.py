"""What goes into `lm_head_topk` and what comes out, and everything that is checked before a launch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, check_choice, interpreted, require_device
from dflash.kernels.errors import DeviceRefused, DtypeRefused, LayoutRefused, ScaleRefused, ShapeRefused
from dflash.kernels.lm_head_plan import MAX_ASKED, MAX_TOP
from dflash.kernels.tensor_checks import check_dense

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Draw(NamedTuple):
    """The noise that a row's choice races on, as dflash/policy/noise.py keys it."""

    temperatures: Tensor
    """float32 `[rows]`; a row at 0 (or below, or NaN) takes its largest logit."""
    keys: Tensor
    """int32 `[rows, 2]`: the bits of the request's Philox key."""
    positions: Tensor
    """int32 `[rows]`: the bits of the first counter word, the position of the token that is chosen."""
    purposes: Tensor | None = None
    """int32 `[rows]`: purpose + 256 x depth; None is the target's own noise, 0."""
    paths: Tensor | None = None
    """int32 `[rows]`: the bits of the parent's path hash; None where all are 0."""


class Choices(NamedTuple):
    """Who won each row's race."""

    token: Tensor
    """int32 `[rows]`."""
    logit: Tensor
    """float32 `[rows]`: its raw logit."""
    lead: Tensor
    """float32 `[rows]`: its score less the runner-up's; raw logits at temperature 0."""
    lse: Tensor
    """float32 `[rows]`: log-sum-exp of l / T; NaN at temperature 0."""


class HeadScores(NamedTuple):
    """What is known of each row's logits."""

    values: Tensor
    """float32 `[rows, top]`: the largest logits, in order."""
    ids: Tensor
    """int32 `[rows, top]`: their tokens, ties by the lowest id; the first is the argmax."""
    lse: Tensor
    """float32 `[rows]`: log-sum-exp of the logits."""
    asked: Tensor | None
    """float32 `[rows, asked]`: the logits that were asked for; -inf where the id is none of the head's."""
    choice: Choices | None


def empty_scores(hidden: Tensor, top: int, asked: Tensor | None, draw: Draw | None) -> HeadScores:
    """Room for the scores of a call."""
    rows = len(hidden)

    def room(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((rows, *size), dtype=dtype, device=hidden.device)

    choice = None if draw is None else Choices(room(dtype=torch.int32), room(), room(), room())
    found = None if asked is None else room(asked.shape[1])
    return HeadScores(room(top), room(top, dtype=torch.int32), room(), found, choice)


def _rows(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.dtype != like.dtype:
        raise DtypeRefused(name, f"{like.dtype} as weight", tensor.dtype, tensor.shape)
    if tensor.device != like.device:
        raise DeviceRefused(name, f"{like.device} as weight", tensor.device, tensor.shape)
    step = 16 // tensor.element_size()
    if tensor.stride(1) != 1 or tensor.data_ptr() % 16 or tensor.stride(0) % step:
        raise LayoutRefused(name, "contiguous rows that start on 16 bytes", tensor.stride(), tensor.shape)


def _operands(hidden: Tensor, weight: Tensor, impl: Impl) -> None:
    if weight.dim() != 2 or weight.shape[0] < 1:
        raise ShapeRefused("weight", "[vocabulary, width]", weight.shape)
    width = weight.shape[1]
    if width < 16 or width % 16:
        raise ShapeRefused("weight", "a width that is a multiple of 16", weight.shape)
    if hidden.dim() != 2 or hidden.shape[0] < 1 or hidden.shape[1] != width:
        raise ShapeRefused("hidden", f"[1 row or more, {width}]", hidden.shape)
    allowed = DTYPES if impl == "triton" else (*DTYPES, torch.float64)
    if weight.dtype not in allowed:
        raise DtypeRefused("weight", "bfloat16, float16 or float32", weight.dtype, weight.shape)
    _rows("weight", weight, weight)
    _rows("hidden", hidden, weight)


def _draw(draw: Draw, hidden: Tensor) -> None:
    rows = (len(hidden),)
    check_dense("draw.temperatures", draw.temperatures, torch.float32, rows, hidden)
    check_dense("draw.keys", draw.keys, torch.int32, (*rows, 2), hidden)
    check_dense("draw.positions", draw.positions, torch.int32, rows, hidden)
    if draw.purposes is not None:
        check_dense("draw.purposes", draw.purposes, torch.int32, rows, hidden)
    if draw.paths is not None:
        check_dense("draw.paths", draw.paths, torch.int32, rows, hidden)


def _out(out: HeadScores, like: HeadScores, hidden: Tensor) -> None:
    given = (*out[:4], *(out.choice or ()))
    names = (*HeadScores._fields[:4], *(f"choice.{name}" for name in Choices._fields))
    wanted = (*like[:4], *(like.choice or ()))
    if [t is None for t in given] != [t is None for t in wanted]:
        raise ShapeRefused("out", "what `asked` and `draw` make of it", [t is not None for t in given])
    for name, tensor, model in zip(names, given, wanted, strict=False):
        if tensor is not None:
            check_dense(f"out.{name}", tensor, model.dtype, tuple(model.shape), hidden)


def check_head(
    hidden: Tensor,
    weight: Tensor,
    top: int,
    ids: Tensor | None,
    asked: Tensor | None,
    draw: Draw | None,
    scale: float,
    impl: Impl,
    out: HeadScores | None,
) -> HeadScores:
    """Return where the scores go, or refuse the call.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`; nothing here reads device memory.
    """
    check_choice("impl", Impl, impl)
    _operands(hidden, weight, impl)
    if not 1 <= top <= min(MAX_TOP, weight.shape[0]):
        raise ShapeRefused("top", f"1 to {min(MAX_TOP, weight.shape[0])} tokens", top)
    if not 0 < scale < float("inf"):
        raise ScaleRefused(scale)
    if ids is not None:
        check_dense("ids", ids, torch.int32, (weight.shape[0],), hidden)
    if asked is not None:
        if asked.dim() != 2 or not 1 <= asked.shape[1] <= MAX_ASKED:
            raise ShapeRefused("asked", f"[{len(hidden)}, 1 to {MAX_ASKED}]", asked.shape)
        check_dense("asked", asked, torch.int32, (len(hidden), asked.shape[1]), hidden)
    if draw is not None:
        _draw(draw, hidden)
    if impl == "triton":
        require_device("hidden", hidden)
        if interpreted() and hidden.dtype == torch.bfloat16:
            raise DtypeRefused("hidden", "float16 or float32 in the interpreter", hidden.dtype, hidden.shape)
    room = empty_scores(hidden, top, asked, draw) if out is None else out
    if out is not None:
        _out(out, empty_scores(hidden.to("meta"), top, asked, draw), hidden)
    return room

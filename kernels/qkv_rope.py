"""K6: RMSNorm, Q/K/V projection, norm of heads, rotary positions, and append of K/V to their cache rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl, interpreted
from dflash.kernels.attention_plan import Mode
from dflash.kernels.errors import ShapeRefused
from dflash.kernels.product_checks import check_product, check_tensor, output_like
from dflash.kernels.product_launch import asked_later, launch_options
from dflash.kernels.product_plan import HEAD_TILES, ProductPlan, ProductTile, block_of, product_plan
from dflash.kernels.product_scratch import ProductScratch, fitting_product_scratch
from dflash.kernels.row_norm import Norm, check_norm, launch_norm, normed


class Rotary(NamedTuple):
    """Cosines and sines of all positions, float32 `[positions, head / 2]`; a head's halves are paired."""

    cos: Tensor
    sin: Tensor


class HeadNorms(NamedTuple):
    """Weights `[head]` of the RMSNorms of query and key heads, and their eps (Qwen3)."""

    q: Tensor
    k: Tensor
    eps: float


def qkv_rope(
    x: Tensor,
    weight: Tensor,
    norm: Norm,
    rotary: Rotary,
    positions: Tensor,
    places: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    eps: float = 1e-6,
    bias: Tensor | None = None,
    head_norms: HeadNorms | None = None,
    mode: Mode = "fast",
    impl: Impl = "triton",
    out: Tensor | None = None,
    scratch: ProductScratch | None = None,
    tile: ProductTile | None = None,
    pdl: bool = True,
    later: Tensor | None = None,
) -> Tensor:
    """Project rows to queries, keys and values; write keys and values where the attention kernels read them.

    Args:
        x: `[rows, depth]`, as in `row_product`, and so are `eps`, `mode`, `impl`, `scratch`, `tile`, `pdl`,
            `later`.
        weight: `[(heads + 2 x KV heads) x head, depth]`: query, key, value heads; no query heads append only.
        norm: as in `row_product`; None for none.
        rotary: of all positions that may come.
        positions: int32 `[rows]`, below the table's length: looked up on the device, not checked.
        places: int32 `[rows, 2]`: the lane (or page) of each row and its row there; a negative lane, as of a
            padding row, stores nothing. Within the cache: not checked.
        k: `[lanes or pages, KV heads, capacity or page, head]`; likewise `v`. Written in place.
        bias: `[(heads + 2 x KV heads) x head]`.
        head_norms: norms of query and key heads, before the rotation.
        out: where to write the queries, `[rows, heads x head]`.

    Returns:
        Queries `[rows, heads x head]` in the dtype of x.

    Raises:
        KernelArgumentError: one of `dflash.kernels.errors`, before the launch.
    """
    check_product(x, weight, bias, mode, impl, later)
    check_norm(x, norm, eps)
    kv_heads, head = _check_caches(x, k, v)
    heads = _check_heads(weight, kv_heads, head)
    _check_rows(x, rotary, positions, places, head_norms, head)
    out = output_like(out, "out", x, heads * head)
    if impl == "reference":
        return _reference(x, weight, norm, rotary, positions, places, k, v, eps, bias, head_norms, out)
    plan = qkv_plan(
        len(x), len(weight) // head, head, x.shape[1], mode, tile, whole_heads=head_norms is not None
    )
    arguments = (x, weight, norm, rotary, positions, places, k, v, eps, bias, head_norms)
    _launch(*arguments, heads, out, plan, scratch, pdl and not interpreted(), later)
    return out


def qkv_plan(
    rows: int, heads: int, head: int, depth: int, mode: Mode = "fast", tile: ProductTile | None = None,
    *, whole_heads: bool = False,
) -> ProductPlan:  # fmt: skip
    """The launch of a `qkv_rope` with so many heads of all three kinds, for `product_scratch`."""
    if whole_heads:
        half = 1 << (head // 2 - 1).bit_length()
        widest = tile or HEAD_TILES[block_of(rows, mode)]
        if widest.half < half or tile is None:
            tile = widest._replace(half=half, swap=widest.swap and half >= 64)
    return product_plan("qkv", rows, heads * head // 2, depth, mode, tile, group=head // 2)


def _check_caches(x: Tensor, k: Tensor, v: Tensor) -> tuple[int, int]:
    if k.dim() != 4 or k.shape != v.shape:
        raise ShapeRefused("k, v", "two equal [lanes or pages, KV heads, rows, head]", (*k.shape, *v.shape))
    for name, cache in (("k", k), ("v", v)):
        check_tensor(name, cache, x.dtype, tuple(k.shape), x, dense=False)
    if k.shape[3] % 32:
        raise ShapeRefused("head", "a multiple of 32", k.shape[3])
    return k.shape[1], k.shape[3]


def _check_heads(weight: Tensor, kv_heads: int, head: int) -> int:
    heads = len(weight) // head - 2 * kv_heads
    if len(weight) % head or heads < 0:
        raise ShapeRefused("weight", f"rows of {kv_heads} K, {kv_heads} V and some Q heads", weight.shape)
    return heads


def _check_rows(
    x: Tensor, rotary: Rotary, positions: Tensor, places: Tensor, norms: HeadNorms | None, head: int
) -> None:
    check_tensor("positions", positions, torch.int32, (len(x),), x)
    check_tensor("places", places, torch.int32, (len(x), 2), x)
    for name, table in (("rotary.cos", rotary.cos), ("rotary.sin", rotary.sin)):
        check_tensor(name, table, torch.float32, (len(rotary.cos), head // 2), x)
    for name, gain in (("head_norms.q", norms.q), ("head_norms.k", norms.k)) if norms else ():
        check_tensor(name, gain, x.dtype, (head,), x)


def _reference(
    x: Tensor, weight: Tensor, norm: Norm, rotary: Rotary, positions: Tensor, places: Tensor,
    k: Tensor, v: Tensor, eps: float, bias: Tensor | None, norms: HeadNorms | None, out: Tensor,
) -> Tensor:  # fmt: skip
    rows = normed(x, norm, eps)
    product = rows @ weight.to(rows.dtype).T
    heads = (product if bias is None else product + bias).unflatten(-1, (-1, k.shape[3]))
    values = heads[:, -k.shape[1] :]
    queries, keys = heads[:, : -2 * k.shape[1]], heads[:, -2 * k.shape[1] : -k.shape[1]]
    if norms is not None:
        queries, keys = normed(queries, norms.q, norms.eps), normed(keys, norms.k, norms.eps)
    at = positions.long()
    cos, sin = (table[at].to(rows.dtype)[:, None] for table in rotary)
    stored = places[:, 0] >= 0
    blocks, places_in = places[stored].long().unbind(1)
    k[blocks, :, places_in] = _turned(keys, cos, sin)[stored].to(k.dtype)
    v[blocks, :, places_in] = values[stored].to(v.dtype)
    return out.copy_(_turned(queries, cos, sin).flatten(1))


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021) of `[rows, heads, head]`."""
    left, right = heads.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def _launch(
    x: Tensor, weight: Tensor, norm: Norm, rotary: Rotary, positions: Tensor, places: Tensor,
    k: Tensor, v: Tensor, eps: float, bias: Tensor | None, norms: HeadNorms | None, heads: int, out: Tensor,
    plan: ProductPlan, scratch: ProductScratch | None, pdl: bool,
    later: Tensor | None = None,
) -> None:  # fmt: skip
    from dflash.kernels import product_triton

    depth = x.shape[1]
    held = fitting_product_scratch(scratch, plan, x.device)
    of = launch_norm(x, norm)
    product_triton.qkv_kernel[(plan.column_tiles, plan.row_tiles, plan.splits)](
        of.x, weight, of.gain, of.squares, x if bias is None else bias,
        norms.q if norms else x, norms.k if norms else x, *rotary, positions, places, out, k, v, *held,
        of.x.stride(0), out.stride(0), *k.stride()[:3], *v.stride()[:3],
        len(x), depth, plan.blocks, of.parts, eps, norms.eps if norms else eps,
        *asked_later(later, pdl),
        HEADS=heads, KV_HEADS=k.shape[1], TURN=k.shape[3] // 2,
        BIAS=bias is not None, HEAD_NORM=norms is not None, **launch_options(plan, depth, of, pdl),
    )  # fmt: skip

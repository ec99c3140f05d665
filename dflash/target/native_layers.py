"""Layers on the native kernels: six launches at most for a layer, buffers that a CUDA graph can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.attention_checks import Impl
from dflash.kernels.attention_plan import Mode
from dflash.kernels.attention_scratch import Scratch
from dflash.kernels.gate_up import gate_up, gate_up_plan
from dflash.kernels.product_scratch import ProductScratch, product_scratch
from dflash.kernels.qkv_rope import Rotary, qkv_plan, qkv_rope
from dflash.kernels.row_norm import CarriedNorm, Norm, carried_norm
from dflash.kernels.row_product import row_plan, row_product
from dflash.kernels.tree_attention import attention_scratch
from dflash.target.layer_weights import LayerWeights, Sizes
from dflash.target.step_inputs import StepInputs

Attend = Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]


class Way(NamedTuple):
    """How kernels are run."""

    mode: Mode = "fast"
    impl: Impl = "triton"
    pdl: bool = True


class KeyValue(NamedTuple):
    """The cache of one layer, each `[lanes, KV heads, capacity, head]`."""

    keys: Tensor
    values: Tensor


class Rows(NamedTuple):
    """What a forward computes: `hidden` `[rows, hidden]` is read and overwritten."""

    hidden: Tensor
    positions: Tensor
    """int32 `[rows]`."""
    places: Tensor
    """int32 `[rows, 2]`: lane and cache row; a negative lane stores nothing."""
    rotary: Rotary


@dataclass(frozen=True, slots=True)
class Workspace:
    """Buffers of a forward of a fixed number of rows; one stream at a time may use them."""

    queries: Tensor
    attended: Tensor
    inner: Tensor
    mlp_norm: CarriedNorm
    """Of what follows the attention; the layer's weight stands in it while it runs."""
    next_norm: CarriedNorm
    """Of what follows a layer."""
    first_norm: CarriedNorm
    """Of embeddings."""
    scratch: ProductScratch | None

    @classmethod
    def make(cls, sizes: Sizes, layer: LayerWeights, rows: int, way: Way) -> Workspace:
        """Allocate for layers like this one."""
        like = layer.norm
        width = sizes.heads * sizes.head
        following = carried_norm(like, rows, sizes.inner, way.mode)
        return cls(
            like.new_empty(rows, width),
            like.new_empty(rows, width),
            like.new_empty(rows, sizes.inner),
            carried_norm(layer.mlp_norm, rows, width, way.mode),
            following,
            following._replace(squares=following.squares.new_empty(1, rows)),
            _scratch(sizes, layer, rows, way) if way.impl == "triton" else None,
        )

    def attention_scratch(
        self, sizes: Sizes, cache: KeyValue, inputs: StepInputs, tail: int, way: Way,
        pages: Tensor | None = None,
    ) -> Scratch | None:  # fmt: skip
        """Allocate what the attention kernels leave for their merge; nothing for the reference."""
        if way.impl != "triton":
            return None
        queries = sizes.by_lane(self.queries, len(inputs.lengths))
        shared = {"pages": pages, "mode": way.mode}
        return attention_scratch(queries, *cache, inputs.lengths, inputs.words, tail, **shared)


@dataclass(frozen=True, slots=True)
class StepSpace:
    """Buffers of steps of a number of lanes of a width, which see `tail` rows after their trunks."""

    inputs: StepInputs
    tail: int
    hidden: Tensor
    work: Workspace
    attention: Scratch | None
    taps: Tensor | None = None
    logits: Tensor | None = None
    pages: Tensor | None = None
    """int32 `[lanes, 1]`: where the cache's lanes are pages, which of them each lane is."""
    wanted: Tensor | None = None
    """int64 `[any number]`: the rows whose logits are wanted; None for all."""


def _scratch(sizes: Sizes, layer: LayerWeights, rows: int, way: Way) -> ProductScratch:
    whole = layer.head_norms is not None
    heads = sizes.heads + 2 * sizes.kv_heads
    plans = [
        qkv_plan(rows, heads, sizes.head, sizes.hidden, way.mode, whole_heads=whole),
        row_plan(rows, sizes.hidden, sizes.heads * sizes.head, way.mode),
        gate_up_plan(rows, sizes.inner, sizes.hidden, way.mode),
        row_plan(rows, sizes.hidden, sizes.inner, way.mode),
    ]
    return product_scratch(plans, layer.norm.device)


class Later(NamedTuple):
    """The weights of the layer that follows, asked for by the products of their like; None of the last."""

    qkv: Tensor | None = None
    out: Tensor | None = None
    gate_up: Tensor | None = None
    down: Tensor | None = None

    @classmethod
    def of(cls, layer: LayerWeights) -> Later:
        """Those of a layer."""
        return cls(layer.qkv, layer.out, layer.gate_up, layer.down)


class LayersOutput(NamedTuple):
    """What comes after the last layer."""

    hidden: Tensor
    """`[rows, hidden]`, before the final norm."""
    norm: Norm
    """The final norm, on its way; None where none was asked for."""


def run_layers(
    layers: Sequence[LayerWeights],
    sizes: Sizes,
    rows: Rows,
    norm: Norm,
    cache: Sequence[KeyValue],
    attend: Attend,
    space: Workspace,
    way: Way,
    kept: dict[int, Tensor] | None = None,
    final: Tensor | None = None,
) -> LayersOutput:
    """Run rows through all layers.

    Args:
        norm: of the rows, the first layer's.
        attend: given the layer's index, queries `[rows, heads x head]`, keys, values and where to write,
            `[rows, heads x head]`.
        kept: by index i, where the input of layer i is to stay, `[rows, hidden]`; of layers after the first.
            What comes after the last layer is not kept.
        final: weight of a norm that reads what comes after the last layer.
    """
    goals = {index: goal for index, goal in (kept or {}).items() if index < len(layers)}
    x = rows.hidden
    followers: list[LayerWeights | None] = [*layers[1:], None]
    for index, (layer, store, follower) in enumerate(zip(layers, cache, followers, strict=True)):
        gain = final if follower is None else follower.norm
        ahead = None if gain is None else space.next_norm._replace(gain=gain)
        out = goals.get(index + 1, rows.hidden)
        run_layer(
            layer, sizes, rows, store, partial(attend, index), space, way, x, norm, out, ahead, follower
        )
        x, norm = out, ahead
    return LayersOutput(x, norm)


def run_layer(
    layer: LayerWeights,
    sizes: Sizes,
    rows: Rows,
    store: KeyValue,
    attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    space: Workspace,
    way: Way,
    x: Tensor,
    norm: Norm,
    out: Tensor,
    ahead: CarriedNorm | None,
    follower: LayerWeights | None = None,
) -> None:
    """One layer from `x` `[rows, hidden]`, with its norm, to `out`, which may be the same, with the next.

    Each product asks for the weight of its like in the layer that follows, so that this one finds it in L2.
    """
    later = Later() if follower is None else Later.of(follower)
    shared = {"eps": sizes.eps, "scratch": space.scratch, **way._asdict()}
    mlp_norm = space.mlp_norm._replace(gain=layer.mlp_norm)
    qkv_rope(
        x, layer.qkv, norm, rows.rotary, rows.positions, rows.places, *store,
        bias=layer.qkv_bias, head_norms=layer.head_norms, out=space.queries,
        later=later.qkv, **shared,
    )  # fmt: skip
    seen = attend(space.queries, *store, space.attended)
    row_product(
        seen, layer.out, residual=x, bias=layer.out_bias, out=out, carry=mlp_norm,
        later=later.out, **shared,
    )  # fmt: skip
    gate_up(out, layer.gate_up, mlp_norm, out=space.inner, later=later.gate_up, **shared)
    row_product(space.inner, layer.down, residual=out, out=out, carry=ahead, later=later.down, **shared)


def final_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of hidden rows."""
    return torch.nn.functional.rms_norm(hidden, weight.shape, weight, eps)

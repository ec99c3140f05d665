"""The weights of a layer as the native kernels take them: packed, and shared with their modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dflash.kernels.qkv_rope import HeadNorms, Rotary


class LayerWeights(NamedTuple):
    """One pre-norm layer: attention with rotary positions, then a gated MLP with SiLU."""

    norm: Tensor
    """`[hidden]`."""
    qkv: Tensor
    """`[(heads + 2 x KV heads) x head, hidden]`."""
    qkv_bias: Tensor | None
    head_norms: HeadNorms | None
    out: Tensor
    """`[hidden, heads x head]`."""
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    """`[2 x inner, hidden]`."""
    down: Tensor
    """`[hidden, inner]`."""


class Sizes(NamedTuple):
    """What all layers of a model have in common."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    eps: float

    def by_lane(self, rows: Tensor, lanes: int) -> Tensor:
        """Queries `[rows, heads x head]` as `[lanes, width, heads, head]`."""
        return rows.view(lanes, -1, self.heads, self.head)


def pack(modules: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Lay the weights and biases of linear modules one behind the other; the modules keep views of them.

    Returns:
        Weights `[sum of outputs, inputs]` and biases, if all modules have them.
    """
    weight = torch.cat([module.weight.data for module in modules])
    biases = [module.bias.data for module in modules if module.bias is not None]
    bias = torch.cat(biases) if len(biases) == len(modules) else None
    start = 0
    for module in modules:
        end = start + module.out_features
        module.weight.data = weight[start:end]
        if bias is not None:
            module.bias.data = bias[start:end]
        start = end
    return weight, bias


def layer_weights(layer: Any, eps: float) -> LayerWeights:
    """Pack a decoder layer of transformers, or a block drafter's.

    Args:
        layer: has `self_attn`, `mlp`, `input_layernorm` and `post_attention_layernorm`.
        eps: of the head norms, where there are any.
    """
    attention, mlp = layer.self_attn, layer.mlp
    qkv, bias = pack([attention.q_proj, attention.k_proj, attention.v_proj])
    norms = None
    if getattr(attention, "q_norm", None) is not None:
        norms = HeadNorms(attention.q_norm.weight.data, attention.k_norm.weight.data, eps)
    out = attention.o_proj
    return LayerWeights(
        layer.input_layernorm.weight.data,
        qkv,
        bias,
        norms,
        out.weight.data,
        None if out.bias is None else out.bias.data,
        layer.post_attention_layernorm.weight.data,
        pack([mlp.gate_proj, mlp.up_proj])[0],
        mlp.down_proj.weight.data,
    )


@torch.inference_mode()
def rotary_table(rotary: nn.Module, positions: int, device: torch.device) -> Rotary:
    """Cosines and sines of positions 0, 1, … in float32, by the model's own module.

    Args:
        rotary: transformers' rotary embedding, one whose frequencies do not depend on the length.
    """
    like = torch.zeros(1, dtype=torch.float32, device=device)
    cos, sin = rotary(like, torch.arange(positions, device=device)[None])
    half = cos.shape[-1] // 2
    return Rotary(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())

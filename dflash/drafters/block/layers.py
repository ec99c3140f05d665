"""A layer of a block drafter, and the dynamic convolutions that DFlash 2 puts around its sublayers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash.drafters.block.attention import BlockAttention, KeyValue, Rotation
from dflash.drafters.block.config import BlockConfig, Convolution


class GatedMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """`[…, hidden]` to `[…, hidden]`."""
        return self.down_proj(functional.silu(self.gate_proj(rows)) * self.up_proj(rows))


class DynamicConvolution(nn.Module):
    """Two grouped causal filters along a block, one before a sublayer, one after it.

    Each row's filter is a learned base plus a correction made of that row; rows before the block are zero
    (DFlash 2).
    """

    def __init__(self, width: int, size: Convolution) -> None:
        super().__init__()
        self.size = size
        self.base_kernel = nn.Parameter(torch.zeros(2, size.kernel, width))
        self.kernel_projection = nn.Linear(width, 2 * size.kernel * (width // size.group), bias=False)
        # an untrained convolution changes nothing
        nn.init.ones_(self.base_kernel[:, 0])
        nn.init.zeros_(self.kernel_projection.weight)

    def kernels(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The filters before and after the sublayer, each `[…, block, kernel, hidden]`, of its normed input
        `[…, block, hidden]`.
        """
        change = self.kernel_projection(rows).unflatten(-1, (2, self.size.kernel, -1))
        whole = self.base_kernel.to(rows.dtype) + change.repeat_interleave(self.size.group, dim=-1)
        return whole[..., 0, :, :], whole[..., 1, :, :]


def convolve(rows: Tensor, kernel: Tensor) -> Tensor:
    """Sum of `kernel[…, i, t, :] * rows[…, i - t, :]` over t; `rows` `[…, block, hidden]`."""
    total = kernel[..., 0, :] * rows
    for back in range(1, min(kernel.shape[-2], rows.shape[-2])):
        earlier = functional.pad(rows[..., :-back, :], (0, 0, back, 0))
        total = total + kernel[..., back, :] * earlier
    return total


class BlockLayer(nn.Module):
    """Pre-norm attention and SwiGLU, as in Qwen3."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attention_conv: DynamicConvolution | None = None
        self.mlp_conv: DynamicConvolution | None = None
        if config.convolution is not None:
            self.attention_conv = DynamicConvolution(config.hidden_size, config.convolution)
            self.mlp_conv = DynamicConvolution(config.hidden_size, config.convolution)

    def forward(self, blocks: Tensor, rotation: Rotation, context: KeyValue, mask: Tensor) -> Tensor:
        """`blocks` `[B, A, block, hidden]`; the rest as in `BlockAttention`, rows being A x block."""

        def attention(rows: Tensor) -> Tensor:
            return self.self_attn(rows.flatten(1, 2), rotation, context, mask).view_as(rows)

        blocks = blocks + _filtered(self.attention_conv, attention, self.input_layernorm(blocks))
        return blocks + _filtered(self.mlp_conv, self.mlp, self.post_attention_layernorm(blocks))


def _filtered(
    convolution: DynamicConvolution | None, sublayer: Callable[[Tensor], Tensor], rows: Tensor
) -> Tensor:
    if convolution is None:
        return sublayer(rows)
    before, after = convolution.kernels(rows)
    return convolve(sublayer(convolve(rows, before)), after)

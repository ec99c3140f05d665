"""Attention of block rows over injected context and their own block."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash.drafters.block.config import BlockConfig


class Rotation(NamedTuple):
    """Cosines and sines of rotary positions, each `[B, rows, head]`."""

    cos: Tensor
    sin: Tensor


class KeyValue(NamedTuple):
    """Keys and values of one layer, each `[B, KV heads, rows, head]`; keys are normed and rotated."""

    keys: Tensor
    values: Tensor


class BlockAttention(nn.Module):
    """Grouped-query attention with normed heads, whose context enters as keys and values alone.

    Context rows have no queries: they pass through `k_proj` and `v_proj` once, when their tokens are
    committed (DFlash, arXiv 2602.06036, section 4).
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.group = config.heads // config.kv_heads
        width, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(width, config.heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.heads * config.head_dim, width, bias=bias)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)

    def key_value(self, rows: Tensor, rotation: Rotation) -> KeyValue:
        """Keys and values of `rows` `[B, rows, hidden]`, be they context or block."""
        keys = rotate(self.k_norm(self._heads(self.k_proj(rows))), rotation)
        return KeyValue(keys, self._heads(self.v_proj(rows)))

    def forward(self, block: Tensor, rotation: Rotation, context: KeyValue, mask: Tensor) -> Tensor:
        """Attend from block rows over context and block.

        Args:
            block: `[B, rows, hidden]`.
            rotation: Of the rows' positions.
            context: The layer's context, `[B, KV heads, context, head]`.
            mask: bool `[B, 1, rows, context + rows]`.

        Returns:
            `[B, rows, hidden]`.
        """
        queries = rotate(self.q_norm(self._heads(self.q_proj(block))), rotation)
        own = self.key_value(block, rotation)
        keys = torch.cat([context.keys, own.keys], dim=2)
        values = torch.cat([context.values, own.values], dim=2)
        if self.group > 1:
            keys = keys.repeat_interleave(self.group, dim=1)
            values = values.repeat_interleave(self.group, dim=1)
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.o_proj(seen.transpose(1, 2).flatten(2))

    def _heads(self, rows: Tensor) -> Tensor:
        """`[B, rows, heads x head]` as `[B, heads, rows, head]`."""
        return rows.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def rotate(states: Tensor, rotation: Rotation) -> Tensor:
    """Rotary positions on `[B, heads, rows, head]`, the head's halves paired."""
    left, right = states.chunk(2, dim=-1)
    turned = torch.cat([-right, left], dim=-1)
    return states * rotation.cos[:, None] + turned * rotation.sin[:, None]

"""Which context and block rows each row of a drafted block sees."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dflash.drafters.block.config import LayerMask


def block_masks(
    kinds: Iterable[LayerMask], anchors: Tensor, block: int, context: int
) -> dict[LayerMask, Tensor]:
    """The mask of each kind of layer, for blocks drafted from many anchors of each sequence at once.

    A row sees the context before its own anchor and the rows of its own block, so blocks of one forward know
    nothing of each other, nor of tokens from their anchor on.

    Args:
        kinds: The layers' masks; equal ones are made once.
        anchors: `[B, A]`, positions of the anchors; a negative one is padding, whose rows see their block.
        block: Rows of a block.
        context: Context rows; row j holds position j.

    Returns:
        By kind, bool `[B, 1, A x block, context + A x block]`, true where a row sees a key.
    """
    return {kind: _mask(kind, anchors, block, context) for kind in dict.fromkeys(kinds)}


def _mask(kind: LayerMask, anchors: Tensor, block: int, context: int) -> Tensor:
    batch, count = anchors.shape
    offsets = torch.arange(block, device=anchors.device)
    rows = anchors[:, :, None] + offsets
    keys = torch.arange(context, device=anchors.device)
    before = keys < anchors[:, :, None, None]
    if kind.window is not None:
        origin = anchors[:, :, None].expand_as(rows) if kind.from_anchor else rows
        before = before & (origin[..., None] - keys < kind.window)
    before = before.expand(batch, count, block, context).flatten(1, 2)
    own = _within_block(kind, offsets)
    same = torch.eye(count, dtype=torch.bool, device=anchors.device)
    # [A, block, A, block]: a block sees itself, as `own` says
    inside = (same[:, None, :, None] & own[None, :, None, :]).flatten(2).flatten(0, 1)
    return torch.cat([before, inside.expand(batch, -1, -1)], dim=-1)[:, None]


def _within_block(kind: LayerMask, offsets: Tensor) -> Tensor:
    """Bool `[block, block]`: which rows of its block each row sees."""
    ahead = offsets[None, :] - offsets[:, None]
    seen = ahead <= 0 if kind.causal else torch.ones_like(ahead, dtype=torch.bool)
    if kind.window is not None and not kind.from_anchor:
        seen = seen & (ahead.abs() < kind.window)
    return seen

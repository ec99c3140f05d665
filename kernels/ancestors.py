"""Trees as 64-bit words: bit j of a slot's word says that node j is the slot's node or an ancestor of it."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash.kernels.errors import DtypeRefused, ParentRefused, ShapeRefused

MAX_NODES = 64
PAD = -2


def check_parents(parents: Tensor) -> None:
    """Refuse trees whose parents do not come before their children; reads the values on the host.

    Args:
        parents: integer `[B, n]`, -1 = anchor, -2 = pad.

    Raises:
        ParentRefused: names the first offending lane and node.
    """
    values = parents.detach().cpu().to(torch.int64)
    wrong = (values < PAD) | (values >= torch.arange(values.shape[1]))
    if bool(wrong.any()):
        lane, node = (int(i) for i in wrong.nonzero()[0])
        raise ParentRefused(lane, node, int(values[lane, node]), parents.shape)


def ancestor_words(parents: Tensor, *, check: bool = True) -> Tensor:
    """Return the words of all slots of a batch of trees.

    Args:
        parents: int16, int32 or int64 `[B, n]`, n ≤ 64; -1 = anchor, -2 = pad; parents before children.
        check: look at the values first, which makes a CUDA host wait; pass False inside a graph capture.

    Returns:
        int64 `[B, n + 1]`: slot 0 is the anchor (word 0), slot i + 1 is node i; pads have word 0.

    Raises:
        ShapeRefused, DtypeRefused, ParentRefused: before anything is computed.
    """
    if parents.dim() != 2 or parents.shape[1] > MAX_NODES:
        raise ShapeRefused("parents", f"[lanes, nodes] with at most {MAX_NODES} nodes", parents.shape)
    if parents.dtype not in (torch.int16, torch.int32, torch.int64):
        raise DtypeRefused("parents", "int16, int32 or int64", parents.dtype, parents.shape)
    if check:
        check_parents(parents)
    lanes, nodes = parents.shape
    slot = torch.arange(nodes + 1, device=parents.device)
    own = torch.ones_like(slot) << (slot - 1).clamp_min(0)
    up = torch.nn.functional.pad(parents.to(torch.int64) + 1, (1, 0))
    words = torch.where(up >= 0, own.expand(lanes, -1), 0)
    words[:, 0] = 0
    up = up.clamp_min(0)
    for _ in range(max(nodes - 1, 0).bit_length()):
        words = words | words.gather(1, up)
        up = up.gather(1, up)
    return words

"""What a device round knows of its lanes and of the tree that each drafts, as tensors that graphs read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash.kernels.ancestors import MAX_NODES, ancestor_words
from dflash.kernels.errors import ShapeRefused


class RoundLanes(NamedTuple):
    """The lanes' requests; every tensor has one row a lane."""

    live: Tensor
    """int32: 1 while the request decodes, else 0."""
    lengths: Tensor
    """int32: trunk rows in the caches, which is the anchor's position."""
    anchors: Tensor
    """int32: the anchor's token."""
    left: Tensor
    """int32: tokens that may still be emitted."""
    temperatures: Tensor
    """float32: the target's; 0 is greedy."""
    draft_temperatures: Tensor
    """float32: the drafter's; 0 takes the largest logits."""
    keys: Tensor
    """int32 `[lanes, 2]`: the bits of the request's Philox key."""

    @classmethod
    def make(cls, lanes: int, device: torch.device | str) -> RoundLanes:
        """Allocate lanes that hold nothing."""
        whole = torch.zeros((5, lanes), dtype=torch.int32, device=device)
        floats = torch.zeros((2, lanes), dtype=torch.float32, device=device)
        return cls(*whole[:4], *floats, torch.zeros((lanes, 2), dtype=torch.int32, device=device))


class RoundTree(NamedTuple):
    """A tree that branches at the anchor alone: `branches` chains of `length` nodes.

    Node (depth - 1) * branches + b is the one at this depth of branch b; a token of -1 is a node that could
    not be drawn.
    """

    length: int
    branches: int
    parents: Tensor
    """int32 `[lanes, nodes]`, -1 = anchor."""
    words: Tensor
    """int64 `[lanes, nodes + 1]` of `ancestor_words`."""
    depths: Tensor
    """int32 `[nodes + 1]`, by slot."""
    children: Tensor
    """int32 `[nodes + 1, most children]`: nodes under each slot, -1 for none."""

    @property
    def nodes(self) -> int:
        """Nodes of the whole tree."""
        return self.length * self.branches

    @property
    def expanded(self) -> int:
        """Slots with children, which are the first ones."""
        return 1 + (self.length - 1) * self.branches if self.length else 0

    @classmethod
    def make(cls, length: int, branches: int, lanes: int, device: torch.device | str) -> RoundTree:
        """Lay out a tree.

        Raises:
            ShapeRefused: it has more rows than a word has bits.
        """
        nodes = length * branches
        if branches < 1 or length < 0 or nodes >= MAX_NODES:
            raise ShapeRefused("tree", f"at most {MAX_NODES - 1} nodes", (length, branches))
        parents = torch.arange(-branches, nodes - branches, dtype=torch.int32).clamp_min(-1)
        depths = torch.tensor([0, *(1 + node // branches for node in range(nodes))], dtype=torch.int32)
        children = torch.full((nodes + 1, branches), -1, dtype=torch.int32)
        if nodes:
            children[0] = torch.arange(branches)
            children[1 : nodes - branches + 1, 0] = torch.arange(branches, nodes)
        whole = parents.expand(lanes, -1).contiguous()
        placed = (whole, ancestor_words(whole), depths, children)
        return cls(length, branches, *(tensor.to(device) for tensor in placed))

    def row_words(self, width: int) -> Tensor:
        """Words int64 `[lanes, width]` of the rows anchor, nodes, padding: bit j speaks of row j."""
        words = torch.zeros((len(self.words), width), dtype=torch.int64, device=self.words.device)
        words[:, : self.nodes + 1] = (self.words << 1) | 1
        return words

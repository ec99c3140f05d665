"""Prompt lookup: what followed earlier occurrences of the trunk's last tokens (no model)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.drafters.base import SCORED_CUTS, Anchor, Drafter, DraftShape, Proposal, ProposalKind, entry

Tokens = NDArray[np.int64]


class NgramDrafter(Drafter):
    """Branches are the distinct next tokens after the longest matching suffix, most recent occurrence first.

    Each branch is a chain that copies what followed its occurrence. Branches differ in their first token, so
    a shorter or narrower draft is the recorded one, cut. Longer suffixes win over shorter ones (prompt lookup
    decoding; `longest` and `shortest` are the suffix lengths tried). A node's confidence is the share of the
    occurrences with the same tokens before it that agree with it.
    """

    name = "ngram"
    family = "ngram"

    def __init__(self, longest: int = 3, shortest: int = 1) -> None:
        super().__init__(ProposalKind.DETERMINISTIC)
        self.longest = longest
        self.shortest = shortest

    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """Look every anchor up in its own trunk."""
        return [self._propose(np.asarray(anchor.trunk[: anchor.position + 1]), shape) for anchor in anchors]

    def _propose(self, trunk: Tokens, shape: DraftShape) -> Proposal:
        proposal = Proposal()
        if shape.length == 0:
            return proposal
        for starts, share in self._occurrences(trunk, shape.branches):
            _copy(proposal, trunk, starts, share, shape.length)
        return proposal

    def _occurrences(self, trunk: Tokens, branches: int) -> list[tuple[Tokens, float]]:
        """The places of each branch's first token, the latest first, and its share of the matches."""
        chosen: dict[int, tuple[Tokens, float]] = {}
        for size in range(min(self.longest, len(trunk) - 1), self.shortest - 1, -1):
            windows = np.lib.stride_tricks.sliding_window_view(trunk[:-1], size)
            starts = np.flatnonzero((windows == trunk[-size:]).all(axis=1))[::-1] + size
            following = trunk[starts]
            for token in dict.fromkeys(following.tolist()):
                if len(chosen) == branches:
                    return list(chosen.values())
                if token not in chosen:
                    same = following == token
                    chosen[token] = (starts[same], float(same.mean()))
        return list(chosen.values())

    def header(self) -> dict[str, Any]:
        """Suffix lengths tried; every cut equals a live draft."""
        lengths = {"longest": self.longest, "shortest": self.shortest}
        return entry(self.name, self.family, self.kind, cuts=[*SCORED_CUTS], **lengths)


def _copy(proposal: Proposal, trunk: Tokens, starts: Tokens, share: float, length: int) -> None:
    """Append what followed the first of some places, each node with the share of the places that agree."""
    parent = -1
    for token in trunk[starts[0] : starts[0] + length].tolist():
        parent = proposal.add(token, parent, confidence=share)
        starts = starts[starts + 1 < len(trunk)] + 1
        if len(starts):
            same = trunk[starts] == trunk[starts[0]]
            starts, share = starts[same], float(same.mean())

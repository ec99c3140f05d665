"""Prompt lookup: what followed earlier occurrences of the trunk's last tokens (no model)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.drafters.base import CUTS, Anchor, Drafter, DraftShape, Proposal, ProposalKind, entry


class NgramDrafter(Drafter):
    """Branches are the distinct next tokens after the longest matching suffix, most recent occurrence first.

    Each branch is a chain that copies what followed its occurrence. Branches differ in their first token, so
    a shorter or narrower draft is the recorded one, cut. Longer suffixes win over shorter ones (prompt lookup
    decoding; `longest` and `shortest` are the suffix lengths tried).
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

    def _propose(self, trunk: NDArray[np.int64], shape: DraftShape) -> Proposal:
        proposal = Proposal()
        if shape.length == 0:
            return proposal
        for start, share in self._occurrences(trunk, shape.branches).items():
            parent = -1
            for token in trunk[start : start + shape.length].tolist():
                parent = proposal.add(token, parent, confidence=share if parent < 0 else None)
        return proposal

    def _occurrences(self, trunk: NDArray[np.int64], branches: int) -> dict[int, float]:
        """Where each branch copies from, with the share of matches that agree with its first token."""
        chosen: dict[int, tuple[int, float]] = {}
        for size in range(min(self.longest, len(trunk) - 1), self.shortest - 1, -1):
            windows = np.lib.stride_tricks.sliding_window_view(trunk[:-1], size)
            starts = np.flatnonzero((windows == trunk[-size:]).all(axis=1)) + size
            following = trunk[starts]
            for start, token in zip(starts[::-1].tolist(), following[::-1].tolist(), strict=True):
                if len(chosen) == branches:
                    return dict(chosen.values())
                if token not in chosen:
                    chosen[token] = (start, float((following == token).mean()))
        return dict(chosen.values())

    def header(self) -> dict[str, Any]:
        """Suffix lengths tried; cuts that need no confidence equal a live draft."""
        lengths = {"longest": self.longest, "shortest": self.shortest}
        return entry(self.name, self.family, self.kind, cuts=[*CUTS], **lengths)

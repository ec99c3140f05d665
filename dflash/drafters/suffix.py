"""Suffix decoding: continue the longest suffix of the trunk that was seen before, by frequency (no model)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.drafters.base import SCORED_CUTS, Anchor, Drafter, DraftShape, Proposal, ProposalKind, entry

Tokens = NDArray[np.int64]
_BREAK = -1
_LONGEST = 32


@dataclass(frozen=True, slots=True)
class SuffixStore:
    """Token sequences of earlier requests, frozen before a run; a break stands between any two."""

    tokens: Tokens

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> SuffixStore:
        """Freeze some sequences, in their order."""
        parts = [np.array([*sequence, _BREAK], dtype=np.int64) for sequence in sequences]
        return cls(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))

    @property
    def digest(self) -> str | None:
        """SHA-256 of the tokens as little-endian int64; None for an empty store."""
        return hashlib.sha256(self.tokens.astype("<i8").tobytes()).hexdigest() if len(self.tokens) else None


class SuffixDrafter(Drafter):
    """Branches are the next tokens that most often followed the longest matching suffix, then shorter ones.

    Each branch goes on with the token that most often followed it among its own matches, the latest winning
    ties. Drafts read the request's own trunk up to the anchor and a frozen store; the share of matches that
    agree is the confidence, never q (SuffixDecoding, arXiv 2411.04975).
    """

    name = "suffix"
    family = "suffix"

    def __init__(self, store: SuffixStore | None = None) -> None:
        super().__init__(ProposalKind.DETERMINISTIC)
        self.store = store or SuffixStore.of([])

    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """Match every anchor against the store and its own trunk."""
        return [self._propose(np.asarray(a.trunk[: a.position + 1], dtype=np.int64), shape) for a in anchors]

    def _propose(self, trunk: Tokens, shape: DraftShape) -> Proposal:
        proposal = Proposal()
        if shape.length == 0:
            return proposal
        text = np.concatenate([self.store.tokens, trunk])
        for starts, share in _branches(text, len(trunk), shape.branches):
            _follow(proposal, text, starts, share, shape.length)
        return proposal

    def header(self) -> dict[str, Any]:
        """Digest of the store; every cut equals a live draft."""
        facts = {"store_digest": self.store.digest, "store_tokens": int((self.store.tokens != _BREAK).sum())}
        return entry(self.name, self.family, self.kind, cuts=[*SCORED_CUTS], **facts)


def _branches(text: Tokens, own: int, count: int) -> list[tuple[Tokens, float]]:
    """Up to `count` branches: where each one's first token stands in `text`, and its share of the matches."""
    chosen: dict[int, tuple[Tokens, float]] = {}
    for ends in reversed(_matches(text, own)):
        following = text[ends + 1]
        starts = ends[following != _BREAK] + 1
        tokens, first, counts = np.unique(text[starts][::-1], return_index=True, return_counts=True)
        # most frequent first, the latest occurrence among equals
        for index in np.lexsort((first, -counts)):
            token = int(tokens[index])
            if len(chosen) < count and token not in chosen:
                chosen[token] = (starts[text[starts] == token], float(counts[index] / len(starts)))
        if len(chosen) == count:
            break
    return list(chosen.values())


def _matches(text: Tokens, own: int) -> list[Tokens]:
    """For each suffix length 1, 2, … of the trunk, the ends of its earlier occurrences, if any."""
    found: list[Tokens] = []
    ends = np.flatnonzero(text[:-1] == text[-1])
    for size in range(1, min(own, _LONGEST) + 1):
        if not len(ends):
            break
        found.append(ends)
        ends = ends[ends >= size]
        ends = ends[text[ends - size] == text[-1 - size]] if size < own else ends[:0]
    return found


def _follow(proposal: Proposal, text: Tokens, starts: Tokens, share: float, length: int) -> None:
    """Append the branch whose first token stands at `starts`, one node a step."""
    parent = -1
    for _ in range(length):
        parent = proposal.add(int(text[starts[0]]), parent, confidence=share)
        ahead = starts[starts + 1 < len(text)] + 1
        ahead = ahead[text[ahead] != _BREAK]
        if not len(ahead):
            return
        tokens, first, counts = np.unique(text[ahead][::-1], return_index=True, return_counts=True)
        best = np.lexsort((first, -counts))[0]
        starts, share = ahead[text[ahead] == tokens[best]], float(counts[best] / len(ahead))

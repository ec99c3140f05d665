"""Draw trees from draft logits, level by level: the part that every drafter with a law q shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash.drafters.base import Anchor, DraftShape, Proposal, ProposalKind, SlotLaw
from dflash.drafters.fan import Fan
from dflash.drafters.race import draw, ranked_law, slot_law
from dflash.policy.context import DraftSampling
from dflash.policy.noise import draft_exponentials
from dflash.target.noise import TargetNoise
from dflash.target.sampling import topk


@dataclass(slots=True)
class Growth:
    """A tree in the making.

    By node, the anchor's under -1, `branches` holds how many branches go through it, `paths` its sibling
    ranks from the anchor. `frontier` lists the nodes to expand next.
    """

    anchor: Anchor
    fan: Fan
    branches: dict[int, int]
    proposal: Proposal = field(default_factory=Proposal)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [-1])
    depth: int = 0

    @property
    def tokens(self) -> list[int]:
        """The tokens of the frontier; the anchor's own at the start."""
        anchor = self.anchor.trunk[self.anchor.position]
        return [self.proposal.tokens[node] if node >= 0 else anchor for node in self.frontier]


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a drafter makes q of its logits, and draws.

    Siblings are the best of one race, so they are drawn without replacement; the `fan` says how many there
    are, without one all of them stand at the anchor. The law q follows the target's temperature in each
    request if `follow_target`, else `sampling`. `shared` races run on the target's noise at the token's
    position, `independent` ones on noise keyed by the anchor, `deterministic` ones take the largest logits.
    """

    kind: ProposalKind
    sampling: DraftSampling
    follow_target: bool
    noise: TargetNoise
    store_topk: int
    fan: Fan | None = None

    def sampling_at(self, temperature: float) -> DraftSampling:
        """Draft processing: the best logits where the target is greedy or proposals are deterministic."""
        greedy = temperature == 0 or self.kind is ProposalKind.DETERMINISTIC
        followed = temperature if self.follow_target else self.sampling.temperature
        return replace(self.sampling, temperature=0.0 if greedy else followed)

    def start(self, anchor: Anchor, shape: DraftShape) -> Growth:
        """A tree of nothing but its anchor."""
        fan = Fan(self.fan.children[: shape.length]) if self.fan else Fan((shape.branches,))
        return Growth(anchor, fan, {-1: min(shape.branches, fan.branches)})

    def grow(self, tree: Growth, logits: Tensor, confidence: Sequence[float | None] | None = None) -> None:
        """Draw the children of every frontier node, which become the frontier.

        Args:
            tree: Grown by one level.
            logits: `[frontier, vocabulary]`; a token at -inf can not be drawn.
            confidence: By frontier node, what its children are expected to be accepted with.
        """
        tree.depth += 1
        sampling = self.sampling_at(tree.anchor.temperature)
        raw = logits.double()
        lse = torch.logsumexp(raw, -1).cpu().numpy()
        best, ids = (part.cpu().numpy() for part in topk(raw, max(self.store_topk, sampling.top_k, 2)))
        parents, tree.frontier = tree.frontier, []
        for row, parent in enumerate(parents):
            tree.proposal.lse[parent] = float(lse[row])
            tree.proposal.topk_tokens[parent] = ids[row, : self.store_topk].astype(np.int32)
            tree.proposal.topk_logits[parent] = best[row, : self.store_topk].astype(np.float32)
            if sampling.top_k:
                law = ranked_law(ids[row, : sampling.top_k], best[row, : sampling.top_k], sampling)
            else:
                law = slot_law(raw[row].cpu().numpy(), sampling)
            margin = float(best[row, 0] - best[row, 1])
            self._draw(tree, law, parent, margin, confidence[row] if confidence else None)

    def _draw(self, tree: Growth, law: SlotLaw, parent: int, margin: float, confidence: float | None) -> None:
        path = tree.paths[parent] if parent >= 0 else ()
        shares = tree.fan.shares(tree.depth, tree.branches[parent])
        noise = self._noise(tree.anchor, path, tree.depth)
        if noise is not None:
            tree.proposal.law[parent] = law
        for rank, sibling in enumerate(draw(law, noise, len(shares))):
            node = tree.proposal.add(
                sibling.token,
                parent,
                log_q=sibling.log_q,
                rank=sibling.rank,
                draft_gap=sibling.draft_gap,
                margin=margin,
                confidence=confidence,
            )
            tree.branches[node] = shares[rank]
            tree.paths.append((*path, rank))
            tree.frontier.append(node)

    def _noise(self, anchor: Anchor, path: tuple[int, ...], depth: int) -> NDArray[np.floating[Any]] | None:
        if self.sampling_at(anchor.temperature).temperature == 0:
            return None
        if self.kind is ProposalKind.SHARED:
            return self.noise.log_exponentials(anchor.key, anchor.position + depth)
        return np.log(draft_exponentials(anchor.key, anchor.position, depth, path, self.noise.vocabulary))

    def log_q(self, logits: NDArray[np.float64], token: int, temperature: float) -> float:
        """log q of one token under raw draft logits `[vocabulary]`; -inf where it can not be drawn."""
        law = slot_law(logits, self.sampling_at(temperature))
        place = np.flatnonzero(law.tokens == token)
        return float(law.log_q[place[0]]) if len(place) else -np.inf

    def header(self) -> dict[str, Any]:
        """How q is made and how trees fork, as entries of a drafter in the header."""
        tree = {"tree": list(self.fan.children)} if self.fan else {}
        if self.kind is ProposalKind.DETERMINISTIC:
            return tree
        return tree | {
            "draft_temperature": self.sampling.temperature,
            "draft_top_k": self.sampling.top_k or None,
            "draft_top_p": self.sampling.top_p,
            "draft_follows_target": self.follow_target,
        }

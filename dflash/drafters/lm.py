"""Draft with a language model of the target's tokenizer, token by token, siblings branching at the anchor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.drafters.base import Anchor, Drafter, DraftShape, Proposal, ProposalKind, entry
from dflash.drafters.race import draw, slot_law
from dflash.policy.context import DraftSampling
from dflash.policy.noise import draft_exponentials
from dflash.target.model import TrunkModel
from dflash.target.noise import TargetNoise
from dflash.target.sampling import topk
from dflash.target.scratch import LaneRows


@dataclass(slots=True)
class _Draft:
    """A tree in the making: its nodes' sibling ranks from the anchor, and the nodes to expand next."""

    anchor: Anchor
    proposal: Proposal = field(default_factory=Proposal)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [-1])


class LanguageModelDrafter(Drafter):
    """Branches share the trunk's keys and values up to the fork, then each holds its own chain.

    Siblings at the anchor are the best of one race, so they are drawn without replacement; deeper nodes are
    single draws. `shared` races run on the target's noise at the token's position, `independent` ones on
    noise keyed by the anchor, `deterministic` ones take the largest logits.
    """

    family = "model"

    def __init__(
        self,
        name: str,
        model: TrunkModel,
        kind: ProposalKind,
        shape: DraftShape,
        sampling: DraftSampling,
        follow_target: bool,
        noise: TargetNoise,
        store_topk: int,
        identity: Mapping[str, Any],
    ) -> None:
        super().__init__(kind, shape)
        self.name = name
        self.model = model
        self.sampling = sampling
        self.follow_target = follow_target
        self.noise = noise
        self.store_topk = store_topk
        self._identity = dict(identity)

    def open(self, lane: int) -> None:
        """Forget the lane's previous trunk."""
        self.model.reset(lane)

    def propose(self, anchors: Sequence[Anchor]) -> list[Proposal]:
        """Bring each lane's trunk up to its anchor, then draft all trees level by level."""
        drafts = [_Draft(anchor) for anchor in anchors]
        if self.shape.length == 0:
            return [draft.proposal for draft in drafts]
        logits = [self._catch_up(anchor) for anchor in anchors]
        for depth in range(1, self.shape.length + 1):
            for draft, rows in zip(drafts, logits, strict=True):
                self._expand(draft, rows, depth)
            if depth < self.shape.length:
                logits = self._score(drafts)
        for anchor in anchors:
            self.model.drop_nodes(anchor.lane)
        return [draft.proposal for draft in drafts]

    def _catch_up(self, anchor: Anchor) -> torch.Tensor:
        known = self.model.length(anchor.lane)
        return self.model.append(anchor.lane, anchor.trunk[known : anchor.position + 1]).logits

    def _score(self, drafts: Sequence[_Draft]) -> list[torch.Tensor]:
        batch = [
            LaneRows(
                draft.anchor.lane,
                [draft.proposal.tokens[node] for node in draft.frontier],
                [draft.proposal.parents[node] for node in draft.frontier],
            )
            for draft in drafts
        ]
        return [rows.logits for rows in self.model.score(batch)]

    def _expand(self, draft: _Draft, logits: torch.Tensor, depth: int) -> None:
        """Draw the children of every frontier node from `logits` [frontier, vocabulary]."""
        raw = logits.double()
        lse = torch.logsumexp(raw, -1).cpu().numpy()
        values, tokens = topk(raw, max(self.store_topk, 2))
        parents, draft.frontier = draft.frontier, []
        for row, parent in enumerate(parents):
            top = values[row].cpu().numpy()
            draft.proposal.lse[parent] = float(lse[row])
            draft.proposal.topk_tokens[parent] = tokens[row, : self.store_topk].cpu().numpy().astype(np.int32)
            draft.proposal.topk_logits[parent] = top[: self.store_topk].astype(np.float32)
            self._draw(draft, raw[row].cpu().numpy(), parent, depth, float(top[0] - top[1]))

    def _draw(
        self, draft: _Draft, logits: NDArray[np.float64], parent: int, depth: int, margin: float
    ) -> None:
        path = draft.paths[parent] if parent >= 0 else ()
        law = slot_law(logits, self.sampling_at(draft.anchor.temperature))
        noise = self._noise(draft.anchor, path, depth, len(logits))
        siblings = draw(law, noise, self.shape.branches if depth == 1 else 1)
        if noise is not None:
            draft.proposal.law[parent] = law
        for rank, sibling in enumerate(siblings):
            node = draft.proposal.add(
                sibling.token,
                parent,
                log_q=sibling.log_q,
                rank=sibling.rank,
                draft_gap=sibling.draft_gap,
                margin=margin,
            )
            draft.paths.append((*path, rank))
            draft.frontier.append(node)

    def _noise(
        self, anchor: Anchor, path: tuple[int, ...], depth: int, vocabulary: int
    ) -> NDArray[np.float64] | None:
        if self.sampling_at(anchor.temperature).temperature == 0:
            return None
        if self.kind is ProposalKind.SHARED:
            return self.noise.log_exponentials(anchor.key, anchor.position + depth)[:vocabulary]
        return np.log(draft_exponentials(anchor.key, anchor.position, depth, path, vocabulary))

    def sampling_at(self, temperature: float) -> DraftSampling:
        """Draft processing: the best logits where the target is greedy or proposals are deterministic."""
        greedy = temperature == 0 or self.kind is ProposalKind.DETERMINISTIC
        followed = temperature if self.follow_target else self.sampling.temperature
        return replace(self.sampling, temperature=0.0 if greedy else followed)

    def header(self) -> dict[str, Any]:
        """The model's identity and how q is made; both cuts equal a live draft."""
        law: dict[str, Any] = {}
        if self.kind is not ProposalKind.DETERMINISTIC:
            law = {
                "draft_temperature": self.sampling.temperature,
                "draft_top_k": self.sampling.top_k or None,
                "draft_top_p": self.sampling.top_p,
                "draft_follows_target": self.follow_target,
            }
        return entry(self.name, self.family, self.kind, cuts=["length", "branches"], **law, **self._identity)

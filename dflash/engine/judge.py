"""One round as the target sees it: the columns of the tree, of the target's say, and of the residual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.drafters.base import Anchor, Proposal
from dflash.engine.residual import residual_columns
from dflash.target.noise import TargetNoise
from dflash.target.sampling import Sampling
from dflash.target.statistics import TargetLaw, node_statistics, target_law

Row = dict[str, Any]


class Judge:
    """Turns a proposal and the target's logits into a row, every number as it will be stored.

    `emits_choice` says that a failed draft is replaced by the choice, `scaled` that what replaces it is drawn
    from block verification's residual, `trunk_is_choices` that every committed token is a choice.
    """

    def __init__(
        self,
        noise: TargetNoise,
        store_topk: int,
        *,
        emits_choice: bool = True,
        scaled: bool = False,
        trunk_is_choices: bool = True,
    ) -> None:
        self.noise = noise
        self.store_topk = store_topk
        self.emits_choice = emits_choice
        self.scaled = scaled
        self.trunk_is_choices = trunk_is_choices

    def row(
        self,
        anchor: Anchor,
        proposal: Proposal,
        logits: torch.Tensor,
        sampling: Sampling,
    ) -> Row:
        """Columns of identity, tree and target for one round; `logits` [nodes + 1, vocabulary]."""
        return self._columns(anchor, proposal, self._law(anchor, proposal, logits, sampling))

    def dense_row(
        self,
        anchor: Anchor,
        proposal: Proposal,
        logits: torch.Tensor,
        sampling: Sampling,
    ) -> Row:
        """The same for a dense row, with what the target thinks of the trunk's own next token."""
        law = self._law(anchor, proposal, logits, sampling)
        row = self._columns(anchor, proposal, law)
        committed = anchor.trunk[anchor.position + 1]
        first = torch.zeros(1, dtype=torch.long, device=logits.device)
        trunk_logp = law.log_p(first, first + committed)
        off_trajectory = int(row["slot_choice"][0]) != committed if self.trunk_is_choices else None
        return row | {"trunk_logp": float(trunk_logp[0]), "off_trajectory": off_trajectory}

    def _law(self, anchor: Anchor, proposal: Proposal, logits: torch.Tensor, sampling: Sampling) -> TargetLaw:
        noise = self._noise(anchor, proposal, logits, sampling)
        return target_law(logits, sampling, self.store_topk, noise)

    def _columns(self, anchor: Anchor, proposal: Proposal, law: TargetLaw) -> Row:
        row: Row = {
            "anchor_position": anchor.position,
            "anchor_token": anchor.trunk[anchor.position],
            **_tree(proposal),
            **_expanded(proposal, law),
            **law.slots,
            **node_statistics(law, proposal.tokens, proposal.parents),
        }
        row |= residual_columns(anchor, proposal, law, row, self.emits_choice, self.scaled)
        return row

    def _noise(
        self, anchor: Anchor, proposal: Proposal, logits: torch.Tensor, sampling: Sampling
    ) -> torch.Tensor | None:
        if sampling.greedy:
            return None
        depths = [0]
        for parent in proposal.parents:
            depths.append(depths[parent + 1] + 1)
        rows = [self.noise.log_exponentials(anchor.key, anchor.position + 1 + depth) for depth in depths]
        return torch.from_numpy(np.stack(rows)).to(logits.device)


def _tree(proposal: Proposal) -> Row:
    return {
        "node_token": np.array(proposal.tokens, dtype=np.int32),
        "node_parent": np.array(proposal.parents, dtype=np.int16),
        "node_source": np.array(proposal.source, dtype=np.int8),
        "node_rank": np.ma.masked_equal([-1 if rank is None else rank for rank in proposal.rank], -1),
        "node_logq": np.array(proposal.log_q, dtype=np.float32),
        "node_draft_gap": _optional(proposal.draft_gap),
        "node_margin": _optional(proposal.margin),
        "node_confidence": _optional(proposal.confidence),
    }


def _expanded(proposal: Proposal, law: TargetLaw) -> Row:
    slots = sorted(proposal.lse)
    tokens = [proposal.topk_tokens[slot] for slot in slots]
    target = [
        law.logits[slot + 1, torch.as_tensor(ids.astype(np.int64), device=law.logits.device)]
        for slot, ids in zip(slots, tokens, strict=True)
    ]
    lse = np.full(len(proposal) + 1, np.nan, dtype=np.float32)
    lse[[slot + 1 for slot in slots]] = [proposal.lse[slot] for slot in slots]
    return {
        "draft_lse": lse,
        "draft_topk_token": _joined(tokens, np.int32),
        "draft_topk_logit": _joined([proposal.topk_logits[slot] for slot in slots], np.float32),
        "draft_topk_target_logit": _joined([logits.cpu().numpy() for logits in target], np.float32),
    }


def _joined(parts: Sequence[NDArray[Any]], dtype: Callable[..., Any]) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype=dtype)


def _optional(values: Sequence[float | None]) -> NDArray[np.float32]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float32)

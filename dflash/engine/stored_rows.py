"""Rows of a draft file as the engine sees them: anchors and proposals, exactly as they were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dflash.drafters.base import Anchor, Proposal, ProposalKind, SlotLaw
from dflash.drafters.race import slot_law
from dflash.draftfile.summary import Kind
from dflash.policy.context import RuleContext

Stored = Mapping[str, Any]


def trunk_of(rows: Sequence[Stored]) -> list[int]:
    """Prompt and committed tokens of a request, given all of its rows in order."""
    trunk = list(rows[0]["prompt_tokens"] or ())
    for row in rows:
        if row["kind"] in (Kind.PREFILL, Kind.LIVE):
            path = [row["node_token"][node] for node in row["accepted_nodes"]]
            trunk += [*path, row["bonus_token"]][: row["emitted"]]
    return trunk


def anchor_of(row: Stored, key: tuple[int, int], trunk: Sequence[int], temperature: float) -> Anchor:
    """Where a row was drafted from, in lane 0."""
    return Anchor(0, row["anchor_position"], key, trunk, temperature)


def proposal_of(row: Stored, context: RuleContext) -> Proposal:
    """The drafted tree of a row; laws only where q is stored whole and of one kind."""
    proposal = Proposal(
        tokens=list(row["node_token"]),
        source=list(row["node_source"]),
        parents=list(row["node_parent"]),
        rank=list(row["node_rank"]),
        log_q=list(row["node_logq"]),
        draft_gap=list(row["node_draft_gap"]),
        margin=list(row["node_margin"]),
        confidence=list(row["node_confidence"]),
    )
    expanded = [slot - 1 for slot, lse in enumerate(row["draft_lse"]) if lse is not None]
    if not expanded:
        return proposal
    tokens = np.array(row["draft_topk_token"], dtype=np.int32).reshape(len(expanded), -1)
    logits = np.array(row["draft_topk_logit"], dtype=np.float32).reshape(len(expanded), -1)
    for place, node in enumerate(expanded):
        proposal.lse[node] = row["draft_lse"][node + 1]
        proposal.topk_tokens[node], proposal.topk_logits[node] = tokens[place], logits[place]
        if knows_q(context) and node in proposal.parents:
            law = slot_law(logits[place].astype(np.float64), context.draft)
            proposal.law[node] = SlotLaw(tokens[place, law.tokens].astype(np.int64), law.log_q)
    return proposal


def knows_q(context: RuleContext) -> bool:
    """Whether sampled drafts follow one law that the file holds whole."""
    return context.sampled and context.q_complete and context.proposal is not ProposalKind.MIXED

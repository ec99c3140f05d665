"""The part of a policy's shape that cuts after drafting, applied to the drafts before they are scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dflash.drafters.base import Anchor, Proposal
from dflash.policy.rounds import Rounds

Value = TypeVar("Value")


def trimmed(
    anchors: Sequence[Anchor], proposals: Sequence[Proposal], cut: Callable[[Rounds], Rounds]
) -> list[Proposal]:
    """Cut drafted trees as replay cuts recorded ones: on the values as they would be stored.

    Args:
        anchors: one a tree.
        proposals: the trees.
        cut: of a `Shape`, whose `length` and `branches` have shaped the trees already.

    Raises:
        DraftScoreMissing: a cut by confidence meets nodes of which the drafter states none.
    """
    left = cut(rounds_of(anchors, proposals))
    bounds = zip(left.node_offsets[:-1], left.node_offsets[1:], strict=True)
    kept = [left.node_index[begin:end].tolist() for begin, end in bounds]
    return [keep(proposal, nodes) for proposal, nodes in zip(proposals, kept, strict=True)]


def rounds_of(anchors: Sequence[Anchor], proposals: Sequence[Proposal]) -> Rounds:
    """Return drafted trees as rounds, with what the drafter thinks of their nodes."""
    rows = [_row(anchor, proposal) for anchor, proposal in zip(anchors, proposals, strict=True)]
    return Rounds.from_rows(rows, [anchor.key for anchor in anchors])


def _row(anchor: Anchor, proposal: Proposal) -> dict[str, object]:
    slots = sorted(proposal.lse)
    lse = np.full(len(proposal) + 1, np.nan, dtype=np.float32)
    lse[[slot + 1 for slot in slots]] = [proposal.lse[slot] for slot in slots]
    none = np.empty(0, dtype=np.float32)
    confidence = [np.nan if value is None else value for value in proposal.confidence]
    return {
        "anchor_position": anchor.position,
        "node_parent": np.array(proposal.parents, dtype=np.int64),
        "node_token": np.array(proposal.tokens, dtype=np.int64),
        "node_confidence": np.array(confidence, dtype=np.float32),
        "draft_lse": lse,
        "draft_topk_token": np.concatenate(
            [none.astype(np.int64), *(proposal.topk_tokens[slot] for slot in slots)]
        ),
        "draft_topk_logit": np.concatenate([none, *(proposal.topk_logits[slot] for slot in slots)]),
    }


def keep(proposal: Proposal, nodes: Sequence[int]) -> Proposal:
    """Return a tree of some of a proposal's nodes; with a node its ancestors are among them."""
    if len(nodes) == len(proposal):
        return proposal
    place = {-1: -1} | {node: index for index, node in enumerate(nodes)}
    kept = Proposal()
    for node in nodes:
        kept.add(
            proposal.tokens[node],
            place[proposal.parents[node]],
            log_q=proposal.log_q[node],
            rank=proposal.rank[node],
            draft_gap=proposal.draft_gap[node],
            margin=proposal.margin[node],
            confidence=proposal.confidence[node],
            source=proposal.source[node],
        )
    kept.lse = _at(proposal.lse, place)
    kept.topk_tokens = _at(proposal.topk_tokens, place)
    kept.topk_logits = _at(proposal.topk_logits, place)
    # q is asked of slots with children alone
    drawn = set(kept.parents)
    kept.law = {slot: law for slot, law in _at(proposal.law, place).items() if slot in drawn}
    return kept


def _at(whole: Mapping[int, Value], place: Mapping[int, int]) -> dict[int, Value]:
    return {place[slot]: value for slot, value in whole.items() if slot in place}

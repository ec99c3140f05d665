"""Unions of drafters: both trees under one anchor, duplicates merged, the first source kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash.drafters.base import Anchor, Drafter, DraftShape, Proposal, ProposalKind

NODE_BUDGET = 64


class UnionDrafter(Drafter):
    """Proposes what each of its drafters proposes, in their order.

    A path that two drafters share is there once, under the first of them. At most 64 nodes are kept, which is
    what one verification takes; a node is dropped only with all nodes below it. Drafters of different
    proposal kinds serve only rules that emit the target's choice.
    """

    family = "union"

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        kinds = {drafter.kind for drafter in drafters}
        super().__init__(kinds.pop() if len(kinds) == 1 else ProposalKind.MIXED)
        self.drafters = tuple(drafters)
        self.name = "+".join(drafter.name for drafter in drafters)

    def open(self, lane: int) -> None:
        """Start a request in every drafter."""
        for drafter in self.drafters:
            drafter.open(lane)

    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """The union of all drafters' trees at each anchor."""
        each = [drafter.propose(anchors, shape) for drafter in self.drafters]
        return [_merged(proposals) for proposals in zip(*each, strict=True)]

    def header(self) -> dict[str, Any]:
        """A union has no entry of its own; see `headers`."""
        return {}

    def headers(self) -> list[dict[str, Any]]:
        """The entries of the drafters, in the order of `node_source`."""
        # the first paths of a union are not the union of first paths, so only a cut in length is exact
        return [entry | {"cuts": ["length"]} for drafter in self.drafters for entry in drafter.headers()]


def _merged(proposals: Sequence[Proposal]) -> Proposal:
    union = Proposal()
    places: dict[tuple[int, int], int] = {}
    for source, proposal in enumerate(proposals):
        index: dict[int, int] = {-1: -1}
        for node, parent in enumerate(proposal.parents):
            if parent not in index:
                continue
            place = (index[parent], proposal.tokens[node])
            if place not in places and len(union) < NODE_BUDGET:
                places[place] = _copy(union, proposal, node, index[parent], source)
            if place in places:
                index[node] = places[place]
        _keep_slots(union, proposal, index)
    return union


def _copy(union: Proposal, proposal: Proposal, node: int, parent: int, source: int) -> int:
    return union.add(
        proposal.tokens[node],
        parent,
        log_q=proposal.log_q[node],
        rank=proposal.rank[node],
        draft_gap=proposal.draft_gap[node],
        margin=proposal.margin[node],
        confidence=proposal.confidence[node],
        source=source,
    )


def _keep_slots(union: Proposal, proposal: Proposal, index: dict[int, int]) -> None:
    """What a drafter saw at its slots; the first drafter that expanded a slot is believed.

    q is not kept: a slot whose children come from several drafters follows the law of none of them.
    """
    for slot, lse in proposal.lse.items():
        here = index.get(slot)
        if here is not None and here not in union.lse:
            union.lse[here] = lse
            union.topk_tokens[here] = proposal.topk_tokens[slot]
            union.topk_logits[here] = proposal.topk_logits[slot]

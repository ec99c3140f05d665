"""Unions of drafters: both trees under one anchor, duplicates merged, the first source kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from dflash.drafters.base import Anchor, Drafter, DraftShape, Proposal, ProposalKind
from dflash.policy.topology import first_leaf

NODE_BUDGET = 64
Path = tuple[int, ...]


class UnionDrafter(Drafter):
    """Proposes what each of its drafters proposes, in their order.

    A path that two drafters share is there once, under the first of them. At most 64 nodes are kept, which is
    what one verification takes: the shallowest, so that a shorter union is this one, cut. The branches of a
    shape are shared out among the drafters by their entries in the header, rounded up, and counted in the
    union. Where a drafter samples, siblings follow no single law, which serves only rules that emit the
    target's choice.
    """

    family = "union"

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(ProposalKind.of_union(drafter.kind for drafter in drafters))
        self.drafters = tuple(drafters)
        self.name = "+".join(drafter.name for drafter in drafters)
        self._entries = [len(drafter.headers()) for drafter in drafters]
        self._first_source = [sum(self._entries[:place]) for place in range(len(drafters))]

        self.taps = tuple(sorted({tap for drafter in drafters for tap in drafter.taps}))

    def open(self, lane: int) -> None:
        """Start a request in every drafter."""
        for drafter in self.drafters:
            drafter.open(lane)

    def see(self, lane: int, states: Tensor) -> None:
        """Hand each drafter the taps that it reads, in its order."""
        each = states.unflatten(-1, (len(self.taps), -1)) if self.taps else states
        for drafter in self.drafters:
            if drafter.taps:
                drafter.see(lane, each[:, [self.taps.index(tap) for tap in drafter.taps]].flatten(1))

    def propose(self, anchors: Sequence[Anchor], shape: DraftShape) -> list[Proposal]:
        """The union of all drafters' trees at each anchor."""
        every = sum(self._entries)
        each = [
            drafter.propose(anchors, replace(shape, branches=-(-shape.branches * count // every)))
            for drafter, count in zip(self.drafters, self._entries, strict=True)
        ]
        return [
            _merged(proposals, self._first_source, shape.branches) for proposals in zip(*each, strict=True)
        ]

    def remark(self) -> str | None:
        """What its drafters have to say."""
        return "; ".join(filter(None, (drafter.remark() for drafter in self.drafters))) or None

    def header(self) -> dict[str, Any]:
        """A union has no entry of its own; see `headers`."""
        return {}

    def headers(self) -> list[dict[str, Any]]:
        """The entries of the drafters, in the order of `node_source`."""
        # the first paths of a union are not the union of first paths, so no cut in branches is exact
        return [
            entry | {"cuts": [cut for cut in entry["cuts"] if cut != "branches"]}
            for drafter in self.drafters
            for entry in drafter.headers()
        ]


def _merged(proposals: Sequence[Proposal], first_source: Sequence[int], branches: int) -> Proposal:
    kept = _first_branches(_shallowest(proposals), branches)
    union = Proposal()
    places: dict[Path, int] = {(): -1}
    for first, proposal in zip(first_source, proposals, strict=True):
        paths = _paths(proposal)
        for node, path in enumerate(paths):
            if path in kept and path not in places:
                places[path] = _copy(union, proposal, node, places[path[:-1]], first)
        index = {node: places[path] for node, path in enumerate(paths) if path in places}
        _keep_slots(union, proposal, {-1: -1} | index)
    return union


def _shallowest(proposals: Sequence[Proposal]) -> list[Path]:
    """The paths that fit the budget, in the order of the drafters: shorter ones are the first to fit."""
    every = dict.fromkeys(path for proposal in proposals for path in _paths(proposal))
    fit = set(sorted(every, key=len)[:NODE_BUDGET])
    return [path for path in every if path in fit]


def _first_branches(paths: Sequence[Path], branches: int) -> set[Path]:
    """The paths on the first root-to-leaf ones, as a policy's shape counts them."""
    index = {path: place for place, path in enumerate(paths)}
    parent = np.array([index.get(path[:-1], -1) for path in paths], dtype=np.int64)
    leaf = first_leaf(parent, parent + 1, np.array([len(path) for path in paths], dtype=np.int64))
    return {path for path, place in zip(paths, leaf.tolist(), strict=True) if place < branches}


def _paths(proposal: Proposal) -> list[Path]:
    """Tokens from the anchor to each node."""
    paths: list[Path] = []
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def _copy(union: Proposal, proposal: Proposal, node: int, parent: int, first_source: int) -> int:
    return union.add(
        proposal.tokens[node],
        parent,
        log_q=proposal.log_q[node],
        rank=proposal.rank[node],
        draft_gap=proposal.draft_gap[node],
        margin=proposal.margin[node],
        confidence=proposal.confidence[node],
        source=first_source + proposal.source[node],
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

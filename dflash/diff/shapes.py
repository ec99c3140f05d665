"""Whether trees that differ are one tree, cut by what the two runs were asked to draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dflash.diff.aligned import Aligned
from dflash.diff.flat import Block
from dflash.diff.identity import Difference
from dflash.diff.matching import Trees
from dflash.draftfile.header import Header
from dflash.policy.noise import I64
from dflash.policy.topology import Bool

# what a cut changes although the drafter does what it did: the tree, and what its last nodes led to
CUT_COLUMNS = frozenset({"node_token", "node_parent", "node_draft_gap", "draft_lse"})
_CUTTING = ("policy.shape.", "policy.control.")


class Bounds(NamedTuple):
    """The largest tree that a run drafts; `varies` if its policy may cut any draft further."""

    length: int
    branches: int
    varies: bool

    @classmethod
    def of(cls, header: Header) -> Bounds:
        """The shape of a header, and that of its policy."""
        policy = header.policy
        asked = {name: value for name, value in (policy.get("shape") or {}).items() if value is not None}
        length, branches = (
            min(header.shape[name], asked.get(name, header.shape[name])) for name in ("length", "branches")
        )
        control = (policy.get("control") or {}).get("name", "static")
        return cls(length, branches, control != "static" or not asked.keys() <= {"length", "branches"})


def are_cuts(aligned: Aligned, a: Bounds, b: Bounds) -> Bool:
    """Whether two trees begin with the same token and have no nodes alone but those the other may not have.

    Returns:
        `[P]`, by pairs of rows; trees that are equal are cuts of each other.
    """
    nodes, rows = aligned.nodes, aligned.rows
    alone_a = _alone(aligned.a, rows.a, nodes.pair, nodes.a, b, b.branches < a.branches)
    alone_b = _alone(aligned.b, rows.b, nodes.pair, nodes.b, a, a.branches < b.branches)
    zero = np.zeros_like(rows.a)
    first = [
        side.flat("node_token").take(index, zero).value
        for side, index in ((aligned.a, rows.a), (aligned.b, rows.b))
    ]
    begin = (first[0] == first[1]) | (np.minimum(nodes.count_a, nodes.count_b) == 0)
    only_a, only_b = (alone_b == 0) & b.varies, (alone_a == 0) & a.varies
    return np.asarray(begin & ((alone_a == 0) | only_a) & ((alone_b == 0) | only_b))


def redrawn(a: Header, b: Header) -> bool:
    """Whether shapes differ in what a drafter does not promise: that a cut draft is the smaller draft."""
    differing = {name for name in ("length", "branches") if a.shape[name] != b.shape[name]}
    drafters = [drafter for header in (a, b) for drafter in header.drafters]
    return any(not differing <= set(drafter["cuts"]) for drafter in drafters)


def cutting(difference: Difference) -> bool:
    """Whether a key of the header says how far drafts go."""
    return difference.key.startswith(("shape.", *_CUTTING)) or difference.key == "policy.shape"


def shape_words(differences: Sequence[Difference]) -> str:
    """The shapes of both sides as far as they differ, in words; empty if the headers share them."""
    told = [
        f"{item.key.removeprefix('shape.')} {_value(item.a)} in A, {_value(item.b)} in B"
        for item in differences
        if item.key.startswith(("shape.", "policy.shape.")) or item.key == "policy.control.name"
    ]
    if not told and any(cutting(item) for item in differences):
        told = ["by the settings of the policy's control"]
    return "; ".join(told)


def _alone(block: Block, rows: I64, pair: I64, place: I64, other: Bounds, narrower: bool) -> I64:
    """How many nodes of each tree have no partner, those left out that the other's bounds exclude."""
    trees = Trees.of(block, rows)
    counts = np.bincount(trees.row, minlength=len(rows))
    excluded = (trees.depth > other.length) | narrower
    excluded[(np.cumsum(counts) - counts)[pair] + place] = True
    return np.bincount(trees.row[~excluded], minlength=len(rows))


def _value(value: object) -> object:
    return "none" if value is None else value

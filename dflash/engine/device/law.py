"""Residual masses of drawn nodes from what a record has of p and q (`dflash/engine/residual.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dflash.policy.context import DraftSampling

Floats = NDArray[np.float64]


class LaneLaw(NamedTuple):
    """How a lane's request draws: the target, and the drafter where its tokens are drawn.

    Attributes:
        temperature: Of the target; 0 is greedy.
        draft: None where nodes are not drawn.
    """

    temperature: float
    draft: DraftSampling | None

    @property
    def greedy(self) -> bool:
        """Whether the choice is the argmax."""
        return self.temperature == 0.0

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """Temperature, the drafter's, its top-k and its top-p; all of the drafter's 0 where none draws."""
        if self.draft is None:
            return self.temperature, 0.0, 0.0, 0.0
        return self.temperature, self.draft.temperature, float(self.draft.top_k), self.draft.top_p


class Laws(NamedTuple):
    """The laws of many rows, each `[rows]`."""

    temperature: Floats
    draft_temperature: Floats
    top_k: Floats
    top_p: Floats

    @classmethod
    def of(cls, laws: Iterable[LaneLaw]) -> Self:
        """The laws of rows, in order."""
        return cls(*np.array([law.numbers for law in laws], np.float64).reshape(-1, len(cls._fields)).T)

    @property
    def greedy(self) -> NDArray[np.bool_]:
        """Where the choice is the argmax."""
        found: NDArray[np.bool_] = self.temperature == 0.0
        return found

    @property
    def heat(self) -> Floats:
        """What logits are divided by."""
        return np.where(self.greedy, 1.0, self.temperature)

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """Where nodes are drawn."""
        found: NDArray[np.bool_] = (self.draft_temperature > 0) & ~self.greedy
        return found

    def at(self, rows: NDArray[Any]) -> Self:
        """The laws of some rows."""
        return type(self)(*(numbers[rows] for numbers in self))


def residual_masses(of_lanes: Mapping[str, NDArray[Any]], laws: Laws, ratio: Floats, branches: int) -> Floats:
    """Σ_v max(0, P p(v) - q(v)) at every node's slot, q renormalised without the siblings before it.

    Args:
        of_lanes: a record's lanes, in all of which nodes are drawn.
        laws: of each.
        ratio: `[lanes, nodes]`, p/q of every node.
        branches: of the tree.

    Returns:
        `[lanes, nodes]`; of no meaning for nodes that are not there.
    """
    lanes, nodes = ratio.shape
    expanded = of_lanes["draft_lse"].shape[1]
    q = _law(of_lanes["draft_logits"].astype(np.float64), laws)
    lse_p = of_lanes["lse_p"][:, :expanded, None].astype(np.float64)
    scores = of_lanes["draft_target"].astype(np.float64) / laws.heat[:, None, None] - lse_p
    p = np.where(q > 0, np.exp(scores), 0.0)
    parent = np.maximum(np.arange(nodes) - branches + 1, 0)
    capped = np.ones((lanes, nodes + 1))
    for first in range(0, nodes, branches):
        here = slice(first, first + branches)
        capped[:, 1:][:, here] = np.minimum(1.0, capped[:, parent[here]] * ratio[:, here])
    scaled = capped[:, parent, None] * p[:, parent]
    elsewhere = capped[:, parent] * np.maximum(0.0, 1.0 - p.sum(-1))[:, parent]
    left = q[:, parent]
    for sibling in range(1, min(branches, nodes)):
        gone = of_lanes["draft_ids"][:, 0] == of_lanes["node_token"][:, sibling - 1, None]
        left[:, sibling:branches] = np.where(gone[:, None], 0.0, left[:, sibling:branches])
    total = left.sum(-1, keepdims=True)
    # nothing is left of q where an earlier sibling had all of it
    left = left / np.where(total > 0, total, 1.0)
    return elsewhere + np.maximum(0.0, scaled - left).sum(-1)


def _law(logits: Floats, laws: Laws) -> Floats:
    """q `[lanes, slots, candidates]` in order of logit, as `dflash/drafters/race.py` makes it."""
    candidates = logits.shape[2]
    width = np.where(laws.top_k == 0, candidates, laws.top_k)[:, None, None]
    place = np.arange(candidates)
    kept = (place < width) & np.isfinite(logits)
    scaled = np.where(kept, logits / laws.draft_temperature[:, None, None], -np.inf)
    weight = np.exp(scaled - scaled.max(-1, keepdims=True))
    q = weight / weight.sum(-1, keepdims=True)
    top_p = laws.top_p[:, None, None]
    if (top_p < 1.0).any():
        kept = (q.cumsum(-1) < top_p).sum(-1, keepdims=True)
        q = np.where((place <= kept) | (top_p >= 1.0), q, 0.0)
        q = q / q.sum(-1, keepdims=True)
    return q

"""The rows of a draft file from the records of device rounds: the same columns as the judge's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.drafters.race import ranked_law
from dflash.engine.device_record import DRAFTED, ENDED, STARTED, VERIFIED, Arrays
from dflash.engine.judge import Row
from dflash.policy.context import DraftSampling
from dflash.target.sampling import Sampling

Floats = NDArray[np.float64]
LIVE = 0


class RowMaker:
    """Makes rows of one lane's part of a record.

    Args:
        parents: of the whole tree's nodes.
        expanded: slots that the drafter expanded, the first ones.
        store_topk: logits a slot to keep.
    """

    def __init__(self, parents: list[int], expanded: int, branches: int, store_topk: int) -> None:
        self.parents = np.array(parents, dtype=np.int64)
        self.depths = 1 + np.arange(len(parents)) // branches
        self.expanded = expanded
        self.branches = branches
        self.store_topk = store_topk
        self._everything = np.arange(len(parents))

    def row(self, record: Arrays, lane: int, sampling: Sampling, drawn: DraftSampling | None) -> Row:
        """Columns of identity, tree, target and decision, but for what was emitted.

        Args:
            record: of a round.
            lane: which of its lanes.
            sampling: of the request.
            drawn: how q was made; None for proposals that were not drawn.
        """
        one = {name: values[lane] for name, values in record.items() if name != "times"}
        there = self._there(one["node_token"])
        place = np.full(len(self.parents) + 1, -1)
        place[there] = np.arange(len(there))
        parents = self.parents[there]
        row: Row = {
            "anchor_position": int(one["length"]),
            "anchor_token": int(one["anchor"]),
            **self._tree(one, there, place[parents]),
            **self._draft_slots(one, there),
            **self._slots(one, there),
            **_nodes(one, there, parents, sampling),
        }
        row["node_residual_mass"] = self._masses(one, there, sampling, drawn, row)
        row["node_residual_token"] = one["choice"][parents + 1]
        path = place[one["path"][: int(one["count"])]]
        return row | {
            "kind": LIVE,
            "accepted_nodes": path.astype(np.int16),
            "bonus_token": int(one["bonus"]),
            "draft_length": int(self.depths[there].max(initial=0)),
            "branches": len(there) - len(set(place[parents].tolist()) - {-1}),
            "context_length": int(one["length"]) + 1,
            "control_state": None,
        }

    def _there(self, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        """Nodes that were drawn."""
        return self._everything if (tokens >= 0).all() else np.flatnonzero(tokens >= 0)

    def _tree(self, one: Arrays, there: NDArray[np.int64], parents: NDArray[np.int64]) -> Row:
        return {
            "node_token": one["node_token"][there],
            "node_parent": parents.astype(np.int16),
            "node_source": np.zeros(len(there), dtype=np.int8),
            "node_rank": one["node_rank"][there],
            "node_logq": one["log_q"][there],
            "node_draft_gap": one["draft_gap"][there],
            "node_margin": one["margin"][there],
            "node_confidence": one["confidence"][there],
        }

    def _draft_slots(self, one: Arrays, there: NDArray[np.int64]) -> Row:
        slots = np.array([0, *(there + 1)])
        seen = slots[slots < self.expanded]
        lse = np.full(len(slots), np.nan, dtype=np.float32)
        lse[: len(seen)] = one["draft_lse"][seen]
        return {
            "draft_lse": lse,
            "draft_topk_token": one["draft_ids"][seen, : self.store_topk].ravel(),
            "draft_topk_logit": one["draft_logits"][seen, : self.store_topk].ravel(),
            "draft_topk_target_logit": one["draft_target"][seen, : self.store_topk].ravel(),
        }

    def _slots(self, one: Arrays, there: NDArray[np.int64]) -> Row:
        slots = np.array([0, *(there + 1)])
        gap = one["gap"][slots]
        return {
            "slot_argmax": one["slot_ids"][slots, 0],
            "slot_choice": one["choice"][slots],
            "slot_choice_logit": one["choice_logit"][slots],
            "slot_gap": np.where(np.isfinite(gap), gap, np.float32(np.nan)),
            "slot_cut_gap": np.full(len(slots), np.nan, dtype=np.float32),
            "slot_lse": one["lse"][slots],
            "slot_lse_p": one["lse_p"][slots],
            "slot_cutoff": np.full(len(slots), -np.inf, dtype=np.float32),
            "slot_entropy": one["entropy"][slots],
            "slot_topk_token": one["slot_ids"][slots, : self.store_topk].ravel(),
            "slot_topk_logit": one["slot_logits"][slots, : self.store_topk].ravel(),
        }

    def _masses(
        self, one: Arrays, there: NDArray[np.int64], sampling: Sampling, drawn: DraftSampling | None, row: Row
    ) -> NDArray[np.float32]:
        """Σ_v max(0, P p(v) - q(v)) at every node's slot (`dflash/engine/residual.py`)."""
        masses = np.full(len(self.parents), np.nan)
        if drawn is None or sampling.greedy or not len(there):
            return masses[there].astype(np.float32)
        ratio = np.ones(len(self.parents))
        log_ratio = row["node_logp"].astype(np.float64) - row["node_logq"].astype(np.float64)
        ratio[there] = np.exp(np.minimum(log_ratio, 50.0))
        capped = np.ones(len(self.parents) + 1)
        for slot in range(self.expanded):
            children = [node for node in self._children(slot) if one["node_token"][node] >= 0]
            if not children:
                continue
            law = ranked_law(*_candidates(one, slot, drawn), drawn)
            target = one["draft_target"][slot, : len(law.tokens)].astype(float)
            p = np.exp(target / sampling.temperature - float(one["lse_p"][slot]))
            masses[children] = _masses_of(
                capped[slot], p, law.tokens, np.exp(law.log_q), one["node_token"][children]
            )
            for node in children:
                capped[node + 1] = min(1.0, capped[slot] * ratio[node])
        return masses[there].astype(np.float32)

    def _children(self, slot: int) -> range:
        """Nodes that hang on a slot, were they all drawn."""
        if slot == 0:
            return range(min(self.branches, len(self.parents)))
        node = slot - 1 + self.branches
        return range(node, min(node + 1, len(self.parents)))


def _candidates(one: Arrays, slot: int, drawn: DraftSampling) -> tuple[NDArray[np.int64], Floats]:
    """The tokens that could be drawn at a slot and their draft logits."""
    width = drawn.top_k or one["draft_ids"].shape[1]
    tokens = one["draft_ids"][slot, :width].astype(np.int64)
    return tokens, one["draft_logits"][slot, :width].astype(np.float64)


def _masses_of(
    capped: float, p: Floats, tokens: NDArray[np.int64], q: Floats, drawn: NDArray[np.int32]
) -> list[float]:
    """One mass a sibling, q renormalised without the siblings before it."""
    elsewhere = capped * max(0.0, 1.0 - float(p.sum()))
    left, masses = q.copy(), []
    for token in drawn:
        # nothing is left of q where an earlier sibling had all of it
        total = left.sum() or 1.0
        masses.append(elsewhere + float(np.maximum(0.0, capped * p - left / total).sum()))
        left[tokens == token] = 0.0
    return masses


def _nodes(one: Arrays, there: NDArray[np.int64], parents: NDArray[np.int64], sampling: Sampling) -> Row:
    logit, slots = one["node_logit"][there], parents + 1
    if sampling.greedy:
        logp = np.where(one["node_token"][there] == one["choice"][slots], 0.0, -np.inf)
    else:
        logp = logit.astype(float) / sampling.temperature - one["lse_p"][slots].astype(float)
    return {
        "node_logp": logp.astype(np.float32),
        "node_target_logit": logit,
        "node_mass_above": one["node_mass"][there],
    }


def times_of(record: Arrays) -> dict[str, float]:
    """How long a round's stages took, in microseconds; nothing where the clock was not read."""
    at = record["times"]
    if not at.all():
        return {}
    spans = {"draft_us": (STARTED, DRAFTED), "verify_us": (DRAFTED, VERIFIED), "round_us": (STARTED, ENDED)}
    return {name: float(at[end] - at[begin]) / 1e3 for name, (begin, end) in spans.items()}


def features_of(record: Arrays, lane: int) -> dict[str, Any]:
    """Feature columns of a lane's round: of its anchor and accepted nodes."""
    kept = int(record["count"][lane]) + 1
    columns: dict[str, Any] = {}
    if "fingerprint" in record:
        columns["feature_fingerprint"] = record["fingerprint"][lane, :kept].ravel()
    if "features" in record:
        words = record["features"][lane, :kept]
        columns["feature_values"] = (words >> 8).astype(np.uint8).tobytes() + words.astype(np.uint8).tobytes()
    return columns

"""The rows of a draft file from the records of device rounds: the same columns as the judge's.

Columns are made for all lanes of a chain of rounds at once; a row takes its part of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.engine.device_law import LaneLaw, residual_masses
from dflash.engine.device_record import DRAFTED, ENDED, STARTED, VERIFIED, Arrays
from dflash.engine.judge import Row

LIVE = 0
NODES = (
    "node_token", "node_source", "node_rank", "node_logq", "node_draft_gap", "node_margin", "node_confidence",
    "node_logp", "node_target_logit", "node_mass_above", "node_residual_mass", "node_residual_token",
)  # fmt: skip
SLOTS = (
    "draft_lse", "slot_argmax", "slot_choice", "slot_choice_logit", "slot_gap", "slot_cut_gap", "slot_lse",
    "slot_lse_p", "slot_cutoff", "slot_entropy",
)  # fmt: skip
SEEN = ("draft_topk_token", "draft_topk_logit", "draft_topk_target_logit")
TOPS = ("slot_topk_token", "slot_topk_logit")


class Place(NamedTuple):
    """One lane's part of one of a chain's records."""

    record: int
    lane: int


def lanes_of(records: Arrays, taken: Sequence[Place]) -> Arrays:
    """The fields of some lanes' parts of records, one behind the other."""
    which, lanes = np.array(taken).T
    return {name: values[which, lanes] for name, values in records.items() if name != "times"}


class RowMaker:
    """Makes rows of the lanes' parts of records.

    Args:
        parents: of the whole tree's nodes.
        expanded: slots that the drafter expanded, the first ones.
        branches: nodes at each depth.
        store_topk: logits a slot to keep.
    """

    def __init__(self, parents: Sequence[int], expanded: int, branches: int, store_topk: int) -> None:
        self.parents = np.array(parents, dtype=np.int64)
        self.depths = 1 + np.arange(len(parents)) // branches
        self.expanded = expanded
        self.branches = branches
        self.store_topk = store_topk
        self._shape: Row = {
            "node_parent": self.parents.astype(np.int16),
            "draft_length": int(self.depths.max(initial=0)),
            "branches": min(branches, len(parents)),
            "control_state": None,
            "kind": LIVE,
        }

    def rows(self, records: Arrays, taken: Sequence[Place], laws: Sequence[LaneLaw]) -> list[Row]:
        """Columns of identity, tree, target and decision, but for what was emitted.

        Args:
            records: of a chain of rounds.
            taken: what rows are wanted of.
            laws: of each.
        """
        return self.rows_of(lanes_of(records, taken), laws)

    def rows_of(self, of_lanes: Arrays, laws: Sequence[LaneLaw]) -> list[Row]:
        """The same of `lanes_of` records, which the laws are of."""
        columns = self._columns(of_lanes, laws)
        position, token = of_lanes["length"].tolist(), of_lanes["anchor"].tolist()
        bonus, count = of_lanes["bonus"].tolist(), of_lanes["count"].tolist()
        path = of_lanes["path"].astype(np.int16)
        whole = (of_lanes["node_token"] >= 0).all(1).tolist()
        rows = []
        for place in range(len(laws)):
            row = {name: column[place] for name, column in columns.items()} | self._shape
            row |= {
                "anchor_position": position[place],
                "anchor_token": token[place],
                "accepted_nodes": path[place, : count[place]],
                "bonus_token": bonus[place],
                "context_length": position[place] + 1,
            }
            rows.append(row if whole[place] else self._thinned(row))
        return rows

    def _columns(self, of_lanes: Arrays, laws: Sequence[LaneLaw]) -> Arrays:
        """Columns of the whole tree, by lane."""
        columns = self._drafted(of_lanes) | self._judged(of_lanes)
        columns |= self._node_columns(of_lanes, laws)
        ratio = columns["node_logp"].astype(np.float64) - columns["node_logq"].astype(np.float64)
        masses = np.full(ratio.shape, np.nan)
        drawn = [place for place, law in enumerate(laws) if law.draft is not None and not law.target.greedy]
        if drawn and self.expanded:
            part = {name: values[drawn] for name, values in of_lanes.items()}
            masses[drawn] = residual_masses(
                part, [laws[place] for place in drawn], np.exp(np.minimum(ratio[drawn], 50.0)), self.branches
            )
        return columns | {"node_residual_mass": masses.astype(np.float32)}

    def _drafted(self, of_lanes: Arrays) -> Arrays:
        count, nodes = of_lanes["node_token"].shape
        lse = np.full((count, nodes + 1), np.nan, dtype=np.float32)
        lse[:, : self.expanded] = of_lanes["draft_lse"]
        return {
            "node_token": of_lanes["node_token"],
            "node_source": np.zeros((count, nodes), dtype=np.int8),
            "node_rank": of_lanes["node_rank"],
            "node_logq": of_lanes["log_q"],
            "node_draft_gap": of_lanes["draft_gap"],
            "node_margin": of_lanes["margin"],
            "node_confidence": of_lanes["confidence"],
            "draft_lse": lse,
            "draft_topk_token": self._top(of_lanes["draft_ids"]),
            "draft_topk_logit": self._top(of_lanes["draft_logits"]),
            "draft_topk_target_logit": self._top(of_lanes["draft_target"]),
        }

    def _judged(self, of_lanes: Arrays) -> Arrays:
        gap = of_lanes["gap"]
        return {
            "slot_argmax": np.ascontiguousarray(of_lanes["slot_ids"][..., 0]),
            "slot_choice": of_lanes["choice"],
            "slot_choice_logit": of_lanes["choice_logit"],
            "slot_gap": np.where(np.isfinite(gap), gap, np.float32(np.nan)),
            "slot_cut_gap": np.full_like(gap, np.nan),
            "slot_lse": of_lanes["lse"],
            "slot_lse_p": of_lanes["lse_p"],
            "slot_cutoff": np.full_like(gap, -np.inf),
            "slot_entropy": of_lanes["entropy"],
            "slot_topk_token": self._top(of_lanes["slot_ids"]),
            "slot_topk_logit": self._top(of_lanes["slot_logits"]),
        }

    def _node_columns(self, of_lanes: Arrays, laws: Sequence[LaneLaw]) -> Arrays:
        above = self.parents + 1
        choice, logit = of_lanes["choice"][:, above], of_lanes["node_logit"]
        heat = np.array([law.target.temperature or 1.0 for law in laws])[:, None]
        greedy = np.array([law.target.greedy for law in laws])[:, None]
        certain = np.where(of_lanes["node_token"] == choice, 0.0, -np.inf)
        logp = logit.astype(np.float64) / heat - of_lanes["lse_p"][:, above].astype(np.float64)
        return {
            "node_logp": np.where(greedy, certain, logp).astype(np.float32),
            "node_target_logit": logit,
            "node_mass_above": of_lanes["node_mass"],
            "node_residual_token": choice,
        }

    def _top(self, values: NDArray[Any]) -> NDArray[Any]:
        """The stored part of each slot's best, one slot behind the other."""
        return values[:, :, : self.store_topk].reshape(len(values), -1)

    def _thinned(self, row: Row) -> Row:
        """A row without the nodes that could not be drawn."""
        there = np.flatnonzero(row["node_token"] >= 0)
        slots = np.concatenate([[0], there + 1])
        seen = slots[slots < self.expanded]
        place = np.full(len(self.parents) + 1, -1)
        place[there] = np.arange(len(there))
        parents = place[self.parents[there]]
        thin = {name: row[name][there] for name in NODES} | {name: row[name][slots] for name in SLOTS}
        for names, kept in ((SEEN, seen), (TOPS, slots)):
            for name in names:
                thin[name] = row[name].reshape(-1, self.store_topk)[kept].ravel()
        return row | thin | {
            "node_parent": parents.astype(np.int16),
            "accepted_nodes": place[row["accepted_nodes"]].astype(np.int16),
            "draft_length": int(self.depths[there].max(initial=0)),
            "branches": len(there) - len(set(parents.tolist()) - {-1}),
        }  # fmt: skip


def times_of(records: Arrays, which: int) -> dict[str, float]:
    """How long a round's stages took, in microseconds; nothing where the clock was not read."""
    at = records["times"][which].copy()
    # without a drafter, nothing lies between a start and its forward, nor between that and the end
    at[DRAFTED] = at[DRAFTED] or at[STARTED]
    at[ENDED] = at[ENDED] or at[VERIFIED]
    if not at.all():
        return {}
    spans = {"draft_us": (STARTED, DRAFTED), "verify_us": (DRAFTED, VERIFIED), "round_us": (STARTED, ENDED)}
    return {name: float(at[end] - at[begin]) / 1e3 for name, (begin, end) in spans.items()}


def features_of(records: Arrays, place: Place) -> dict[str, Any]:
    """Feature columns of a lane's round: of its anchor and accepted nodes."""
    kept = int(records["count"][place]) + 1
    columns: dict[str, Any] = {}
    if "fingerprint" in records:
        columns["feature_fingerprint"] = records["fingerprint"][place][:kept].ravel()
    if "features" in records:
        words = records["features"][place][:kept]
        columns["feature_values"] = (words >> 8).astype(np.uint8).tobytes() + words.astype(np.uint8).tobytes()
    return columns

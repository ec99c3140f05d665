"""Columns of trees, of what the target says of them, and of what was decided, for many rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.draftfile.rows import Column, Ragged
from dflash.engine.device.arrays import Arrays
from dflash.engine.device.law import Laws, residual_masses

NODES = (
    "node_token", "node_parent", "node_source", "node_rank", "node_logq", "node_draft_gap", "node_margin",
    "node_confidence", "node_logp", "node_target_logit", "node_mass_above", "node_residual_mass",
    "node_residual_token",
)  # fmt: skip
SLOTS = (
    "draft_lse", "slot_argmax", "slot_choice", "slot_choice_logit", "slot_gap", "slot_cut_gap", "slot_lse",
    "slot_lse_p", "slot_cutoff", "slot_entropy",
)  # fmt: skip
SEEN = ("draft_topk_token", "draft_topk_logit", "draft_topk_target_logit")
TOPS = ("slot_topk_token", "slot_topk_logit")

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class ColumnMaker:
    """Makes columns of rows whose nodes are those of one tree, or some of them.

    Args:
        parents: of the whole tree's nodes, which fork at the anchor alone.
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

    def columns(
        self, of_rows: Arrays, laws: Laws, lengths: Ints | None = None, branches: Ints | None = None
    ) -> dict[str, Column]:
        """Columns of identity, tree, target and decision, but for what was emitted.

        Args:
            of_rows: the fields of records, `[rows, ...]`.
            laws: of each.
            lengths, branches: the shape that each was cut to; None where none was cut.
        """
        there = of_rows["node_token"] >= 0
        with np.errstate(all="ignore"):
            # of nodes that are not there, nothing is kept
            made = self._drafted(of_rows) | self._judged(of_rows) | self._node_columns(of_rows, laws)
            made["node_residual_mass"] = self._residual(of_rows, laws, made)
        seen = np.ones((len(there), self.expanded), np.bool_)
        if lengths is not None and branches is not None:
            seen &= np.concatenate([[0], self.depths])[: self.expanded] < lengths[:, None]
            self._close_gaps(made["node_draft_gap"], branches)
        return {**self._kept(made, there, seen), **self._decided(of_rows, there)}

    def shape_of(self, there: Bools) -> dict[str, Ints]:
        """How deep trees are, and how many paths they have."""
        depths = np.where(there, self.depths, 0).max(1, initial=0)
        above = self.parents >= 0
        has_child = np.zeros_like(there)
        # below the anchor, every node has one child at most
        has_child[:, self.parents[above]] = there[:, above]
        return {"draft_length": depths, "branches": (there & ~has_child).sum(1)}

    def _decided(self, of_rows: Arrays, there: Bools) -> dict[str, Column]:
        path, count = of_rows["path"], of_rows["count"]
        taken = np.arange(path.shape[1]) < count[:, None]
        if not there.all():
            path = np.take_along_axis(_numbered(there), np.maximum(path, 0), axis=1)
        return {
            **self.shape_of(there),
            "anchor_position": of_rows["length"],
            "anchor_token": of_rows["anchor"],
            "accepted_nodes": Ragged(path[taken].astype(np.int16), count),
            "bonus_token": of_rows["bonus"],
            "context_length": of_rows["length"] + 1,
        }

    def _drafted(self, of_rows: Arrays) -> Arrays:
        count, nodes = of_rows["node_token"].shape
        lse = np.full((count, nodes + 1), np.nan, dtype=np.float32)
        lse[:, : self.expanded] = of_rows["draft_lse"]
        return {
            "node_token": of_rows["node_token"],
            "node_parent": np.broadcast_to(self.parents.astype(np.int16), (count, nodes)),
            "node_source": np.zeros((count, nodes), dtype=np.int8),
            "node_rank": of_rows["node_rank"],
            "node_logq": of_rows["log_q"],
            "node_draft_gap": of_rows["draft_gap"],
            "node_margin": of_rows["margin"],
            "node_confidence": of_rows["confidence"],
            "draft_lse": lse,
            "draft_topk_token": of_rows["draft_ids"],
            "draft_topk_logit": of_rows["draft_logits"],
            "draft_topk_target_logit": of_rows["draft_target"],
        }

    def _judged(self, of_rows: Arrays) -> Arrays:
        gap = of_rows["gap"]
        return {
            "slot_argmax": of_rows["slot_ids"][..., 0],
            "slot_choice": of_rows["choice"],
            "slot_choice_logit": of_rows["choice_logit"],
            "slot_gap": np.where(np.isfinite(gap), gap, np.float32(np.nan)),
            "slot_cut_gap": np.full_like(gap, np.nan),
            "slot_lse": of_rows["lse"],
            "slot_lse_p": of_rows["lse_p"],
            "slot_cutoff": np.full_like(gap, -np.inf),
            "slot_entropy": of_rows["entropy"],
            "slot_topk_token": of_rows["slot_ids"],
            "slot_topk_logit": of_rows["slot_logits"],
        }

    def _node_columns(self, of_rows: Arrays, laws: Laws) -> Arrays:
        above = self.parents + 1
        choice, logit = of_rows["choice"][:, above], of_rows["node_logit"]
        certain = np.where(of_rows["node_token"] == choice, 0.0, -np.inf)
        logp = logit.astype(np.float64) / laws.heat[:, None] - of_rows["lse_p"][:, above].astype(np.float64)
        return {
            "node_logp": np.where(laws.greedy[:, None], certain, logp).astype(np.float32),
            "node_target_logit": logit,
            "node_mass_above": of_rows["node_mass"],
            "node_residual_token": choice,
        }

    def _residual(self, of_rows: Arrays, laws: Laws, made: Arrays) -> NDArray[np.float32]:
        masses = np.full(made["node_logp"].shape, np.nan, dtype=np.float32)
        drawn = np.flatnonzero(laws.drawn)
        if len(drawn) and self.expanded:
            log_p, log_q = (made[name][drawn].astype(np.float64) for name in ("node_logp", "node_logq"))
            ratio = np.exp(np.minimum(log_p - log_q, 50.0))
            part = {name: values[drawn] for name, values in of_rows.items()}
            masses[drawn] = residual_masses(part, laws.at(drawn), ratio, self.branches)
        return masses

    def _close_gaps(self, gaps: NDArray[np.float32], branches: Ints) -> None:
        """The best sibling that was left out is the first one that was cut."""
        cut = np.flatnonzero(branches < self.branches)
        if len(cut) and len(self.parents):
            gaps[cut, : self.branches] -= gaps[cut, branches[cut]][:, None]

    def _kept(self, made: Arrays, there: Bools, seen: Bools) -> dict[str, Column]:
        """The columns, without nodes that are not there and slots that are not seen."""
        count, top = len(there), self.store_topk
        slots = np.concatenate([np.ones((count, 1), np.bool_), there], axis=1)
        seen = seen & slots[:, : self.expanded]
        tops = {name: made[name][:, :, :top] for name in (*SEEN, *TOPS)}
        if there.all() and seen.all():
            flat: dict[str, Column] = {
                name: values.reshape(count, values.shape[1] * top) for name, values in tops.items()
            }
            return {**made, **flat}
        made["draft_lse"][:, : self.expanded][~seen] = np.nan
        places = _numbered(there)
        parents = np.where(there[:, self.parents] & (self.parents >= 0), places[:, self.parents], -1)
        made = made | tops | {"node_parent": parents.astype(np.int16)}
        kept: dict[str, Column] = {}
        for names, mask, width in (
            (NODES, there, 1),
            (SLOTS, slots, 1),
            (SEEN, seen, top),
            (TOPS, slots, top),
        ):
            for name in names:
                kept[name] = Ragged(made[name][mask].reshape(-1), mask.sum(1) * width)
        return kept


def _numbered(there: Bools) -> NDArray[Any]:
    """The place of each node among those that are there."""
    found: NDArray[Any] = there.cumsum(1) - 1
    return found

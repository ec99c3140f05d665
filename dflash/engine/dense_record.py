"""Dense rows from the records of the lanes that scored them: the columns of live rows, but for decisions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dflash.engine.dense import DENSE
from dflash.engine.device_law import LaneLaw
from dflash.engine.device_record import Arrays, Field, RecordSizes, record_fields
from dflash.engine.device_rows import Place, RowMaker
from dflash.engine.judge import Row
from dflash.engine.lane import Lane
from dflash.kernels.round_lanes import RoundTree
from dflash.policy.context import DraftSampling

DECISIONS = ("accepted_nodes", "bonus_token", "context_length", "draft_length", "branches", "control_state")


def dense_fields(sizes: RecordSizes, tree: RoundTree) -> dict[str, Field]:
    """Fields of a group's record: a live round's, and what was said of the trunk's own tokens."""
    fields = record_fields(sizes, tree)
    fields["trunk_logit"] = Field(torch.float32, (sizes.lanes, 1))
    seen = (sizes.lanes, tree.length, sizes.draft_top)
    fields |= {"forced_ids": Field(torch.int32, seen), "forced_logits": Field(torch.float32, seen)}
    return fields


class DenseRowMaker:
    """Makes the dense rows of a group of anchors.

    Args:
        tree: of every lane.
        store_topk: logits a slot to keep.
        trunk_is_choices: whether every committed token is a choice.
    """

    def __init__(self, tree: RoundTree, store_topk: int, trunk_is_choices: bool) -> None:
        parents = tree.parents[0].tolist() if tree.nodes else []
        self._maker = RowMaker(parents, tree.expanded, tree.branches, store_topk)
        self.length = tree.length
        self.trunk_is_choices = trunk_is_choices

    def rows(self, records: Arrays, lane: Lane, positions: Sequence[int], law: LaneLaw) -> list[Row]:
        """Rows of anchors, which the first lanes of a record hold in this order."""
        count = len(positions)
        made = self._maker.rows(records, [Place(0, place) for place in range(count)], [law] * count)
        committed = np.array(lane.trunk)[np.array(positions) + 1]
        choice = records["choice"][0, :count, 0]
        off = (choice != committed).tolist() if self.trunk_is_choices else [None] * count
        log_p = self._log_p(records, choice == committed, law).tolist()
        log_q = self._log_q(records, lane, positions, law)
        for row, *said in zip(made, off, log_p, log_q, strict=True):
            for name in DECISIONS:
                del row[name]
            row |= {"kind": DENSE, "round": -1, "off_trajectory": said[0], "trunk_logp": said[1]}
            row["trunk_logq"] = said[2]
        return made

    def _log_p(self, records: Arrays, chosen: NDArray[np.bool_], law: LaneLaw) -> NDArray[np.float64]:
        """log p of the committed token behind each anchor."""
        if law.target.greedy:
            return np.where(chosen, 0.0, -np.inf)
        count = len(chosen)
        logit = records["trunk_logit"][0, :count, 0].astype(np.float64)
        return logit / law.target.temperature - records["lse_p"][0, :count, 0].astype(np.float64)

    def _log_q(
        self, records: Arrays, lane: Lane, positions: Sequence[int], law: LaneLaw
    ) -> list[NDArray[np.float32] | None]:
        """log q of the committed tokens behind each anchor, as many as a draft can reach."""
        if law.draft is None:
            return [None] * len(positions)
        here = slice(0, len(positions))
        last = len(lane.trunk) - 1
        ahead = np.minimum(np.array(positions)[:, None] + 1 + np.arange(self.length), last)
        tokens = np.array(lane.trunk)[ahead]
        found = forced_log_q(
            records["forced_ids"][0, here], records["forced_logits"][0, here], tokens, law.draft
        )
        counts = [min(self.length, last - position) for position in positions]
        return [row[:count].astype(np.float32) for row, count in zip(found, counts, strict=True)]


def forced_log_q(
    ids: NDArray[np.int32], logits: NDArray[np.float32], tokens: NDArray[np.int64], sampling: DraftSampling
) -> NDArray[np.float64]:
    """log q of given tokens, as `dflash/drafters/race.py` makes q of the best logits; -inf outside of it.

    Args:
        ids, logits: `[anchors, slots, candidates]`, in order of logit.
        tokens: `[anchors, slots]`.
        sampling: at a temperature above 0.
    """
    place = np.arange(ids.shape[2])
    kept = (place < (sampling.top_k or ids.shape[2])) & np.isfinite(logits)
    scaled = np.where(kept, logits.astype(np.float64) / sampling.temperature, -np.inf)
    log_q = scaled - np.logaddexp.reduce(scaled, axis=2, keepdims=True)
    if sampling.top_p < 1.0:
        inside = (np.exp(log_q).cumsum(2) < sampling.top_p).sum(2, keepdims=True)
        log_q = np.where(place <= inside, log_q, -np.inf)
        log_q = log_q - np.logaddexp.reduce(log_q, axis=2, keepdims=True)
    found: NDArray[np.float64] = np.where(ids == tokens[..., None], log_q, -np.inf).max(2, initial=-np.inf)
    return found

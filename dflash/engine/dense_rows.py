"""Dense rows from the records of the lanes that scored them: the columns of live rows, but for decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.draftfile.summary import Kind
from dflash.engine.device_law import LaneLaw
from dflash.engine.device_rows import Place, RowMaker
from dflash.policy.context import DraftSampling

Arrays = Mapping[str, NDArray[Any]]
Row = dict[str, Any]

DECISIONS = ("accepted_nodes", "bonus_token", "context_length", "draft_length", "branches", "control_state")


class DenseRowMaker:
    """Makes the dense rows of a group of anchors, one behind the other.

    Args:
        parents: of the whole tree's nodes.
        expanded: slots that the drafter expanded, the first ones.
        branches: nodes at each depth.
        store_topk: logits a slot to keep.
        trunk_is_choices: whether every committed token is a choice.
    """

    def __init__(
        self, parents: Sequence[int], expanded: int, branches: int, store_topk: int, trunk_is_choices: bool
    ) -> None:
        self._maker = RowMaker(parents, expanded, branches, store_topk)
        self.length = len(parents) // branches
        self.trunk_is_choices = trunk_is_choices

    def rows(
        self, records: Arrays, ahead: NDArray[np.int32], counts: Sequence[int], law: LaneLaw
    ) -> list[Row]:
        """Rows of anchors.

        Args:
            records: fields `[1, anchors, …]`.
            ahead: `[anchors, tokens]`, the committed tokens behind each anchor.
            counts: of each anchor, how many of them a draft can reach.
            law: of the request.
        """
        places = [Place(0, place) for place in range(len(ahead))]
        made = self._maker.rows(dict(records), places, [law] * len(ahead))
        chosen = records["choice"][0, :, 0] == ahead[:, 0]
        off = (~chosen).tolist() if self.trunk_is_choices else [None] * len(ahead)
        log_p = _log_p(records, chosen, law).tolist()
        log_q = self._log_q(records, ahead, counts, law)
        for row, *said in zip(made, off, log_p, log_q, strict=True):
            for name in DECISIONS:
                del row[name]
            row |= {"kind": Kind.DENSE.value, "round": -1, "off_trajectory": said[0], "trunk_logp": said[1]}
            row["trunk_logq"] = said[2]
        return made

    def _log_q(
        self, records: Arrays, ahead: NDArray[np.int32], counts: Sequence[int], law: LaneLaw
    ) -> Sequence[NDArray[np.float32] | None]:
        """log q of the committed tokens behind each anchor."""
        if law.draft is None:
            return [None] * len(ahead)
        tokens = ahead[:, : self.length]
        found = forced_log_q(records["forced_ids"][0], records["forced_logits"][0], tokens, law.draft)
        return [row[:count].astype(np.float32) for row, count in zip(found, counts, strict=True)]


def _log_p(records: Arrays, chosen: NDArray[np.bool_], law: LaneLaw) -> NDArray[np.float64]:
    """log p of the committed token behind each anchor."""
    if law.target.greedy:
        return np.where(chosen, 0.0, -np.inf)
    logit = records["trunk_logit"][0, :, 0].astype(np.float64)
    found: NDArray[np.float64] = logit / law.target.temperature - records["lse_p"][0, :, 0].astype(np.float64)
    return found


def forced_log_q(
    ids: NDArray[np.int32], logits: NDArray[np.float32], tokens: NDArray[np.int32], sampling: DraftSampling
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

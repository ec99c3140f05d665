"""Dense rows from the records of the lanes that scored them: the columns of live rows, but for decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.draftfile.rows import Column
from dflash.draftfile.summary import Kind
from dflash.engine.device.law import LaneLaw, Laws
from dflash.engine.recorder.columns import ColumnMaker
from dflash.policy.context import DraftSampling

DECISIONS = ("accepted_nodes", "bonus_token", "context_length", "draft_length", "branches")
FORCED = ("forced_ids", "forced_logits")

Arrays = Mapping[str, NDArray[Any]]


class DenseGroup(NamedTuple):
    """Anchors of a request, one behind the other.

    Attributes:
        records: fields `[anchors, ...]`.
        ahead: `[anchors, tokens]`, the committed tokens behind each anchor.
        counts: of each anchor, how many of them a draft can reach.
        law: of the request.
    """

    records: Arrays
    ahead: NDArray[np.int32]
    counts: Sequence[int]
    law: LaneLaw

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(field.nbytes for field in self.records.values())


class DenseRowMaker:
    """Makes the dense rows of groups of anchors.

    Args:
        maker: of the whole tree's columns.
        length: of the tree.
        trunk_is_choices: whether every committed token is a choice.
    """

    def __init__(self, maker: ColumnMaker, length: int, trunk_is_choices: bool) -> None:
        self.maker, self.length, self.trunk_is_choices = maker, length, trunk_is_choices

    def columns(
        self, groups: Sequence[DenseGroup], order: NDArray[np.int64] | None = None
    ) -> dict[str, Column]:
        """Columns of rows, `order` of those of all groups, one behind the other."""
        order = np.arange(sum(len(group.ahead) for group in groups)) if order is None else order
        # what a drafter saw of the trunk is there where it draws
        names = [name for name in groups[0].records if name not in FORCED]
        joined = {name: np.concatenate([group.records[name] for group in groups])[order] for name in names}
        ahead = np.concatenate([group.ahead[:, 0] for group in groups])[order]
        laws = Laws.of(group.law for group in groups for _ in group.counts).at(order)
        columns = self.maker.columns(joined, laws)
        for name in DECISIONS:
            del columns[name]
        chosen = joined["choice"][:, 0] == ahead
        log_q = [row for group in groups for row in self._log_q(group)]
        columns |= {
            "kind": np.full(len(order), Kind.DENSE.value, np.int8),
            "round": np.full(len(order), -1),
            "trunk_logp": _log_p(joined, chosen, laws),
            "trunk_logq": [log_q[place] for place in order.tolist()],
        }
        return columns | ({"off_trajectory": ~chosen} if self.trunk_is_choices else {})

    def counted(self, group: DenseGroup) -> dict[str, NDArray[Any]]:
        """That they are dense rows."""
        return {"kind": np.full(len(group.counts), Kind.DENSE.value, np.int8)}

    def _log_q(self, group: DenseGroup) -> Sequence[NDArray[np.float32] | None]:
        """log q of the committed tokens behind each anchor."""
        if group.law.draft is None:
            return [None] * len(group.ahead)
        ids, logits = (group.records[name] for name in FORCED)
        found = forced_log_q(ids, logits, group.ahead[:, : self.length], group.law.draft)
        return [row[:count].astype(np.float32) for row, count in zip(found, group.counts, strict=True)]


def _log_p(of_rows: Arrays, chosen: NDArray[np.bool_], laws: Laws) -> NDArray[np.float64]:
    """log p of the committed token behind each anchor."""
    logit, lse_p = (of_rows[name][:, 0].astype(np.float64) for name in ("trunk_logit", "lse_p"))
    found: NDArray[np.float64] = np.where(
        laws.greedy, np.where(chosen, 0.0, -np.inf), logit / laws.heat - lse_p
    )
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

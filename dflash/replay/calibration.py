"""How well the drafter's confidence and margin foretell acceptance: reliability, ECE and AUC.

Counted by request on one fixed grid of scores, so that counts add up and every number has an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool
from dflash.replay.statistics import Interval, draws_of, interval_of
from dflash.replay.tally import Collector, Judged

CALIBRATION_COLUMNS = ("node_confidence", "node_margin")
CALIBRATION_DEFINITIONS = {
    "reached": "nodes whose parent is the anchor or an accepted node: those whose own acceptance was decided",
    "confidence": "the drafter's own confidence in a node, read as a probability",
    "margin": "top-1 minus top-2 draft logit at a node's slot, of the first of its siblings, read as the "
    "probability 1 / (1 + exp(-margin)) of the first token against the second",
    "ece": "expected calibration error: |accepted share - mean score| in ten bins of equal width, weighted "
    "by their reached nodes",
    "auc": "chance that an accepted node scores above a rejected one, both reached; scores are compared on a "
    "grid of a quarter of a logit, ties count half",
}
_TENTHS = np.arange(1, 10) / 10
_LOGITS = np.arange(-40, 41) / 4
_INNER = np.unique(np.concatenate((_TENTHS, 1.0 / (1.0 + np.exp(-_LOGITS)))))
_CELLS = len(_INNER) + 1
# the tenth that each cell of the fine grid lies in
_TENTH = np.searchsorted(_TENTHS, np.concatenate(([0.0], _INNER)), side="right")


class Signal(StrEnum):
    """What a drafter says about its own draft."""

    CONFIDENCE = "confidence"
    MARGIN = "margin"


class Bin(NamedTuple):
    """One tenth of the scores: reached nodes, how many of them are accepted, and their mean score."""

    low: float
    high: float
    reached: int
    accepted: int
    score: float | None


class Calibrated(NamedTuple):
    """One signal; a number that has no rounds to stand on is None."""

    signal: Signal
    reached: int
    accepted: int
    ece: float | None
    ece_interval: Interval | None
    auc: float | None
    auc_interval: Interval | None
    bins: tuple[Bin, ...]


@dataclass(slots=True)
class Calibration(Collector):
    """Counts of one policy: `[requests, 3, cells]`: reached nodes, accepted ones, sum of scores."""

    columns = CALIBRATION_COLUMNS

    _counts: dict[Signal, list[F64]] = field(default_factory=lambda: {signal: [] for signal in Signal})

    def count(self, owners: Sequence[I64], judged: Sequence[Judged], requests: int) -> None:
        """Count the rounds of one row group, given the request of each."""
        for signal, counts in self._counts.items():
            total = np.zeros((requests, 3, _CELLS))
            for owner, item in zip(owners, judged, strict=True):
                total += _cells(signal, owner, item, requests)
            counts.append(total)

    def report(self) -> tuple[Calibrated, ...]:
        """Return the signals that some reached node has."""
        found = [(signal, np.concatenate(counts)) for signal, counts in self._counts.items() if counts]
        return tuple(_calibrated(signal, counts) for signal, counts in found if counts[:, 0].any())


def reached(rounds: Rounds, accepted: Bool) -> Bool:
    """Return whether each node's parent is the anchor or an accepted node; `[N]`."""
    parent = rounds.parent_node
    return np.asarray((parent < 0) | accepted[parent])


def _cells(signal: Signal, owner: I64, item: Judged, requests: int) -> F64:
    rounds, accepted = item.rounds, item.decision.accepted
    score = _score(signal, rounds)
    used = np.flatnonzero(reached(rounds, accepted) & ~np.isnan(score))
    score, right = score[used], accepted[used]
    place = owner[rounds.node_round[used]] * _CELLS + np.searchsorted(_INNER, score, side="right")
    weights = (None, right.astype(np.float64), score)
    sums = [np.bincount(place, weights=weight, minlength=requests * _CELLS) for weight in weights]
    return np.stack([column.reshape(requests, _CELLS) for column in sums], axis=1).astype(np.float64)


def _score(signal: Signal, rounds: Rounds) -> F64:
    if signal is Signal.CONFIDENCE:
        return np.asarray(rounds["node_confidence"])
    with np.errstate(over="ignore"):
        # the margin speaks of the first candidate at a slot, not of its siblings
        score = 1.0 / (1.0 + np.exp(-rounds["node_margin"]))
    return np.where(rounds.node_rank == 0, score, np.nan)


def _calibrated(signal: Signal, counts: F64) -> Calibrated:
    pooled = counts.sum(axis=0)
    used = counts[:, 0].sum(axis=1) > 0
    ece_interval = auc_interval = None
    if used.sum() >= 2:
        flat = counts[used].reshape(int(used.sum()), -1)
        draws = draws_of(flat, len(flat)).reshape(-1, 3, _CELLS)
        ece_interval = interval_of(_ece(draws))
        areas = _auc(draws)
        # a resample without a rejected node orders nothing
        auc_interval = interval_of(areas[~np.isnan(areas)]) if not np.isnan(_auc(pooled)) else None
    area = float(_auc(pooled))
    return Calibrated(
        signal,
        int(pooled[0].sum()),
        int(pooled[1].sum()),
        float(_ece(pooled)),
        ece_interval,
        None if np.isnan(area) else area,
        auc_interval,
        _bins(pooled),
    )


def _tenths(counts: F64) -> F64:
    """Add the cells of each tenth; `[..., 3, 10]`."""
    starts = np.searchsorted(_TENTH, np.arange(10))
    return np.asarray(np.add.reduceat(counts, starts, axis=-1))


def _ece(counts: F64) -> F64:
    """Return sum |accepted - score sum| / nodes of `[..., 3, cells]`."""
    nodes, accepted, scores = np.moveaxis(_tenths(counts), -2, 0)
    return np.asarray(np.abs(accepted - scores).sum(axis=-1) / nodes.sum(axis=-1))


def _auc(counts: F64) -> F64:
    """Return the area under the ROC curve of `[..., 3, cells]`; NaN unless some are accepted, some not."""
    accepted = counts[..., 1, :]
    rejected = counts[..., 0, :] - accepted
    below = np.cumsum(rejected, axis=-1) - rejected
    pairs = accepted.sum(axis=-1) * rejected.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((accepted * (below + rejected / 2)).sum(axis=-1) / pairs)


def _bins(pooled: F64) -> tuple[Bin, ...]:
    nodes, accepted, scores = _tenths(pooled)
    return tuple(
        Bin(tenth / 10, (tenth + 1) / 10, int(count), int(right), float(total / count) if count else None)
        for tenth, (count, right, total) in enumerate(zip(nodes, accepted, scores, strict=True))
    )

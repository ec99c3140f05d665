"""What a policy's rounds cost: predicted time, and the tokens that they bring, by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.replay.branching import leaves
from dflash.replay.cost import CostModel
from dflash.replay.statistics import Interval, draws_of, interval_of
from dflash.replay.tally import Collector, Judged

SPEED_DEFINITIONS = {
    "speed_up": "time of one-token decoding of the same tokens, verify(0 nodes) a token, over the predicted "
    "time of the rounds; both from the cost model, at its batch",
    "tokens_per_second": "tokens before truncation over the predicted time, of one request; times the batch "
    "for the whole engine",
    "verified_per_token": "target rows, nodes + 1 a round, per token emitted before truncation",
}
# tokens, us, us of one-token decoding, rows verified, rounds
_SUMS = 5


class Speed(NamedTuple):
    """Predicted speed; an interval is None for fewer than two requests.

    Attributes:
        difference_interval: of the speed-up minus the first policy's, on the same resamples.
    """

    speed_up: float
    interval: Interval | None
    difference: float
    difference_interval: Interval | None
    tokens_per_second: float
    round_us: float
    verified_per_token: float


@dataclass(slots=True)
class Work(Collector):
    """Sums by request: tokens, predicted microseconds, those of one-token decoding, rows, rounds."""

    model: CostModel
    _sums: list[F64] = field(default_factory=list)

    def count(self, owners: Sequence[I64], judged: Sequence[Judged], requests: int) -> None:
        """Count the rounds of one row group, given the request of each."""
        total = np.zeros((requests, _SUMS))
        for owner, item in zip(owners, judged, strict=True):
            total += self._rounds(owner, item, requests)
        self._sums.append(total)

    def count_law(self, length: int, rounds: F64, tokens: I64, context: F64) -> None:
        """Count expected rounds of chains.

        Args:
            length: of every chain.
            rounds: `[requests]` expected; `tokens` and mean `context` likewise.
        """
        profile, batch = self.model.step_time, self.model.batch
        one = profile.draft(length, 1) + profile.verify(length, batch, context)
        plain = profile.verify(0, batch, context)
        columns = (tokens, rounds * one, tokens * plain, rounds * (length + 1), rounds)
        self._sums.append(np.column_stack(columns).astype(np.float64))

    def sums(self) -> F64:
        """Return all requests' sums; `[requests, 5]`."""
        return np.concatenate(self._sums) if self._sums else np.zeros((0, _SUMS))

    def _rounds(self, owner: I64, item: Judged, requests: int) -> F64:
        rounds = item.rounds
        kinds, kind = _kinds(rounds)
        context = rounds.anchor_position + 1.0
        count = np.bincount(owner, minlength=requests).astype(np.float64)
        mean = np.bincount(owner, weights=context, minlength=requests) / np.maximum(1.0, count)
        place, cell = np.unique(owner * len(kinds) + kind, return_inverse=True)
        times = np.bincount(cell, minlength=len(place))
        request, which = place // max(1, len(kinds)), place % max(1, len(kinds))
        depth, width, nodes = kinds[which].T
        profile, batch = self.model.step_time, self.model.batch
        us = profile.draft(depth, np.maximum(1, width)) + profile.verify(nodes, batch, mean[request])
        tokens = np.bincount(owner, weights=item.decision.accepted_count + 1.0, minlength=requests)
        rows = np.bincount(owner, weights=np.diff(rounds.node_offsets) + 1.0, minlength=requests)
        spent = np.bincount(request, weights=times * us, minlength=requests)
        plain = tokens * profile.verify(0, batch, mean)
        return np.column_stack((tokens, spent, plain, rows, count))


def speeds(works: Sequence[Work]) -> list[Speed | None]:
    """Sum up the works of several policies on the same requests; None for one without rounds."""
    sums = [work.sums() for work in works]
    if not sums or not all(len(column) == len(sums[0]) for column in sums):
        raise ValueError("expected the works of policies on the same requests")
    used = np.logical_and.reduce([column[:, 4] > 0 for column in sums])
    draws = None
    if used.sum() >= 2:
        # three columns a policy decide all intervals
        columns = np.concatenate([column[used][:, 1:3] for column in sums], axis=1)
        draws = draws_of(columns, int(used.sum())).reshape(-1, len(sums), 2)
    found: list[Speed | None] = []
    for index, column in enumerate(sums):
        found.append(_speed(column.sum(axis=0), sums[0].sum(axis=0), draws, index))
    return found


def _speed(total: F64, first: F64, draws: F64 | None, index: int) -> Speed | None:
    tokens, us, plain, rows, rounds = total.tolist()
    if not rounds or not us:
        return None
    interval = difference = None
    if draws is not None:
        ratio = draws[:, index, 1] / draws[:, index, 0]
        interval = interval_of(ratio)
        difference = interval_of(ratio - draws[:, 0, 1] / draws[:, 0, 0]) if index else None
    return Speed(
        plain / us,
        interval,
        plain / us - first[2] / first[1],
        difference,
        1e6 * tokens / us,
        us / rounds,
        rows / tokens,
    )


def _kinds(rounds: Rounds) -> tuple[I64, I64]:
    """Return the different (depth, branches, nodes) of the trees, and which of them each round has."""
    depth = np.zeros(len(rounds), dtype=np.int64)
    filled = np.diff(rounds.node_offsets) > 0
    starts = rounds.node_offsets[:-1][filled]
    if len(starts):
        depth[filled] = np.maximum.reduceat(rounds.node_depth, starts)
    nodes = np.diff(rounds.node_offsets)
    width = leaves(rounds) if rounds.node_rank.any() else (nodes > 0).astype(np.int64)
    spread = int(nodes.max(initial=0)) + 1
    codes, kind = np.unique((depth * spread + width) * spread + nodes, return_inverse=True)
    kinds = np.stack((codes // spread**2, codes // spread % spread, codes % spread), axis=1)
    return kinds, kind

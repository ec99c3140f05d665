"""What a policy's rounds cost: predicted time, and the tokens that they bring, by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dflash.policy.noise import F64, I64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.policy.shape import Shape
from dflash.policy.topology import Bool
from dflash.replay.branching import leaves
from dflash.replay.cost import CostModel
from dflash.replay.statistics import Interval, draws_of, interval_of
from dflash.replay.tally import Collector, Judged

SPEED_DEFINITIONS = {
    "speed_up": "time of one-token decoding of the same tokens, verify(0 nodes) a token, over the predicted "
    "time of the rounds; both from the cost model, at its batch. Of a policy of length 0, which drafts "
    "nothing, it is 1; null where one-token decoding was never timed",
    "tokens_per_second": "tokens before truncation over the predicted time, of one request; times the batch "
    "for the whole engine",
    "verified_per_token": "target rows, nodes + 1 a round, per token before truncation",
    "off_choice": "rounds that accept a token which the target would not have chosen, of all rounds",
    "best_share": "share of the resamples of requests in which no other policy that takes part is faster; "
    "policies that tie share a resample",
}
TOKENS, US, PLAIN_US, ROWS, ROUNDS, OFF_CHOICE = range(6)
_SUMS = 6
_TIE = 1e-9


class Speed(NamedTuple):
    """Predicted speed; an interval is None for fewer than two requests.

    Attributes:
        speed_up: against one-token decoding.
        difference: the speed-up minus that of the reference, its interval from the same resamples.
        best_share: share of the resamples in which no other policy that takes part is faster; ties share.
        round_us: mean predicted time of a round.
    """

    speed_up: float
    interval: Interval | None
    difference: float
    difference_interval: Interval | None
    best_share: float | None
    tokens_per_second: float
    round_us: float
    verified_per_token: float
    off_choice: float
    off_choice_interval: Interval | None

    @property
    def nodes(self) -> float:
        """Mean nodes of a round."""
        return self.verified_per_token * self.tokens_per_second * self.round_us / 1e6 - 1.0


@dataclass(slots=True)
class Work(Collector):
    """Sums by request: tokens, microseconds, those of one-token decoding, rows, rounds, off-choice rounds.

    Attributes:
        model: prices the rounds.
        asked: (length, branches) that are drafted in every round; None where drafting ends with the tree.
        drafts: whether the policy drafts at all; else it spends no time on that.
    """

    model: CostModel
    asked: tuple[int, int] | None = None
    drafts: bool = True
    _sums: list[F64] = field(default_factory=list)

    columns = ("node_token", "slot_choice")

    @classmethod
    def of(cls, model: CostModel, policy: Policy, largest: Shape) -> Work:
        """Make the collector of a policy, some of whose cuts may come after drafting.

        Args:
            largest: the shape that is drafted where the policy leaves it open.
        """
        shape = policy.shape.filled(largest)
        late = policy.shape.after_drafting.cuts() or policy.control.columns
        asked = (int(shape.length or 0), int(shape.branches or 1)) if late else None
        return cls(model, asked, shape.length != 0)

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
        one = self._draft(length, 1) + profile.verify(length, batch, context)
        plain = profile.verify(0, batch, context)
        columns = (tokens, rounds * one, tokens * plain, rounds * (length + 1), rounds, np.zeros(len(tokens)))
        self._sums.append(np.column_stack(columns).astype(np.float64))

    def sums(self) -> F64:
        """Return all requests' sums; `[requests, 6]`, columns `TOKENS` to `OFF_CHOICE`."""
        return np.concatenate(self._sums) if self._sums else np.zeros((0, _SUMS))

    def speed_up(self) -> float:
        """Return the speed-up over all requests, 0 without rounds."""
        _, us, plain, *_ = self.sums().sum(axis=0).tolist()
        return plain / us if us else 0.0

    def _draft(self, length: npt.ArrayLike, branches: npt.ArrayLike) -> F64:
        """Microseconds of drafting; a search that finds nothing takes time, too."""
        us = self.model.step_time.draft(length, branches, self.model.batch)
        return us if self.drafts else np.zeros_like(us)

    def _rounds(self, owner: I64, item: Judged, requests: int) -> F64:
        rounds = item.rounds
        kinds, kind = _kinds(rounds)
        context = rounds.anchor_position + 1.0
        count = np.bincount(owner, minlength=requests).astype(np.float64)
        mean = np.bincount(owner, weights=context, minlength=requests) / np.maximum(1.0, count)
        place, times = _counted(owner * len(kinds) + kind, requests * len(kinds))
        request, which = place // max(1, len(kinds)), place % max(1, len(kinds))
        depth, width, nodes = kinds[which].T
        profile, batch = self.model.step_time, self.model.batch
        length, branches = (depth, np.maximum(1, width)) if self.asked is None else self.asked
        us = self._draft(length, branches) + profile.verify(nodes, batch, mean[request])
        tokens = np.bincount(owner, weights=item.decision.accepted_count + 1.0, minlength=requests)
        rows = np.bincount(owner, weights=np.diff(rounds.node_offsets) + 1.0, minlength=requests)
        spent = np.bincount(request, weights=times * us, minlength=requests)
        plain = tokens * profile.verify(0, batch, mean)
        off = np.bincount(owner[_off_choice(item)], minlength=requests)
        return np.column_stack((tokens, spent, plain, rows, count, off))


def speeds(works: Sequence[Work], reference: int, among: Bool) -> list[Speed | None]:
    """Sum up the works of several policies on the same requests; None for one without rounds.

    Args:
        reference: the policy from which differences are taken.
        among: `[policies]` which of them take part in being the best.
    """
    used = np.logical_and.reduce([work.sums()[:, ROUNDS] > 0 for work in works])
    totals = np.array([work.sums().sum(axis=0) for work in works])
    ratio = off = None
    share = np.full(len(works), np.nan)
    if used.sum() >= 2:
        # one policy after the other, since the sums of all would be held in memory twice
        draws = np.stack([draws_of(work.sums()[used], int(used.sum())) for work in works], axis=1)
        ratio, off = draws[..., PLAIN_US] / draws[..., US], draws[..., OFF_CHOICE] / draws[..., ROUNDS]
        share[among] = _best_shares(ratio[:, among])
    base = float(totals[reference, PLAIN_US] / totals[reference, US])
    found: list[Speed | None] = []
    for index, (tokens, us, plain, rows, rounds, strayed) in enumerate(totals.tolist()):
        if not rounds:
            found.append(None)
            continue
        against = None
        if ratio is not None and index != reference:
            against = interval_of(ratio[:, index] - ratio[:, reference])
        found.append(
            Speed(
                speed_up=plain / us,
                interval=None if ratio is None else interval_of(ratio[:, index]),
                difference=plain / us - base,
                difference_interval=against,
                best_share=None if np.isnan(share[index]) else float(share[index]),
                tokens_per_second=1e6 * tokens / us,
                round_us=us / rounds,
                verified_per_token=rows / tokens,
                off_choice=strayed / rounds,
                off_choice_interval=None if off is None else interval_of(off[:, index]),
            )
        )
    return found


def _best_shares(ratio: F64) -> F64:
    """Return the share of resamples that each policy wins; `[resamples, policies]` to `[policies]`."""
    # the same work, summed in another order, differs in its last digits
    won = ratio >= ratio.max(axis=1, initial=0.0, keepdims=True) * (1 - _TIE)
    return np.asarray((won / np.maximum(1, won.sum(axis=1, keepdims=True))).mean(axis=0))


def _off_choice(item: Judged) -> Bool:
    """Return which rounds accept a token other than the target's choice at its place; `[R]`."""
    rounds = item.rounds
    nodes = item.decision.accepted_nodes
    strays = rounds["node_token"][nodes] != rounds["slot_choice"][rounds.parent_slot[nodes]]
    off = np.zeros(len(rounds), dtype=bool)
    off[rounds.node_round[nodes[strays]]] = True
    return off


def _kinds(rounds: Rounds) -> tuple[I64, I64]:
    """Return the different (depth, branches, nodes) of the trees, and which of them each round has."""
    trees = rounds.trees
    nodes, depth = trees.counts, trees.tree_depth
    if not trees.branching:
        chain = np.arange(int(nodes.max(initial=0)) + 1)
        return np.stack((chain, np.minimum(chain, 1), chain), axis=1), nodes
    width = leaves(rounds)
    spread = int(nodes.max(initial=0)) + 1
    codes, kind = np.unique((depth * spread + width) * spread + nodes, return_inverse=True)
    kinds = np.stack((codes // spread**2, codes // spread % spread, codes % spread), axis=1)
    return kinds, kind


def _counted(codes: I64, size: int) -> tuple[I64, I64]:
    """Return the different codes below `size`, ascending, and how often each occurs."""
    if size > 4 * len(codes) + 1024:
        return np.unique(codes, return_counts=True)
    times = np.bincount(codes, minlength=size)
    found = np.flatnonzero(times)
    return found, times[found]

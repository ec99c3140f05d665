from __future__ import annotations

import numpy as np
import pytest

from dflash.replay.statistics import at_least, resampled, tau
from dflash.replay.tally import Tally, stacked_sum


class Counted(Tally):
    """A tally of given counts."""

    def __init__(self, counts):
        super().__init__()
        self._lengths.append(np.asarray(counts))


def test_tau_is_the_mean_accepted_length_plus_one():
    assert tau(np.array([2, 3, 1])) == pytest.approx((2 * 1 + 3 * 2 + 1 * 3) / 6)
    assert tau(np.array([5])) == 1.0
    assert tau(np.array([0, 0])) is None


def test_at_least_counts_from_one():
    assert at_least(np.array([4, 3, 2, 1])).tolist() == [6, 3, 1]
    assert at_least(np.array([4])).tolist() == []


def test_one_request_has_no_interval():
    found = resampled([Counted([[3, 4, 5]])])[0]
    assert found.tau is None
    assert found.difference is None
    assert found.marginal == (None, None)
    # a request without rounds does not make a second one
    assert resampled([Counted([[3, 4, 5], [0, 0, 0]])])[0].tau is None


def test_intervals_have_the_width_of_the_ratio_estimate():
    random = np.random.default_rng(0)
    rate = random.beta(4, 4, 400)
    counts = np.stack([random.multinomial(20, [1 - r, r / 2, r / 2]) for r in rate])
    rounds, accepted = counts.sum(axis=1), counts @ np.arange(3)
    ratio = accepted.sum() / rounds.sum()
    error = np.sqrt(((accepted - ratio * rounds) ** 2).sum()) / rounds.sum()
    found = resampled([Counted(counts)])[0]
    assert found.tau.high - found.tau.low == pytest.approx(2 * 1.96 * error, rel=0.08)
    assert found.tau.low < 1 + ratio < found.tau.high
    share = counts[:, 1:].sum() / rounds.sum()
    assert found.marginal[0].low < share < found.marginal[0].high


def test_policies_are_paired():
    random = np.random.default_rng(1)
    counts = random.integers(0, 9, (50, 4))
    better = counts.copy()
    # one request a little better: the difference is far surer than either tau
    better[0] = [0, 0, 0, counts[0].sum()]
    first, second, same = resampled([Counted(counts), Counted(better), Counted(counts)])
    assert first.tau == same.tau
    assert same.difference == (0.0, 0.0)
    assert 0 <= second.difference.low <= second.difference.high
    assert second.difference.high - second.difference.low < second.tau.high - second.tau.low
    assert resampled([Counted(counts)])[0].tau == first.tau


def test_sums_of_unequal_width_add_up():
    total = stacked_sum([np.array([[1, 2]]), np.array([[1, 0, 5]])], 1)
    assert total.tolist() == [[2, 2, 5]]
    assert stacked_sum([], 2).tolist() == [[0], [0]]


def test_conditional_acceptance_is_resampled_with_what_was_tried():
    class Counted:
        def __init__(self, lengths, reached):
            self.lengths, self.reached = (lambda: lengths), (lambda: reached)

    random = np.random.default_rng(4)
    depth = 3
    accepted = random.binomial(depth, 0.6, (30, 40))
    lengths = np.stack([np.bincount(row, minlength=depth + 1) for row in accepted])
    tried = np.stack([np.bincount(np.minimum(row + 1, depth), minlength=depth + 1) for row in accepted])
    (found,) = resampled([Counted(lengths, tried)])
    for position in range(1, depth + 1):
        reached = (np.minimum(accepted + 1, depth) >= position).sum()
        share = (accepted >= position).sum() / reached
        low, high = found.conditional[position - 1]
        assert low < share < high
        # rounds are independent here: the width of a proportion
        assert high - low == pytest.approx(3.92 * np.sqrt(share * (1 - share) / reached), rel=0.5)
    seldom = np.zeros((30, 4), dtype=np.int64)
    seldom[:, 0], seldom[0, 0], seldom[0, 3] = 5, 4, 1
    (found,) = resampled([Counted(seldom, np.minimum(np.roll(seldom, 1, axis=1), 9))])
    assert found.conditional[-1] is None

"""The statistics of the audit: the stated false-alarm rate holds at every size, and the power is there."""

from __future__ import annotations

import numpy as np
import pytest

from dflash.replay.audit.bets import Bet, holm, p_value

RATE = 0.05


def observations(random, runs, count):
    """`[count, runs]`: claimed probabilities that depend on what happened before, and honest events."""
    claimed, hits = np.empty((count, runs)), np.empty((count, runs), dtype=bool)
    level = np.full(runs, 0.5)
    for index in range(count):
        claimed[index] = level
        hits[index] = random.random(runs) < level
        level = 0.05 + 0.9 * (0.6 * level + 0.4 * hits[index])
    return hits, claimed


@pytest.mark.parametrize("count", [3, 40, 400])
def test_honest_runs_raise_few_alarms_over_all_tests_together(count):
    random = np.random.default_rng(count)
    runs, tests, alarms = 1000, 4, 0
    hits, claimed = observations(random, runs * tests, count)
    for run in range(runs):
        p_values = []
        for test in range(run * tests, (run + 1) * tests):
            one, other = Bet(), Bet()
            one.add(hits[:, test], claimed[:, test])
            other.add(~hits[:, test], 1.0 - claimed[:, test])
            p_values.append(p_value({"one": one, "other": other}))
        alarms += any(holm(p_values, RATE))
    # three deviations of the binomial
    assert alarms <= runs * RATE + 3 * np.sqrt(runs * RATE * (1 - RATE))


@pytest.mark.parametrize("claimed", [0.02, 0.3, 0.9])
def test_an_error_of_the_stated_size_is_found(claimed):
    random = np.random.default_rng(7)
    count, runs, found = 600, 150, 0
    bet = Bet()
    bet.add(np.zeros(count, dtype=bool), np.full(count, claimed))
    shift = bet.detectable(RATE, 1)
    assert shift < 0.2
    shift = shift if claimed + shift < 1 else -shift
    for _ in range(runs):
        bet = Bet()
        bet.add(random.random(count) < claimed + shift, np.full(count, claimed))
        found += any(holm([p_value({"event": bet})], RATE))
    assert found >= 0.85 * runs


def test_bets_merge_whatever_the_order_and_the_pieces():
    random = np.random.default_rng(3)
    hits, claimed = (part[:, 0] for part in observations(random, 1, 200))
    whole, pieces = Bet(), Bet()
    whole.add(hits, claimed)
    order = random.permutation(200)
    for part in np.array_split(order, 7):
        pieces.add(hits[part], claimed[part])
    assert pieces.log_stake == pytest.approx(whole.log_stake)
    assert (pieces.count, pieces.hits) == (whole.count, whole.hits)


def test_the_mean_stake_is_one_by_enumeration():
    total = 0.0
    p = np.array([0.2, 0.7, 0.5, 0.95])
    for outcome in range(16):
        hits = np.array([bool(outcome >> place & 1) for place in range(4)])
        bet = Bet()
        bet.add(hits, p)
        total += float(np.where(hits, p, 1 - p).prod() * np.exp(bet.log_stake))
    assert total == pytest.approx(1.0)


def test_holm_steps_down():
    assert holm([0.04, 0.005, 0.5, 0.015], 0.05) == [False, True, False, True]
    assert holm([0.03, 0.03], 0.05) == [False, False]
    assert holm([], 0.05) == []

"""Siblings are the winners of one race: draws without replacement, each log q conditional on those before."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.drafters.race import draw, slot_law
from dflash.policy.context import DraftSampling

LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=12)


def plain_law(logits, sampling):
    """Temperature, top-k, top-p: probabilities [vocabulary], zero where cut."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: sampling.top_k or len(order)]
    weights = [math.exp((logits[token] - logits[order[0]]) / sampling.temperature) for token in order]
    total, below, kept = sum(weights), 0.0, {}
    for token, weight in zip(order, weights, strict=True):
        if below <= sampling.top_p * total or sampling.top_p == 1:
            kept[token] = weight
        below += weight
    return {token: weight / sum(kept.values()) for token, weight in kept.items()}


@given(LOGITS, st.floats(0.3, 2), st.integers(0, 12), st.sampled_from([1.0, 0.95, 0.5]), st.data())
def test_siblings_differ_and_their_log_q_is_conditional(logits, temperature, top_k, top_p, data):
    sampling = DraftSampling(temperature, top_k, top_p)
    law = slot_law(np.array(logits), sampling)
    q = plain_law(logits, sampling)
    if top_p == 1:
        assert dict(zip(law.tokens.tolist(), np.exp(law.log_q), strict=True)) == pytest.approx(q)
    q = dict(zip(law.tokens.tolist(), np.exp(law.log_q).tolist(), strict=True))
    assert sum(q.values()) == pytest.approx(1)
    noise = np.random.default_rng(data.draw(st.integers(0, 9))).exponential(size=len(logits))
    siblings = draw(law, np.log(noise), data.draw(st.integers(1, 5)))
    left = dict(q)
    for sibling in siblings:
        total = math.fsum(left.values())
        # what is left of 1 after near certainty has few digits
        if total > 1e-9:
            assert math.exp(sibling.log_q) == pytest.approx(q[sibling.token] / total, rel=1e-4)
        del left[sibling.token]
    order = sorted(q, key=lambda token: noise[token] / q[token])
    assert [sibling.token for sibling in siblings] == order[: len(siblings)]


def test_pairs_of_siblings_follow_the_law_of_draws_without_replacement():
    law = slot_law(np.log([0.5, 0.3, 0.15, 0.05]), DraftSampling(1.0))
    q = {0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05}
    noise = np.log(np.random.default_rng(4).exponential(size=(20_000, 4)))
    seen = Counter(tuple(sibling.token for sibling in draw(law, line, 2)) for line in noise)
    expected = {(a, b): q[a] * q[b] / (1 - q[a]) for a in q for b in q if a != b}
    chi_square = sum((seen[pair] - 20_000 * p) ** 2 / (20_000 * p) for pair, p in expected.items())
    # 11 degrees of freedom: 31.3 is passed once in a thousand
    assert chi_square < 31.3


def test_without_noise_the_best_are_taken_and_log_q_is_zero():
    law = slot_law(np.array([0.0, 2.0, 2.0, 1.0]), DraftSampling(0.0, 3))
    assert [tuple(sibling) for sibling in draw(law, None, 2)] == [(1, 0, 0.0, 1.0), (2, 1, 0.0, 1.0)]
    assert [sibling.draft_gap for sibling in draw(law, None, 3)] == [None] * 3

from __future__ import annotations

import numpy as np
import pytest
from table_engine import PROMPT, TableEngine, chi_square, noise, seed_keys, words

from dflash.policy.block import Block
from dflash.policy.context import Proposal
from dflash.policy.match import Match
from dflash.policy.noise import (
    Purpose,
    draft_exponentials,
    path_hash,
    residual_exponentials,
    target_exponentials,
)
from dflash.policy.registry import parse_policy, policies
from dflash.policy.rule import Lossless
from dflash.policy.speculative import Speculative

P = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.05, 0.15, 0.8]])
Q = np.array([[0.3, 0.3, 0.4], [0.5, 0.3, 0.2], [0.6, 0.1, 0.3]])
BAD = np.array([[0.05, 0.05, 0.9], [0.9, 0.05, 0.05], [0.45, 0.5, 0.05]])
SEEDS = 60_000
# normal quantiles; seeds are fixed, so an honest engine passes or fails for ever
LIMIT, ALARM = 4.0, 8.0

RUNS = [
    (rule, proposal, length, branches)
    for rule in (Match(), Speculative())
    for proposal in (Proposal.DETERMINISTIC, Proposal.SHARED, Proposal.INDEPENDENT)
    for length, branches in ((3, 1), (2, 2), (1, 3))
]

ONE, FREE, NOISE = Proposal.DETERMINISTIC, Proposal.INDEPENDENT, Proposal.SHARED
PRESETS = [
    ("ensemble:w=1", FREE, 3, 1),
    ("sglang", ONE, 2, 2),
    ("sglang", ONE, 1, 3),
    ("sglang", FREE, 2, 2),
    ("sglang:method=block", FREE, 3, 1),
    ("sglang:method=chain", FREE, 3, 1),
    ("sglang:method=chain", NOISE, 3, 1),
    ("threshold:single=1,acc=1", ONE, 2, 2),
    ("threshold:single=1,acc=1", NOISE, 2, 2),
    ("transformers", FREE, 3, 1),
    ("transformers", ONE, 3, 1),
    ("trtllm", NOISE, 2, 2),
    ("vllm-mrv2", FREE, 3, 1),
    ("vllm-mrv2", ONE, 3, 1),
    ("vllm-mrv2:method=block", FREE, 3, 1),
    ("vllm-mrv2:method=block", ONE, 3, 1),
    ("vllm-mrv2:method=strict", NOISE, 3, 1),
    ("vllm-v1", FREE, 3, 1),
    ("vllm-v1", ONE, 3, 1),
]
BLOCKS = [(Block(), FREE, 3, 1), (Block(), ONE, 2, 2)]


@pytest.fixture(scope="module")
def keys():
    return seed_keys(SEEDS)


def first_three(p):
    first = p[PROMPT[-1]]
    return first[:, None, None] * p[:, :, None] * p[None, :, :]


@pytest.mark.parametrize(("rule", "proposal", "length", "branches"), RUNS)
@pytest.mark.parametrize("q", [Q, BAD], ids=["plain", "bad"])
def test_the_first_three_tokens_follow_p(rule, proposal, length, branches, q, keys):
    texts = TableEngine(P, q, rule, proposal, length, branches).run(keys, 3)
    assert chi_square(texts, first_three(P)) < LIMIT


@pytest.mark.parametrize(("policy", "proposal", "length", "branches"), PRESETS)
def test_the_first_three_tokens_follow_p_under_every_engine(policy, proposal, length, branches, keys):
    rule = parse_policy(policy).rule
    engine = TableEngine(P, BAD, rule, proposal, length, branches)
    assert rule.is_lossless(engine.context)
    assert chi_square(engine.run(keys[:20_000], 3), first_three(P)) < LIMIT


def test_every_lossless_rule_and_preset_runs_over_seeds():
    run = {rule.name for rule, *_ in RUNS + BLOCKS} | {policy.partition(":")[0] for policy, *_ in PRESETS}
    lossless = {rule.name for rule in policies() if rule.lossless is Lossless.ALWAYS}
    assert lossless <= run


@pytest.mark.slow
@pytest.mark.parametrize(("proposal", "length", "branches"), [(Proposal.INDEPENDENT, 2, 2)])
def test_speculative_follows_p_over_a_million_seeds(proposal, length, branches):
    assert million(Speculative(), proposal, length, branches) < LIMIT


@pytest.mark.evidence
@pytest.mark.parametrize(
    ("rule", "proposal", "length", "branches"),
    [*RUNS, *BLOCKS, *((parse_policy(policy).rule, *run) for policy, *run in PRESETS)],
)
def test_the_first_three_tokens_follow_p_over_a_million_seeds(rule, proposal, length, branches):
    assert million(rule, proposal, length, branches) < LIMIT


def million(rule, proposal, length, branches):
    engine = TableEngine(P, BAD, rule, proposal, length, branches)
    texts = [engine.run(part, 3) for part in np.split(seed_keys(1_000_000), 10)]
    return chi_square(np.concatenate(texts), first_three(P))


def test_rules_that_emit_the_choice_walk_one_trajectory(keys):
    keys = keys[:2_000]
    plain = TableEngine(P, Q, Match(), Proposal.DETERMINISTIC, 0).run(keys, 8)
    for rule, proposal, length, branches in RUNS:
        if rule == Match() or proposal is Proposal.DETERMINISTIC:
            for q in (Q, BAD):
                texts = TableEngine(P, q, rule, proposal, length, branches).run(keys, 8)
                np.testing.assert_array_equal(texts, plain)


def test_shared_noise_is_accepted_more_often_than_independent(keys):
    def rounds_needed(proposal):
        engine = TableEngine(P, Q, Match(), proposal, 3)
        position = np.full(len(keys), len(PROMPT) - 1)
        return engine._round(keys, position, np.full(len(keys), PROMPT[-1]))[1].mean()

    assert rounds_needed(Proposal.SHARED) > rounds_needed(Proposal.INDEPENDENT) + 0.1


def test_coins_shared_by_siblings_are_caught(keys):
    def by_position(rounds, purpose):
        own = rounds.anchor_position[rounds.node_round] + rounds.node_depth
        word = words(rounds.key[rounds.node_round], own, Purpose.ACCEPT, 0, 0)[:, 0]
        return (word + 0.5) * 2.0**-32

    engine = TableEngine(P, BAD, Speculative(), Proposal.INDEPENDENT, 2, 2, coins=by_position)
    assert chi_square(engine.run(keys, 3), first_three(P)) > ALARM


def test_residuals_drawn_with_the_noise_of_the_drafts_are_caught(keys):
    engine = TableEngine(P, BAD, Speculative(), Proposal.INDEPENDENT, 3, residual_purpose=Purpose.DRAFT)
    assert chi_square(engine.run(keys, 3), first_three(P)) > ALARM


def test_the_engine_of_these_tests_uses_the_noise_of_the_package():
    keys = seed_keys(20)
    for row, key in enumerate(map(tuple, keys.tolist())):
        position = np.full(20, 5)
        np.testing.assert_array_equal(
            noise(keys, position, Purpose.TARGET, 0, 0, 3)[row], target_exponentials(key, 5, 3)
        )
        np.testing.assert_array_equal(
            noise(keys, position, Purpose.DRAFT, 2, path_hash((1,)), 3)[row],
            draft_exponentials(key, 5, 2, (1,), 3),
        )
        np.testing.assert_array_equal(
            noise(keys, position, Purpose.RESIDUAL, 2, path_hash((1,)), 3)[row],
            residual_exponentials(key, 5, 2, (1,), 3),
        )

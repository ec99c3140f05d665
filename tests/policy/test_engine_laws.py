"""Engine presets and lossless settings of lossy rules emit p: drafts enumerated, coins integrated."""

from __future__ import annotations

import numpy as np
import pytest
from laws import (
    ROOT,
    TARGET_T,
    Draft,
    capped,
    choice_law,
    drafts,
    sampled_context,
    shared_coin_law,
    speculative_law,
    text_law,
)
from test_laws import CHAIN, DRAFTERS, NESTED, PAIR, TRIPLE, P, Q, residual_list

from dflash.policy.context import Proposal, RuleContext
from dflash.policy.registry import parse_policy

CHAINS = {"one node": [[]], "two": [[[]]], "three": CHAIN}
RATIO = ["ensemble:w=1", "sglang:method=chain", "transformers", "vllm-mrv2", "vllm-v1"]
BLOCK = ["sglang:method=block", "vllm-mrv2:method=block"]
TARGET_ONLY = ["sglang", "sglang:single=1,acc=1", "threshold:acc=1", "threshold:single=1"]
EQUALITY = ["transformers", "trtllm", "vllm-mrv2:method=strict"]
# coins of 24 bits, and values stored as float32
TOLERANCE = 5e-6
# sums of these rows are multiples of 1/20
EVEN = [P, np.array([[0.0, 0.7, 0.3], [1.0, 0.0, 0.0], [0.4, 0.0, 0.6]])]


def residual_after(p, q, draft, node, blocks):
    """What norm(max(0, P p - q)) leaves at a node of a chain; q is one-hot where it is None."""
    before = ROOT if node == 0 else draft.tokens[node - 1]
    law = np.eye(len(p))[draft.tokens[node]] if q is None else q[before]
    scale = 1.0
    if blocks:
        one_hot = np.ones_like(p) if q is None else q
        scale = capped(p, one_hot, draft, node - 1)
    rest = np.maximum(0.0, scale * p[before] - law)
    return rest / rest.sum() if rest.sum() > 0 else p[before]


def law_of(policy, p, q, plan, depth, context, outcomes):
    rule = parse_policy(policy).rule
    assert rule.is_lossless(context)
    blocks = policy in BLOCK
    given = None if context.proposal is Proposal.DETERMINISTIC else q
    laws = [
        residual_after(p, given, draft, node, blocks)
        for draft in outcomes
        for node in range(len(draft.tokens))
    ]
    return speculative_law(rule, context, p, q, plan, depth + 1, residual_list, outcomes=outcomes, laws=laws)


@pytest.mark.parametrize("drafter", ["plain", "q = p", "q zero where p is not", "p with zeros", "disjoint"])
@pytest.mark.parametrize("policy", RATIO + BLOCK)
def test_an_engine_emits_p_from_sampled_chains(policy, drafter):
    p, q = DRAFTERS[drafter]
    rule = parse_policy(policy).rule
    context = sampled_context(Proposal.INDEPENDENT, rule.name)
    for depth, plan in enumerate(CHAINS.values(), start=1):
        law = law_of(policy, p, q, plan, depth, context, drafts(q, plan, False))
        np.testing.assert_allclose(law, text_law(p, depth + 1), atol=TOLERANCE)


@pytest.mark.parametrize("policy", ["sglang:method=chain", "vllm-mrv2", "vllm-v1", *BLOCK])
def test_an_engine_emits_p_from_deterministic_chains(policy):
    rule = parse_policy(policy).rule
    context = RuleContext(TARGET_T, Proposal.DETERMINISTIC, recorded_rule=rule.name)
    for tokens in ([0], [2], [1, 2], [2, 0, 1]):
        draft = Draft(1.0, tokens, list(range(-1, len(tokens) - 1)), [0.0] * len(tokens))
        uniform = np.full((3, 3), 1 / 3)
        law = law_of(policy, P, uniform, None, len(tokens), context, [draft])
        np.testing.assert_allclose(law, text_law(P, len(tokens) + 1), atol=TOLERANCE)


@pytest.mark.parametrize("p", EVEN, ids=["p", "p with zeros"])
@pytest.mark.parametrize("proposal", [Proposal.DETERMINISTIC, Proposal.SHARED, Proposal.INDEPENDENT])
@pytest.mark.parametrize("policy", TARGET_ONLY)
def test_siblings_that_share_a_coin_emit_p_however_they_were_drawn(policy, proposal, p):
    rule = parse_policy(policy).rule
    context = RuleContext(TARGET_T, proposal, recorded_rule=rule.name)
    assert rule.is_lossless(context)
    assert not rule.judges_q(context)
    for plan in ([[[]]], PAIR, TRIPLE):
        for draft in drafts(np.full((3, 3), 1 / 3), plan, False)[::4]:
            horizon = 1 + max(len_of(draft))
            law = shared_coin_law(rule, context, p, draft, horizon)
            np.testing.assert_allclose(law, text_law(p, horizon), atol=1e-9)


def len_of(draft):
    depth = []
    for parent in draft.parents:
        depth.append(1 if parent < 0 else depth[parent] + 1)
    return depth


def test_siblings_that_repeat_are_added_up_twice_and_said_to_be_lossy():
    rule = parse_policy("sglang").rule
    context = RuleContext(TARGET_T, Proposal.IID, recorded_rule=rule.name)
    assert not rule.is_lossless(context)
    draft = Draft(1.0, [1, 1], [-1, -1], [0.0, 0.0])
    law = shared_coin_law(rule, context, P, draft, 2)
    np.testing.assert_allclose(law.sum(axis=1)[1], 0.6, atol=1e-9)


@pytest.mark.parametrize("policy", ["sglang:acc=0.5", "sglang:single=0.2", "threshold:acc=0.9"])
def test_a_lowered_threshold_is_said_to_be_lossy_and_is(policy):
    rule = parse_policy(policy).rule
    context = RuleContext(TARGET_T, Proposal.DETERMINISTIC, recorded_rule=rule.name)
    assert not rule.is_lossless(context)
    law = shared_coin_law(rule, context, P, Draft(1.0, [1], [-1], [0.0]), 2)
    assert np.abs(law - text_law(P, 2)).max() > 0.02


@pytest.mark.parametrize("policy", EQUALITY)
def test_an_engine_that_compares_tokens_emits_p(policy):
    rule = parse_policy(policy).rule
    context = RuleContext(TARGET_T, Proposal.DETERMINISTIC)
    assert rule.is_lossless(context)
    plans = [CHAIN, NESTED] if rule.trees else [CHAIN]
    for plan in plans:
        for draft in drafts(np.full((3, 3), 1 / 3), plan, True)[:12]:
            horizon = 1 + max(len_of(draft))
            law = choice_law(rule, context, P, draft, horizon)
            np.testing.assert_allclose(law, text_law(P, horizon), atol=1e-12)


@pytest.mark.parametrize("w", [0.5, 0.9])
def test_the_bias_of_an_ensemble_is_bounded_by_its_weight(w):
    rule = parse_policy(f"ensemble:w={w}").rule
    context = sampled_context(Proposal.INDEPENDENT, "ensemble")
    law = speculative_law(rule, context, P, Q, [[]], 2, residual_list)
    distance = np.abs(law.sum(axis=1) - P[ROOT]).sum() / 2
    assert not rule.is_lossless(context)
    assert 0.01 < distance <= 1 - w


def test_synthetic_accepts_by_its_rates():
    rule = parse_policy("synthetic:rates=0.8/0.4/0.1").rule
    context = RuleContext(TARGET_T, Proposal.DETERMINISTIC)
    draft = Draft(1.0, [1, 1, 1], [-1, 0, 1], [0.0] * 3)
    law = shared_coin_law(rule, context, P, draft, 3, steps=40)
    assert not rule.is_lossless(context)
    # the choice that follows i accepted drafts may equal the next draft
    survival = law[1].sum() - 0.2 * P[0, 1]
    np.testing.assert_allclose(survival, 0.8, atol=1e-9)

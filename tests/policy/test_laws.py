from __future__ import annotations

import numpy as np
import pytest
from laws import (
    ROOT,
    TARGET_T,
    Draft,
    choice_law,
    drafts,
    sampled_context,
    speculative_law,
    text_law,
)

from dflash.policy.context import Proposal, RuleContext
from dflash.policy.match import Match
from dflash.policy.shape import Shape
from dflash.policy.speculative import Speculative, residuals

CHAIN = [[[[]]]]
PAIR = [[[]], [[]]]
TRIPLE = [[], [[]], []]
NESTED = [[[], []], [[]]]
PLANS = {"empty": [], "one node": [[]], "chain": CHAIN, "pair": PAIR, "triple": TRIPLE, "nested": NESTED}
TOLERANCE = 5e-6

P = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.05, 0.15, 0.8]])
P_ZEROS = np.array([[0.0, 0.7, 0.3], [1.0, 0.0, 0.0], [0.4, 0.0, 0.6]])
Q = np.array([[0.3, 0.3, 0.4], [0.5, 0.25, 0.25], [0.6, 0.1, 0.3]])
DRAFTERS = {
    "plain": (P, Q),
    "q = p": (P, P),
    "q one-hot": (P, np.eye(3)[[2, 0, 1]]),
    "q zero where p is not": (P, np.array([[0.0, 0.5, 0.5], [0.9, 0.0, 0.1], [0.5, 0.5, 0.0]])),
    "p with zeros": (P_ZEROS, Q),
    "disjoint": (P_ZEROS, np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 1.0, 0.0]])),
    "four tokens": (
        np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.1, 0.1, 0.7], [0.25] * 4, [0.0, 0.5, 0.5, 0.0]]),
        np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.1, 0.4, 0.4, 0.1], [0.5, 0.0, 0.0, 0.5]]),
    ),
}

FOUR = DRAFTERS["four tokens"]


def residual_list(p, q, tokens, with_replacement):
    return list(residuals(p, q, tokens, with_replacement))


def depth(plan):
    return 1 + max(map(depth, plan)) if plan else 0


def law_of(plan, p, q, proposal, rule=Speculative(), residual_law=residual_list, **more):
    return speculative_law(rule, sampled_context(proposal), p, q, plan, depth(plan) + 1, residual_law, **more)


# four tokens on the larger trees would only take longer
CASES = [
    (plan, name) for plan in PLANS for name in DRAFTERS if name != "four tokens" or plan in ("chain", "pair")
]


@pytest.mark.parametrize(("plan", "drafter"), CASES)
@pytest.mark.parametrize("proposal", [Proposal.INDEPENDENT, Proposal.IID])
def test_speculative_emits_p(plan, drafter, proposal):
    p, q = DRAFTERS[drafter]
    law = law_of(PLANS[plan], p, q, proposal)
    np.testing.assert_allclose(law, text_law(p, depth(PLANS[plan]) + 1), atol=TOLERANCE)


@pytest.mark.parametrize(
    "shape", [Shape(length=1), Shape(branches=1), Shape(length=1, branches=2), Shape(length=0)]
)
@pytest.mark.parametrize("proposal", [Proposal.INDEPENDENT, Proposal.IID])
def test_a_cut_tree_emits_p_too(shape, proposal):
    law = law_of(NESTED, P, Q, proposal, shape=shape)
    np.testing.assert_allclose(law, text_law(P, 3), atol=TOLERANCE)


@pytest.mark.parametrize("rule", [Match(), Speculative()])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("p", [P, P_ZEROS], ids=["p", "p with zeros"])
def test_choices_emit_p_whatever_was_drafted(rule, plan, p):
    context = RuleContext(TARGET_T, Proposal.DETERMINISTIC)
    for draft in drafts(np.full((3, 3), 1 / 3), PLANS[plan], True)[:60]:
        law = choice_law(rule, context, p, draft, depth(PLANS[plan]) + 1)
        np.testing.assert_allclose(law, text_law(p, depth(PLANS[plan]) + 1), atol=1e-12)


def test_match_accepts_a_duplicate_sibling_once():
    draft = Draft(1.0, [1, 1, 0], [-1, -1, 1], [0.0, 0.0, 0.0])
    law = choice_law(Match(), RuleContext(TARGET_T), P, draft, 3)
    np.testing.assert_allclose(law, text_law(P, 3), atol=1e-12)


def test_frequency_as_q_is_lossy():
    # a deterministic draft, whose q is taken to be how often it matched
    fixed = [Draft(1.0, [1], [-1], [float(np.log(0.5))])]
    law = law_of([[]], P, Q, Proposal.INDEPENDENT, outcomes=fixed)
    assert np.abs(law.sum(axis=1) - P[ROOT]).max() > 0.05

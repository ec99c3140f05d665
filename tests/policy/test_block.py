from __future__ import annotations

import numpy as np
import pytest
from laws import ROOT, TARGET_T, build, capped, drafts, sampled_context, speculative_law, text_law
from table_engine import PROMPT, TableEngine, chi_square, seed_keys, words
from test_laws import CHAIN, DRAFTERS, P, Q
from test_seeds import BAD

from dflash.policy.block import Block, block_residual_token
from dflash.policy.context import Proposal, RuleContext
from dflash.policy.errors import ChainsOnly, IndependentOnly
from dflash.policy.noise import Purpose
from dflash.policy.shape import Shape
from dflash.policy.speculative import Speculative

CHAINS = {"empty": [], "one node": [[]], "two": [[[]]], "three": CHAIN}


def law_of(plan, p, q, depth, scaled=True, shape=Shape()):
    outcomes = drafts(q, plan, False)
    laws = []
    for draft in outcomes:
        for node in range(len(draft.tokens)):
            before = ROOT if node == 0 else draft.tokens[node - 1]
            scale = capped(p, q, draft, node - 1) if scaled else 1.0
            rest = np.maximum(0.0, scale * p[before] - q[before])
            laws.append(rest / rest.sum() if rest.sum() > 0 else p[before])
    context = sampled_context(Proposal.INDEPENDENT, "block")
    return speculative_law(Block(), context, p, q, plan, depth + 1, None, shape, outcomes, laws)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("plan", CHAINS)
def test_block_emits_p(plan, drafter):
    p, q = DRAFTERS[drafter]
    depth = list(CHAINS).index(plan)
    np.testing.assert_allclose(law_of(CHAINS[plan], p, q, depth), text_law(p, depth + 1), atol=5e-6)


def test_a_shorter_block_emits_p_too():
    law = law_of(CHAIN, P, Q, 3, shape=Shape(length=2))
    np.testing.assert_allclose(law, text_law(P, 4), atol=5e-6)


def test_an_unscaled_residual_is_caught():
    assert np.abs(law_of(CHAIN, P, Q, 3, scaled=False) - text_law(P, 4)).max() > 1e-3


def test_acceptance_is_not_monotone():
    draft = [draft for draft in drafts(Q, CHAIN, False) if draft.tokens == [2, 2, 2]]
    rounds = build(P, Q, draft, slot_choice=np.arange(4))
    coins = np.array([0.99, 0.99, 0.01])
    context = RuleContext(
        TARGET_T, Proposal.INDEPENDENT, recorded_rule="block", coins=lambda rounds, purpose: coins
    )
    values = dict(rounds.values) | {"node_residual_token": np.zeros(3, dtype=np.int64)}
    chain = type(rounds).build(np.array([3]), rounds.node_parent, np.array([0]), rounds.key, values)
    decision = Block().decide(chain, context)
    assert decision.path(0) == [0, 1, 2]
    assert decision.bonus[0] == 3
    assert Speculative().decide(chain, context).path(0) == []


@pytest.mark.parametrize("drafter", ["plain", "q zero where p is not", "four tokens"])
def test_block_accepts_at_least_what_speculative_does(drafter):
    p, q = DRAFTERS[drafter]
    keys = seed_keys(20_000)
    start = np.full(len(keys), PROMPT[-1])
    position = np.full(len(keys), len(PROMPT) - 1)
    mean = {
        rule.name: TableEngine(p, q, rule, Proposal.INDEPENDENT, 3)._round(keys, position, start)[1].mean()
        for rule in (Block(), Speculative())
    }
    assert mean["block"] >= mean["speculative"] - 0.02


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_first_three_tokens_follow_p(length):
    texts = TableEngine(P, Q, Block(), Proposal.INDEPENDENT, length).run(seed_keys(60_000), 3)
    first = P[PROMPT[-1]]
    assert chi_square(texts, first[:, None, None] * P[:, :, None] * P[None]) < 4.0


@pytest.mark.parametrize(("what", "q", "length"), [("drafts", Q, 3), ("coins", BAD, 2)])
def test_noise_keyed_by_position_is_caught(what, q, length):
    def by_position(rounds, purpose):
        own = rounds.anchor_position[rounds.node_round] + rounds.node_depth
        word = words(rounds.key[rounds.node_round], own, Purpose.BLOCK, 0, 0)[:, 0]
        return (word + 0.5) * 2.0**-32

    engine = TableEngine(P, q, Block(), Proposal.INDEPENDENT, length)
    if what == "drafts":
        engine.position_keyed_drafts = True
    else:
        engine.coins = by_position
    first = P[PROMPT[-1]]
    law = first[:, None, None] * P[:, :, None] * P[None]
    assert chi_square(engine.run(seed_keys(60_000), 3), law) > 8.0


@pytest.mark.parametrize("proposal", [Proposal.SHARED, Proposal.IID])
def test_drafts_that_are_not_independent_are_refused(proposal):
    rounds = build(P, Q, drafts(Q, [[]], False), slot_choice=np.zeros(6, dtype=np.int64))
    with pytest.raises(IndependentOnly, match=str(proposal)):
        Block().decide(rounds, sampled_context(proposal))


def test_sampled_trees_are_refused_and_choices_are_not():
    rounds = build(P, Q, drafts(Q, [[], []], False), slot_choice=np.zeros(18, dtype=np.int64))
    with pytest.raises(ChainsOnly):
        Block().decide(rounds, sampled_context(Proposal.INDEPENDENT))
    greedy = Block().decide(rounds, RuleContext(0.0, Proposal.INDEPENDENT))
    assert (greedy.bonus == 0).all()


def test_an_empty_residual_falls_back_to_the_choice():
    law = np.array([0.5, 0.5])
    assert block_residual_token(1.0, law, law, np.ones(2), 1) == 1
    assert block_residual_token(1.0, np.array([0.2, 0.8]), law, np.ones(2), 0) == 1

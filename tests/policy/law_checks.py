"""Laws as questions with yes or no for an answer, so that mutants of the rules can be held against them.

Rules are looked up when a law is asked, so that a mutant that has taken a rule's place is the one judged.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
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
from table_engine import PROMPT, TableEngine, chi_square, seed_keys
from test_laws import CHAIN, DRAFTERS, FOUR, PAIR, TRIPLE, P, Q
from test_seeds import BAD, first_three

from dflash.policy import block as block_module
from dflash.policy import match, registry, speculative
from dflash.policy.context import Proposal, RuleContext
from dflash.policy.presets import sglang, vllm_v1
from dflash.policy.shape import Shape

FREE, ONE = Proposal.INDEPENDENT, Proposal.DETERMINISTIC
SEEDS = seed_keys(60_000)
EXACT, ALARM = 1e-3, 8.0


def near(law: np.ndarray, p: np.ndarray) -> bool:
    """Whether a law of texts is that of plain decoding."""
    return bool(np.abs(law - text_law(p, law.ndim)).max() < EXACT)


def after(p: np.ndarray, q: np.ndarray, tokens: list[int], with_replacement: bool) -> list[np.ndarray]:
    """What the package draws replacements from."""
    return list(speculative.residuals(p, q, tokens, with_replacement))


def from_residuals(plan, p, q, proposal, depth, shape=Shape()):  # type: ignore[no-untyped-def]
    context = sampled_context(proposal)
    return speculative_law(speculative.Speculative(), context, p, q, plan, depth + 1, after, shape=shape)


def speculative_on_chains() -> bool:
    return near(from_residuals(CHAIN, P, Q, FREE, 3), P)


def speculative_on_siblings() -> bool:
    three = from_residuals(TRIPLE, *FOUR, FREE, 1)
    return near(from_residuals(PAIR, *FOUR, FREE, 2), FOUR[0]) and near(three, FOUR[0])


def speculative_on_repeated_siblings() -> bool:
    three = from_residuals(TRIPLE, *FOUR, Proposal.IID, 1)
    return near(from_residuals(PAIR, *FOUR, Proposal.IID, 2), FOUR[0]) and near(three, FOUR[0])


def speculative_on_fixed_drafts() -> bool:
    """Deterministic drafts have a one-hot q, whatever confidence came with them."""
    context = RuleContext(TARGET_T, ONE)
    rule = speculative.Speculative()
    return near(choice_law(rule, context, P, Draft(1.0, [1, 2], [-1, 0], [0.0, 0.0]), 3), P)


def match_on_trees() -> bool:
    context = RuleContext(TARGET_T, ONE)
    some = drafts(np.full((3, 3), 1 / 3), PAIR, True)[:9]
    return all(near(choice_law(match.Match(), context, P, draft, 3), P) for draft in some)


def block_on_chains() -> bool:
    outcomes = drafts(Q, CHAIN, False)
    laws = []
    for draft in outcomes:
        for node in range(len(draft.tokens)):
            before = ROOT if node == 0 else draft.tokens[node - 1]
            rest = np.maximum(0.0, capped(P, Q, draft, node - 1) * P[before] - Q[before])
            laws.append(rest / rest.sum() if rest.sum() > 0 else P[before])
    context = sampled_context(FREE, "block")
    rule = block_module.Block()
    return near(speculative_law(rule, context, P, Q, CHAIN, 4, after, outcomes=outcomes, laws=laws), P)


def block_replacements_are_scaled() -> bool:
    p, q, scale = FOUR[0][0], FOUR[1][0], 0.7
    noise = np.random.default_rng(5).exponential(size=(6_000, 4))
    drawn = [block_module.block_residual_token(scale, p, q, row, 0) for row in noise]
    rest = np.maximum(0.0, scale * p - q)
    return chi_square(np.array(drawn)[:, None], rest / rest.sum()) < ALARM


def block_accepts_no_less_than_speculative_and_that_no_less_than_match() -> bool:
    keys = SEEDS[:20_000]
    start, position = np.full(len(keys), PROMPT[-1]), np.full(len(keys), len(PROMPT) - 1)
    each = (
        (block_module.Block(), FREE),
        (speculative.Speculative(), FREE),
        (match.Match(), Proposal.SHARED),
    )
    mean = []
    for rule, proposal in each:
        accepted = TableEngine(P, BAD, rule, proposal, 3)._round(keys, position, start)[1]
        mean.append(accepted.mean())
    return mean[0] >= mean[1] - 0.02 and mean[1] >= mean[2] - 0.02


def seeds(rule, proposal, q=BAD, length=3, branches=1) -> bool:  # type: ignore[no-untyped-def]
    keys = SEEDS if rule.name == "block" else SEEDS[:20_000]
    texts = TableEngine(P, q, rule, proposal, length, branches).run(keys, 3)
    return chi_square(texts, first_three(P)) < ALARM


def block_over_seeds() -> bool:
    return seeds(block_module.Block(), FREE, length=2)


def speculative_trees_over_seeds() -> bool:
    return seeds(speculative.Speculative(), FREE, length=2, branches=2)


def engines_over_seeds() -> bool:
    return seeds(vllm_v1.VllmV1(), FREE) and seeds(vllm_v1.VllmV1(), ONE)


def siblings_that_share_a_coin() -> bool:
    rule = sglang.Sglang()
    context = RuleContext(TARGET_T, ONE, recorded_rule=rule.name)
    trees = ([0, 1, 2], [-1, -1, -1]), ([1, 0, 2, 1], [-1, 0, -1, 2])
    laws = [shared_coin_law(rule, context, P, Draft(1.0, t, at, [0.0] * len(t)), 3) for t, at in trees]
    return all(near(law, P) for law in laws)


def a_policy_that_says_lossless_is() -> bool:
    """A cut that has looked at the draft biases p/q, and the policy says so."""
    q = DRAFTERS["plain"][1]
    for text in ("speculative:confidence=0.35", "speculative:nodes=1", "speculative:length=1"):
        policy = registry.parse_policy(text)
        context = sampled_context(FREE)
        law = from_residuals([[], []], P, q, FREE, 1, shape=policy.shape)
        if policy.is_lossless(context) and not near(law, P):
            return False
    return True


def lossless_is_greedy_at_temperature_zero() -> bool:
    """Where a rule says so, the choice at every slot is what is emitted."""
    context = RuleContext(0.0, ONE)
    found = True
    for text in ("threshold:t=0.6", "threshold:t=0.4", "relaxed:k=1", "relaxed:k=2", "medusa", "sglang"):
        rule = registry.parse_policy(text).rule
        if rule.is_lossless(context):
            found &= _follows_argmax(rule, context)
    return found


def _follows_argmax(rule, context):  # type: ignore[no-untyped-def]
    from test_vectors import row_of

    from dflash.policy.rounds import Rounds

    p = [[0.5, 0.45, 0.05], [0.2, 0.3, 0.5], [0.4, 0.35, 0.25]]
    for tokens in ([0, 2], [1, 2], [0, 1]):
        vector = {"temperature": 0.0, "proposal": "deterministic", "tokens": tokens, "p": p}
        vector |= {"parents": [-1, 0], "q": [None] * 3, "choices": [0, 2, 0], "residual_tokens": [0, 0]}
        decision = rule.decide(Rounds.from_row(row_of(vector), (1, 2)), context)
        emitted = [*(tokens[node] for node in decision.path(0)), int(decision.bonus[0])]
        if emitted != [0, 2, 0][: len(emitted)]:
            return False
    return True


LAWS: dict[str, Callable[[], bool]] = {
    law.__name__: law
    for law in (
        a_policy_that_says_lossless_is,
        block_accepts_no_less_than_speculative_and_that_no_less_than_match,
        block_on_chains,
        block_over_seeds,
        block_replacements_are_scaled,
        engines_over_seeds,
        lossless_is_greedy_at_temperature_zero,
        match_on_trees,
        siblings_that_share_a_coin,
        speculative_on_chains,
        speculative_on_fixed_drafts,
        speculative_on_repeated_siblings,
        speculative_on_siblings,
        speculative_trees_over_seeds,
    )
}

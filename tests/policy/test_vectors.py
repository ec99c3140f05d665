from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash.policy.context import DraftSampling, Proposal, RuleContext
from dflash.policy.errors import NullColumn
from dflash.policy.greedy import Greedy
from dflash.policy.registry import RULES, parse_policy
from dflash.policy.rounds import Rounds
from dflash.policy.speculative import Speculative
from dflash.policy.threshold import Threshold

DOCUMENT = json.loads((Path(__file__).parents[1] / "vectors" / "decisions.json").read_text())
VECTORS = DOCUMENT["vectors"]
CASES = [
    pytest.param(vector, policy, id=f"{policy}: {vector['name']}")
    for vector in VECTORS
    for policy in vector
    if policy.partition(":")[0] in RULES
]
TINY = 1e-300


def context_of(vector):
    coins = np.array(vector["coins"], dtype=np.float64)
    return RuleContext(
        vector.get("temperature", 1.0),
        Proposal(vector.get("proposal", "independent")),
        True,
        DraftSampling(),
        "speculative",
        lambda rounds, purpose: coins,
    )


def row_of(vector):
    parents = np.array(vector["parents"], dtype=np.int16)
    tokens = np.array(vector["tokens"], dtype=np.int32)
    p = np.array(vector["p"])
    vocab = p.shape[1]
    q = np.array([law if law else [0.0] * vocab for law in vector["q"]])
    expanded = np.array([bool(law) for law in vector["q"]])
    at = parents.astype(int) + 1
    order = np.argsort(-q, axis=1, kind="stable")
    log_q = []
    for node, token in enumerate(tokens):
        earlier = [tokens[i] for i in range(node) if parents[i] == parents[node]]
        gone = 0.0 if vector.get("proposal") == "iid" else sum(q[at[node], t] for t in earlier)
        log_q.append(np.log(max(q[at[node], token], TINY) / (1.0 - gone)) if expanded[at[node]] else 0.0)
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    logit = np.maximum(log_p, -300.0)
    greedy = vector.get("temperature") == 0.0
    one_hot = np.where(np.arange(vocab) == p.argmax(axis=1)[:, None], 0.0, -np.inf)
    return {
        "anchor_position": 4,
        "node_parent": parents,
        "node_token": tokens,
        "node_logp": (one_hot if greedy else log_p)[at, tokens].astype(np.float32),
        "node_logq": np.array(log_q, dtype=np.float32),
        "node_target_logit": logit[at, tokens].astype(np.float32),
        "node_residual_token": np.array(vector["residual_tokens"], dtype=np.int32),
        "slot_argmax": p.argmax(axis=1).astype(np.int32),
        "slot_choice": np.array(vector["choices"], dtype=np.int32),
        "slot_lse": np.zeros(len(p), dtype=np.float32),
        "slot_lse_p": np.zeros(len(p), dtype=np.float32),
        "slot_cutoff": np.full(len(p), -np.inf, dtype=np.float32),
        "draft_lse": np.where(expanded, 0.0, np.nan).astype(np.float32),
        "draft_topk_token": order[expanded].ravel(),
        "draft_topk_logit": stored(np.log(np.maximum(q, TINY)).clip(-300.0), order, expanded),
        "draft_topk_target_logit": stored(logit, order, expanded),
    }


def stored(table, order, expanded):
    return np.take_along_axis(table, order, axis=1)[expanded].ravel().astype(np.float32)


@pytest.mark.parametrize(("vector", "policy"), CASES)
def test_vector(vector, policy):
    decision = parse_policy(policy).rule.decide(Rounds.from_row(row_of(vector), (1, 2)), context_of(vector))
    assert [decision.path(0), int(decision.bonus[0])] == vector[policy]
    assert int(decision.accepted_count[0]) == len(vector[policy][0])
    if policy == "speculative":
        assert bool(decision.coin_tie[0]) == vector.get("tie", False)


@pytest.mark.parametrize("policy", sorted(set(RULES) - {"block"}))
def test_a_batch_decides_as_its_rounds_do_alone(policy):
    """Every vector of one context in one batch: no round sees its neighbours."""
    rule = parse_policy(policy).rule
    chosen = [v for v in VECTORS if len(v["p"][0]) == 3 and "temperature" not in v and "proposal" not in v]
    rows = [row_of(vector) for vector in chosen]
    coins = np.concatenate([np.array(vector["coins"], dtype=np.float64) for vector in chosen])
    context = replace(context_of(chosen[0]), coins=lambda rounds, purpose: coins)
    together = rule.decide(Rounds.from_rows(rows, [(1, 2)] * len(rows)), context)
    for index, (row, vector) in enumerate(zip(rows, chosen, strict=True)):
        alone = rule.decide(Rounds.from_row(row, (1, 2)), context_of(vector))
        assert together.path(index) == alone.path(0)
        assert together.bonus[index] == alone.bonus[0]
        assert together.coin_tie[index] == alone.coin_tie[0]


@pytest.mark.parametrize(
    ("rule", "column"),
    [(Speculative(), "node_logp"), (Speculative(), "node_logq"), (Threshold(), "node_logp")],
)
def test_a_null_probability_is_refused(rule, column):
    row = row_of(VECTORS[1]) | {column: np.array([np.nan], dtype=np.float32)}
    with pytest.raises(NullColumn, match=column):
        rule.decide(Rounds.from_row(row, (1, 2)), context_of(VECTORS[1]))


@pytest.mark.parametrize("policy", ["match", "speculative", "threshold:t=0.6"])
@pytest.mark.parametrize("proposal", list(Proposal))
def test_lossless_rules_emit_what_greedy_does_at_temperature_zero(policy, proposal):
    random = np.random.default_rng(3)
    for _ in range(100):
        nodes = int(random.integers(0, 7))
        tokens = random.integers(0, 3, nodes)
        p = random.dirichlet(np.full(3, 0.5), 3)[[0, *tokens]]
        vector = {
            "temperature": 0.0,
            "proposal": str(proposal),
            "parents": [int(random.integers(-1, i)) if i else -1 for i in range(nodes)],
            "tokens": tokens.tolist(),
            "p": p.tolist(),
            "q": [None] * (nodes + 1),
            "choices": p.argmax(axis=1).tolist(),
            "coins": random.random(nodes).tolist(),
            "residual_tokens": [0] * nodes,
        }
        rounds, context = Rounds.from_row(row_of(vector), (1, 2)), context_of(vector)
        rule = parse_policy(policy).rule
        assert rule.is_lossless(context)
        decisions = [judge.decide(rounds, context) for judge in (rule, Greedy())]
        emitted, greedy = ([*tokens[d.path(0)].tolist(), int(d.bonus[0])] for d in decisions)
        assert emitted == greedy[: len(emitted)]
        assert len(emitted) == len(greedy) or policy.startswith("threshold")

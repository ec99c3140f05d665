from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash.policy import errors
from dflash.policy.context import DraftSampling, Proposal, RuleContext
from dflash.policy.errors import MissingColumns, NullColumn
from dflash.policy.greedy import Greedy
from dflash.policy.registry import RULES, parse_policy
from dflash.policy.rounds import Rounds
from dflash.policy.siblings import SIBLING_COLUMNS
from dflash.policy.speculative import Speculative
from dflash.policy.synthetic import Synthetic
from dflash.policy.threshold import Threshold

FOLDER = Path(__file__).parents[1] / "vectors"
VECTORS = [
    vector
    for name in ("decisions", "lossy_decisions", "engine_decisions")
    for vector in json.loads((FOLDER / f"{name}.json").read_text())["vectors"]
]
POLICIES = {policy for vector in VECTORS for policy in vector if policy.partition(":")[0] in RULES}
CASES = [
    pytest.param(vector, policy, id=f"{policy}: {vector['name']}")
    for vector in VECTORS
    for policy in vector
    if policy in POLICIES
]
TINY = 1e-300
CUT = -200.0


def context_of(vector, rule="speculative"):
    coins = np.array(vector["coins"], dtype=np.float64)
    return RuleContext(
        vector.get("temperature", 1.0),
        Proposal(vector.get("proposal", "independent")),
        True,
        DraftSampling(),
        rule,
        lambda rounds, purpose: coins,
    )


def row_of(vector):
    """One round as a recorder would store it; a null in p is a logit that was NaN."""
    parents = np.array(vector["parents"], dtype=np.int16)
    tokens = np.array(vector["tokens"], dtype=np.int32)
    p = np.array(vector["p"], dtype=np.float64)
    vocab = p.shape[1]
    deterministic = vector.get("proposal") == "deterministic"
    q = np.array([law if law else [0.0] * vocab for law in vector["q"]])
    expanded = np.array([bool(law) for law in vector["q"]])
    at = parents.astype(int) + 1
    log_q = []
    for node, token in enumerate(tokens):
        earlier = [tokens[i] for i in range(node) if parents[i] == parents[node]]
        gone = 0.0 if vector.get("proposal") == "iid" else sum(q[at[node], t] for t in earlier)
        drawn = expanded[at[node]] and not deterministic
        log_q.append(np.log(max(q[at[node], token], TINY) / (1.0 - gone)) if drawn else 0.0)
    log_q = vector.get("log_q", log_q)
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    logit = np.maximum(log_p, -300.0)
    greedy = vector.get("temperature") == 0.0
    one_hot = np.where(np.arange(vocab) == p.argmax(axis=1)[:, None], 0.0, -np.inf)
    best = np.argsort(-p, axis=1, kind="stable")
    order = np.argsort(-q, axis=1, kind="stable")
    chain = parents.tolist() == list(range(-1, len(parents) - 1))
    return {
        "anchor_position": 4,
        "node_parent": parents,
        "node_token": tokens,
        "node_logp": (one_hot if greedy else log_p)[at, tokens].astype(np.float32),
        "node_logq": np.array(log_q, dtype=np.float32),
        "node_target_logit": logit[at, tokens].astype(np.float32),
        "node_mass_above": np.array(
            [p[slot][p[slot] > p[slot, token]].sum() for slot, token in zip(at, tokens, strict=True)],
            dtype=np.float32,
        ),
        "node_residual_mass": np.array(masses(p, q, tokens, log_q) if chain else [np.nan] * len(tokens)),
        "node_residual_token": np.array(vector["residual_tokens"], dtype=np.int32),
        "slot_argmax": p.argmax(axis=1).astype(np.int32),
        "slot_choice": np.array(vector["choices"], dtype=np.int32),
        "slot_entropy": -(p * logit).sum(axis=1).astype(np.float32),
        "slot_topk_token": best.ravel(),
        "slot_topk_logit": np.take_along_axis(logit, best, axis=1).ravel().astype(np.float32),
        "slot_lse": np.zeros(len(p), dtype=np.float32),
        "slot_lse_p": np.zeros(len(p), dtype=np.float32),
        "slot_cutoff": np.full(len(p), CUT, dtype=np.float32),
        "draft_lse": np.where(expanded, 0.0, np.nan).astype(np.float32),
        "draft_topk_token": order[expanded].ravel(),
        "draft_topk_logit": stored(np.log(np.maximum(q, TINY)).clip(-300.0), order, expanded),
        "draft_topk_target_logit": stored(logit, order, expanded),
    }


def masses(p, q, tokens, log_q):
    """Sum of max(0, P p - q) at each node's parent, P the capped ratio along the chain."""
    capped, found = 1.0, []
    for slot, token in enumerate(tokens):
        found.append(np.maximum(0.0, capped * p[slot] - q[slot]).sum())
        capped = min(1.0, capped * p[slot, token] / np.exp(log_q[slot]))
    return found


def stored(table, order, expanded):
    return np.take_along_axis(table, order, axis=1)[expanded].ravel().astype(np.float32)


@pytest.mark.parametrize(("vector", "policy"), CASES)
def test_vector(vector, policy):
    rule = parse_policy(policy).rule
    rounds, context = Rounds.from_row(row_of(vector), (1, 2)), context_of(vector, rule.name)
    expected = vector[policy]
    if isinstance(expected, str):
        with pytest.raises(getattr(errors, expected)):
            rule.decide(rounds, context)
        return
    decision = rule.decide(rounds, context)
    assert [decision.path(0), int(decision.bonus[0])] == expected
    assert int(decision.accepted_count[0]) == len(expected[0])
    # files hold ids as int32
    ids = {name: rounds[name].astype(np.int32) for name in rounds.values if rounds[name].dtype == np.int64}
    stored_ids = rule.decide(rounds.with_values(ids), context)
    assert [stored_ids.path(0), int(stored_ids.bonus[0])] == expected
    if policy == "speculative":
        assert bool(decision.coin_tie[0]) == vector.get("tie", False)


def test_every_rule_has_vectors():
    assert {policy.partition(":")[0] for policy in POLICIES} == set(RULES)


DECIDED = {
    policy: vector
    for policy in sorted(POLICIES)
    for vector in VECTORS
    if vector["parents"] and isinstance(vector.get(policy), list)
}


def one_a_kind():
    """A policy of each rule, and of each method of the presets that have several."""
    rules = {policy: parse_policy(policy).rule for policy in DECIDED}
    kinds = {(rule.name, getattr(rule, "method", "")): policy for policy, rule in rules.items()}
    return sorted(kinds.values())


@pytest.mark.parametrize("policy", one_a_kind())
def test_a_rule_needs_no_more_than_it_states(policy):
    """Every vector is decided from the columns of `needs`, which are among those listed."""
    rule = parse_policy(policy).rule
    for vector in (vector for vector in VECTORS if policy in vector):
        row, context = row_of(vector), context_of(vector, rule.name)
        needs = rule.needs(context)
        assert set(needs) <= set(rule.columns)
        bare = {name: row[name] for name in ("anchor_position", "node_parent", *needs)}
        if isinstance(vector[policy], str):
            continue
        decision = rule.decide(Rounds.from_row(bare, (1, 2)), context)
        assert [decision.path(0), int(decision.bonus[0])] == vector[policy]


ELSEWHERE = {*SIBLING_COLUMNS, "node_residual_token", "node_residual_mass"}


@pytest.mark.parametrize("policy", one_a_kind())
def test_missing_columns_are_named(policy):
    """Without a column that it reads a rule refuses and names it; some are read on other rounds only."""
    rule, vector = parse_policy(policy).rule, DECIDED[policy]
    row, context = row_of(vector), context_of(vector, rule.name)
    read = rule.needs(context)
    named = {name for name in read if name in _refusal(rule, row, name, context)}
    # siblings and replacements are looked at on some rounds only
    assert named >= set(read) - ELSEWHERE


def _refusal(rule, row, name, context):
    try:
        rule.decide(
            Rounds.from_row({column: row[column] for column in row if column != name}, (1, 2)), context
        )
    except MissingColumns as error:
        return str(error)
    return ""


SINGLE_CHAINS = [
    vector
    for vector in VECTORS
    if vector["parents"] == list(range(-1, len(vector["parents"]) - 1))
    and len(vector["p"][0]) == 3
    and not {"temperature", "proposal", "log_q"} & set(vector)
    and vector["p"][0][0] is not None
    and len(vector["parents"]) < 4
    and -1 not in vector["tokens"]
]


@pytest.mark.parametrize("policy", one_a_kind())
def test_a_batch_decides_as_its_rounds_do_alone(policy):
    """Every chain of one context in one batch: no round sees its neighbours."""
    rule = parse_policy(policy).rule
    if isinstance(rule, Synthetic):
        rule = Synthetic((0.8, 0.4, 0.2))
    rows = [row_of(vector) for vector in SINGLE_CHAINS]
    coins = np.concatenate([np.array(vector["coins"], dtype=np.float64) for vector in SINGLE_CHAINS])
    context = replace(context_of(SINGLE_CHAINS[0], rule.name), coins=lambda rounds, purpose: coins)
    together = rule.decide(Rounds.from_rows(rows, [(1, 2)] * len(rows)), context)
    for index, (row, vector) in enumerate(zip(rows, SINGLE_CHAINS, strict=True)):
        alone = rule.decide(Rounds.from_row(row, (1, 2)), context_of(vector, rule.name))
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


LOSSLESS_AT_ZERO = [
    "block",
    "greedy",
    "match",
    "medusa",
    "relaxed:k=1",
    "sglang",
    "sglang:single=0.2,acc=0.1",
    "speculative",
    "threshold:acc=0.3",
    "threshold:t=0.6",
    "tolerance",
    "trtllm",
]
CHAINS_AT_ZERO = ["sglang:method=block", "transformers", "vllm-mrv2", "vllm-v1"]


@pytest.mark.parametrize("policy", [*LOSSLESS_AT_ZERO, *CHAINS_AT_ZERO])
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
        if policy in CHAINS_AT_ZERO:
            vector["parents"] = list(range(-1, nodes - 1))
            vector["p"] = random.dirichlet(np.full(3, 0.5), nodes + 1).tolist()
            vector["choices"] = np.array(vector["p"]).argmax(axis=1).tolist()
        rounds, context = Rounds.from_row(row_of(vector), (1, 2)), context_of(vector)
        rule = parse_policy(policy).rule
        assert rule.is_lossless(context)
        decisions = [judge.decide(rounds, context) for judge in (rule, Greedy())]
        emitted, greedy = ([*tokens[d.path(0)].tolist(), int(d.bonus[0])] for d in decisions)
        assert emitted == greedy[: len(emitted)]
        assert len(emitted) == len(greedy) or policy.startswith("threshold")

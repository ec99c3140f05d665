from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from dflash.policy.block import Block
from dflash.policy.speculative import Speculative
from dflash.replay.batch import Batch
from dflash.replay.dense import DenseBatch, Trunk
from dflash.replay.errors import TrunkLawMissing
from dflash.replay.law_exact import joined, lengths, reach

P = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.05, 0.15, 0.8]])
DRAFTERS = {
    "plain": np.array([[0.3, 0.3, 0.4], [0.5, 0.25, 0.25], [0.6, 0.1, 0.3]]),
    "q = p": P,
    "q with zeros": np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.2, 0.8, 0.0]]),
}
FIRST = 0


def speculative_round(p, q, anchor, length):
    """(tokens, weight) of every outcome of one live round: drafts, coins and replacements."""
    for draft in product(range(3), repeat=length):
        weight, before = 1.0, anchor
        for token in draft:
            weight *= q[before, token]
            if weight == 0:
                break
            before = token
        if weight == 0:
            continue
        before = anchor
        for depth, token in enumerate(draft):
            accept = min(1.0, p[before, token] / q[before, token])
            if accept < 1:
                rest = np.maximum(0, p[before] - q[before])
                for other in np.flatnonzero(rest):
                    yield (*draft[:depth], int(other)), weight * (1 - accept) * rest[other] / rest.sum()
            weight *= accept
            before = token
        for bonus in range(3):
            yield (*draft, bonus), weight * p[before, bonus]


def block_round(p, q, anchor, length):
    for draft in product(range(3), repeat=length):
        path = (anchor, *draft)
        weight = np.prod([q[a, b] for a, b in zip(path, draft, strict=False)])
        if weight == 0:
            continue
        scale = [1.0]
        for a, b in zip(path, draft, strict=False):
            scale.append(min(1.0, scale[-1] * p[a, b] / q[a, b]))
        passing = []
        for i in range(1, length):
            mass = np.maximum(0, scale[i] * p[path[i]] - q[path[i]]).sum()
            whole = mass + 1 - scale[i]
            passing.append(mass / whole if whole > 0 else 1.0)
        passing = [1.0, *passing, scale[length]] if length else [1.0]
        left = weight
        for i in range(length, -1, -1):
            chance = left * passing[i]
            left *= 1 - passing[i]
            law = p[path[i]] if i == length else np.maximum(0, scale[i] * p[path[i]] - q[path[i]])
            if chance > 0:
                for token in np.flatnonzero(law):
                    yield (*draft[:i], int(token)), chance * law[token] / law.sum()


def joint(one_round, p, q, length, tokens):
    """Law of (text, tokens kept by each round) of a live run that stops after some tokens."""
    done = defaultdict(float)
    open_ = {((), ()): 1.0}
    while open_:
        after = defaultdict(float)
        for (text, kept), weight in open_.items():
            for emitted, chance in one_round(p, q, text[-1] if text else FIRST, length):
                new = emitted[: tokens - len(text)]
                state = ((*text, *new), (*kept, len(new)))
                (done if len(state[0]) == tokens else after)[state] += weight * chance
        open_ = after
    return done


def dense_of(texts, q, length):
    """The dense rows of several answers, each after the token `FIRST`."""
    tokens = len(texts[0])
    log_p, log_q = [], []
    with np.errstate(divide="ignore"):
        for text in texts:
            path = (FIRST, *text)
            for row in range(tokens):
                ahead = path[row : row + length + 1]
                log_p.append(np.log(P[path[row], path[row + 1]]))
                log_q.append([float(np.log(q[a, b])) for a, b in zip(ahead, ahead[1:], strict=False)])
    table = pa.table(
        {"trunk_logp": pa.array(log_p, pa.float64()), "trunk_logq": pa.array(log_q, pa.list_(pa.float64()))}
    )
    owner = np.repeat(np.arange(len(texts)), tokens)
    place = np.arange(len(owner)) + owner
    end = (np.arange(len(texts)) + 1) * (tokens + 1) - 1
    first = np.arange(len(texts)) * tokens
    output = np.concatenate([(FIRST, *text) for text in texts])
    trunk = Trunk(output, place, end[owner], first, np.full(len(texts), tokens))
    batch = Batch(None, table, (), owner, np.ones(len(owner), dtype=bool))
    return DenseBatch(batch, trunk, np.full(len(texts), tokens + 1))


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("rule", "one_round"), [(Speculative(), speculative_round), (Block(), block_round)])
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_the_law_of_text_and_rounds_is_that_of_a_live_run(rule, one_round, length, drafter):
    tokens = 4
    q = DRAFTERS[drafter]
    live = joint(one_round, P, q, length, tokens)
    texts = list(product(range(3), repeat=tokens))
    law, rounds, squares = np.zeros(81), np.zeros(81), np.zeros(81)
    kept = np.zeros(length + 2)
    index = {text: place for place, text in enumerate(texts)}
    for (text, sizes), weight in live.items():
        law[index[text]] += weight
        rounds[index[text]] += weight * len(sizes)
        squares[index[text]] += weight * len(sizes) ** 2
        for size in sizes:
            kept[size] += weight
    plain = np.array([np.prod([P[a, b] for a, b in zip((FIRST, *t), t, strict=False)]) for t in texts])
    np.testing.assert_allclose(law, plain, atol=1e-12)
    dense = dense_of(texts, q, length)
    found = lengths(dense, reach(dense, length, rule))
    np.testing.assert_allclose(found.rounds, rounds / law, atol=1e-9)
    np.testing.assert_allclose(found.variance, squares / law - (rounds / law) ** 2, atol=1e-8)
    # over all texts: how often a round keeps so many tokens
    alone = [dense_of([text], q, length) for text in texts]
    chosen = [lengths(one, reach(one, length, rule)).emitted for one in alone]
    np.testing.assert_allclose(plain @ np.array(chosen), kept[1:], atol=1e-9)


def test_block_needs_no_more_rounds_than_speculative():
    random = np.random.default_rng(2)
    texts = [tuple(random.integers(0, 3, 9)) for _ in range(40)]
    dense = dense_of(texts, DRAFTERS["plain"], 3)
    weights = np.array([np.prod([P[a, b] for a, b in zip((FIRST, *t), t, strict=False)]) for t in texts])
    rounds = {rule.name: lengths(dense, reach(dense, 3, rule)).rounds for rule in (Block(), Speculative())}
    assert weights @ rounds["block"] <= weights @ rounds["speculative"]


def test_a_shorter_policy_is_walked_on_a_longer_recording():
    texts = list(product(range(3), repeat=4))
    long, short = dense_of(texts, DRAFTERS["plain"], 3), dense_of(texts, DRAFTERS["plain"], 1)
    found = lengths(long, reach(long, 1, Speculative()))
    expected = lengths(short, reach(short, 1, Speculative()))
    np.testing.assert_allclose(found.rounds, expected.rounds)


def test_requests_of_several_row_groups_are_joined():
    texts = list(product(range(3), repeat=4))
    whole = dense_of(texts, DRAFTERS["plain"], 2)
    parts = [dense_of(texts[:30], DRAFTERS["plain"], 2), dense_of(texts[30:], DRAFTERS["plain"], 2)]
    chance = Speculative()
    apart = joined([lengths(part, reach(part, 2, chance)) for part in parts])
    together = lengths(whole, reach(whole, 2, chance))
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_allclose(one, other)


def test_without_q_along_the_trunk_there_is_no_law():
    dense = dense_of([(0, 1, 2)], DRAFTERS["plain"], 2)
    table = dense.batch.table.set_column(1, "trunk_logq", pa.nulls(3, pa.list_(pa.float64())))
    bare = DenseBatch(Batch(None, table, (), dense.batch.owner, dense.batch.live), dense.trunk, dense.outputs)
    with pytest.raises(TrunkLawMissing, match="trunk_logq"):
        reach(bare, 2, Speculative())

"""Exact laws of one round on a tiny vocabulary: drafts enumerated, coins integrated, tokens compared with p.

The target and the drafter are Markov tables: after token x the target follows `p[x]`, the drafter `q[x]`. A
tree is a plan, a list of child plans: a chain of two is `[[[]]]`, two single branches are `[[], []]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from dflash.policy.context import DraftSampling, Proposal, RuleContext
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Rule
from dflash.policy.shape import Shape

ROOT = 0
TARGET_T, DRAFT_T = 0.8, 1.3
CHOICE, RESIDUAL = 1_000, 1_000_000
ZERO = -4_000.0


@dataclass
class Draft:
    """One possible outcome of drafting: its probability, its nodes, and their conditional log q."""

    weight: float
    tokens: list[int]
    parents: list[int]
    log_q: list[float]


def drafts(q: np.ndarray, plan: list[Any], with_replacement: bool) -> list[Draft]:
    """Every tree that the drafter may draw for a plan, from the token `ROOT`."""
    return [
        Draft(weight, [n[0] for n in nodes], [n[1] for n in nodes], [n[2] for n in nodes])
        for weight, nodes in _under(q, ROOT, -1, 0, plan, with_replacement)
    ]


def _under(
    q: np.ndarray, token: int, parent: int, offset: int, plan: list[Any], with_replacement: bool
) -> Iterator[tuple[float, list[tuple[int, int, float]]]]:
    for weight, drawn in _siblings(q[token], len(plan), with_replacement):
        yield from _grow(q, weight, [], drawn, parent, offset, plan, with_replacement)


def _grow(
    q: np.ndarray,
    weight: float,
    nodes: list[tuple[int, int, float]],
    drawn: list[tuple[int, float]],
    parent: int,
    offset: int,
    plan: list[Any],
    with_replacement: bool,
) -> Iterator[tuple[float, list[tuple[int, int, float]]]]:
    if not drawn:
        yield weight, nodes
        return
    (token, log_q), own = drawn[0], offset + len(nodes)
    for below, subtree in _under(q, token, own, own + 1, plan[0], with_replacement):
        grown = [*nodes, (token, parent, log_q), *subtree]
        yield from _grow(q, weight * below, grown, drawn[1:], parent, offset, plan[1:], with_replacement)


def _siblings(
    law: np.ndarray, count: int, with_replacement: bool
) -> Iterator[tuple[float, list[tuple[int, float]]]]:
    if count == 0 or law.sum() == 0:
        yield 1.0, []
        return
    for token in np.flatnonzero(law):
        rest = law.copy()
        if not with_replacement:
            rest[token] = 0.0
            rest = rest / rest.sum() if rest.sum() > 0 else rest
        for weight, later in _siblings(rest, count - 1, with_replacement):
            yield law[token] * weight, [(int(token), float(np.log(law[token]))), *later]


def text_law(p: np.ndarray, horizon: int) -> np.ndarray:
    """Law of the next `horizon` tokens under plain decoding from `ROOT`; `[V] * horizon`."""
    law = np.zeros((len(p),) * horizon)
    for text in product(range(len(p)), repeat=horizon):
        law[text] = np.prod([p[before, after] for before, after in zip((ROOT, *text), text, strict=False)])
    return law


def build(p: np.ndarray, q: np.ndarray, outcomes: list[Draft], **extra: np.ndarray) -> Rounds:
    """The outcomes as rounds, all columns filled as a recorder would."""
    counts = np.array([len(draft.tokens) for draft in outcomes], dtype=np.int64)
    slot_tokens = [[ROOT, *draft.tokens] for draft in outcomes]
    at_slot = np.concatenate(slot_tokens).astype(np.int64)
    at_parent = np.array(
        [
            tokens[parent + 1]
            for tokens, draft in zip(slot_tokens, outcomes, strict=True)
            for parent in draft.parents
        ],
        dtype=np.int64,
    )
    token = np.array([token for draft in outcomes for token in draft.tokens], dtype=np.int64)
    order = np.argsort(-q, axis=1, kind="stable")
    target, drafter = TARGET_T * _log(p) + 1.7, DRAFT_T * _log(q) - 0.6
    expanded = at_slot
    values = {
        "node_token": token,
        "node_logp": _stored(np.where(p > 0, _log(p), -np.inf))[at_parent, token],
        "node_logq": _stored(np.array([value for draft in outcomes for value in draft.log_q])),
        "node_confidence": np.full(len(token), np.nan),
        "node_residual_mass": _stored(np.array(_masses(p, q, outcomes))),
        "node_target_logit": _stored(target)[at_parent, token],
        "slot_argmax": p.argmax(axis=1)[at_slot],
        "slot_lse": _stored(np.logaddexp.reduce(target, axis=1))[at_slot],
        "slot_lse_p": _stored(np.full(len(p), 1.7 / TARGET_T))[at_slot],
        "slot_cutoff": np.full(len(at_slot), -np.inf),
        "draft_lse": _stored(np.logaddexp.reduce(drafter, axis=1))[at_slot],
        "draft_topk_token": order[expanded],
        "draft_topk_logit": _stored(np.take_along_axis(drafter, order, axis=1))[expanded],
        "draft_topk_target_logit": _stored(np.take_along_axis(target, order, axis=1))[expanded],
    } | extra
    keys = np.zeros((len(outcomes), 2), dtype=np.uint32)
    parents = np.array([parent for draft in outcomes for parent in draft.parents], dtype=np.int64)
    return Rounds.build(counts, parents, np.arange(len(outcomes)), keys, values)


def capped(p: np.ndarray, q: np.ndarray, draft: Draft, node: int) -> float:
    """P at a node of a chain, 1 at the anchor (node -1)."""
    product = 1.0
    for index in range(node + 1):
        before, token = ROOT if index == 0 else draft.tokens[index - 1], draft.tokens[index]
        product = min(1.0, product * p[before, token] / q[before, token])
    return product


def _masses(p: np.ndarray, q: np.ndarray, outcomes: list[Draft]) -> list[float]:
    """What a recorder stores of a chain; of no use on trees."""
    masses = []
    for draft in outcomes:
        path = [ROOT, *draft.tokens]
        chain = draft.parents == list(range(-1, len(draft.parents) - 1))
        chain = chain and all(q[a, b] > 0 for a, b in zip(path, path[1:], strict=False))
        for node, parent in enumerate(draft.parents):
            before = path[parent + 1]
            scale = capped(p, q, draft, node - 1) if chain else np.nan
            masses.append(np.maximum(0.0, scale * p[before] - q[before]).sum())
    return masses


def _log(law: np.ndarray) -> np.ndarray:
    return np.log(np.where(law > 0, law, 1.0)) + np.where(law > 0, 0.0, ZERO)


def _stored(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(np.float64)


def sampled_context(proposal: Proposal, recorded_rule: str = "speculative") -> RuleContext:
    """A context of drafts drawn at `DRAFT_T` for a target at `TARGET_T`."""
    return RuleContext(TARGET_T, proposal, True, DraftSampling(DRAFT_T), recorded_rule)


def speculative_law(
    rule: Rule,
    context: RuleContext,
    p: np.ndarray,
    q: np.ndarray,
    plan: list[Any],
    horizon: int,
    residual_law: Callable[[np.ndarray, np.ndarray, list[int], bool], list[np.ndarray]],
    shape: Shape = Shape(),
    outcomes: list[Draft] | None = None,
    laws: list[np.ndarray] | None = None,
) -> np.ndarray:
    """Law of the next `horizon` tokens when a rule with coins decides one round and p follows after it."""
    with_replacement = context.proposal.with_replacement
    outcomes = outcomes or drafts(q, plan, with_replacement)
    laws = laws or _residual_laws(p, q, outcomes, with_replacement, residual_law)
    slots = sum(len(draft.tokens) + 1 for draft in outcomes)
    nodes = slots - len(outcomes)
    marked = {"slot_choice": CHOICE + np.arange(slots), "node_residual_token": RESIDUAL + np.arange(nodes)}
    whole = shape.cut(build(p, q, outcomes, **marked))
    below = _thresholds(rule, context, whole)
    at_slot = np.concatenate([[ROOT, *draft.tokens] for draft in outcomes])
    law = np.zeros((len(p),) * horizon)
    for weight, path, mark in _cells(rule, context, whole, below, np.array([d.weight for d in outcomes])):
        following = laws[mark - RESIDUAL] if mark >= RESIDUAL else p[at_slot[mark - CHOICE]]
        _add(law, p, weight, path, following)
    return law


def _residual_laws(p, q, outcomes, with_replacement, residual_law):  # type: ignore[no-untyped-def]
    laws = []
    for draft in outcomes:
        for node, parent in enumerate(draft.parents):
            slot = ROOT if parent < 0 else draft.tokens[parent]
            drawn = [draft.tokens[i] for i in range(node + 1) if draft.parents[i] == parent]
            rest = residual_law(p[slot], q[slot], drawn, with_replacement)[-1]
            laws.append(rest / rest.sum() if rest.sum() > 0 else p[slot])
    return laws


def _thresholds(rule: Rule, context: RuleContext, rounds: Rounds) -> np.ndarray:
    """The coin below which each node is accepted once its ancestors are and its earlier siblings are not."""
    below = np.zeros(len(rounds.node_parent))
    local = np.arange(len(below)) - rounds.node_offsets[rounds.node_round]
    for index in range(int(local.max(initial=-1)) + 1):
        node = np.flatnonzero(local == index)
        coins = np.full(len(below), 1.0 - 2.0**-53)
        above = node.copy()
        while len(above):
            coins[above] = 2.0**-1000
            above = rounds.parent_node[above]
            above = above[above >= 0]
        low, high = np.zeros(len(node)), np.ones(len(node))
        for _ in range(54):
            coins[node] = (low + high) / 2
            accepted = rule.decide(rounds, _fixed(context, coins)).accepted[node]
            low, high = np.where(accepted, coins[node], low), np.where(accepted, high, coins[node])
        below[node] = low
    return below


def _cells(
    rule: Rule, context: RuleContext, rounds: Rounds, below: np.ndarray, weights: np.ndarray
) -> Iterator[tuple[float, tuple[int, ...], int]]:
    """Every combination of coins under and over their thresholds: its measure, and what is decided in it."""
    widths = np.diff(rounds.node_offsets)
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        patterns = np.array(list(product((True, False), repeat=int(width)))).reshape(
            2 ** int(width), int(width)
        )
        cell = rounds.take(np.repeat(rows, len(patterns)))
        under = np.tile(patterns, (len(rows), 1))
        edge = np.stack([below[rounds.node_offsets[row] :][:width] for row in rows])
        edge = np.repeat(edge, len(patterns), axis=0)
        measure = np.repeat(weights[rows], len(patterns)) * np.where(under, edge, 1.0 - edge).prod(axis=1)
        coins = np.where(under, edge / 2, (1.0 + edge) / 2).ravel()
        decision = rule.decide(cell, _fixed(context, np.maximum(coins, 2.0**-1000)))
        tokens = cell["node_token"]
        for row in np.flatnonzero(measure > 0):
            begin = cell.node_offsets[row]
            path = tuple(int(tokens[begin + node]) for node in decision.path(row))
            yield float(measure[row]), path, int(decision.bonus[row])


def shared_coin_law(
    rule: Rule, context: RuleContext, p: np.ndarray, draft: Draft, horizon: int, steps: int = 20
) -> np.ndarray:
    """Law of the next `horizon` tokens when siblings share a coin, by the middles of `steps` equal cells.

    Exact if every sum of p that a coin may be held against is a whole number of cells. One coin a depth is
    enough, since at most one slot of each depth is reached. What is left of p is p without the siblings.
    """
    residual = []
    for node, parent in enumerate(draft.parents):
        slot = ROOT if parent < 0 else draft.tokens[parent]
        tried = [draft.tokens[i] for i in range(node + 1) if draft.parents[i] == parent]
        rest = p[slot] * ~np.isin(np.arange(len(p)), tried)
        residual.append(rest / rest.sum() if rest.sum() > 0 else p[slot])
    nodes = len(draft.tokens)
    marked = {
        "slot_choice": CHOICE + np.arange(nodes + 1),
        "node_residual_token": RESIDUAL + np.arange(nodes),
    }
    one = build(p, np.full_like(p, 1 / len(p)), [draft], **marked)
    middles = (np.arange(steps) + 0.5) / steps
    by_depth = np.array(list(product(middles, repeat=int(one.node_depth.max(initial=0)))))
    rounds = one.take(np.zeros(len(by_depth), dtype=np.int64))
    coins = by_depth[rounds.node_round, rounds.node_depth - 1]
    decision = rule.decide(rounds, _fixed(context, coins))
    law = np.zeros((len(p),) * horizon)
    slots = [ROOT, *draft.tokens]
    outcomes = np.column_stack([decision.accepted.reshape(len(by_depth), nodes), decision.bonus])
    _, first, count = np.unique(outcomes, axis=0, return_index=True, return_counts=True)
    for row, times in zip(first, count, strict=True):
        path = tuple(draft.tokens[node] for node in decision.path(row))
        mark = int(decision.bonus[row])
        following = residual[mark - RESIDUAL] if mark >= RESIDUAL else p[slots[mark - CHOICE]]
        _add(law, p, times / len(by_depth), path, following)
    return law


def choice_law(rule: Rule, context: RuleContext, p: np.ndarray, draft: Draft, horizon: int) -> np.ndarray:
    """Law of the next `horizon` tokens if one round is decided by a rule on the target's choices.

    Slots with the same tokens before them have the same choice.
    """
    texts: list[tuple[int, ...]] = [()]
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        texts.append((*texts[parent + 1], token))
    distinct = list(dict.fromkeys(texts))
    before = [text[-1] if text else ROOT for text in distinct]
    free = np.array(list(product(range(len(p)), repeat=len(distinct))))
    choices = free[:, [distinct.index(text) for text in texts]]
    rounds = build(p, p, [draft] * len(choices), slot_choice=choices.ravel())
    decision = rule.decide(rounds, context)
    law = np.zeros((len(p),) * horizon)
    for row, chosen in enumerate(free):
        weight = float(np.prod([p[slot, choice] for slot, choice in zip(before, chosen, strict=True)]))
        if weight > 0:
            path = tuple(draft.tokens[node] for node in decision.path(row))
            _add(law, p, weight, path, np.eye(len(p))[decision.bonus[row]])
    return law


def _fixed(context: RuleContext, coins: np.ndarray) -> RuleContext:
    return replace(context, coins=lambda rounds, purpose: coins)


def _add(law: np.ndarray, p: np.ndarray, weight: float, path: tuple[int, ...], following: np.ndarray) -> None:
    """Add the texts that begin with a path, go on with a draw of `following`, and then with the target."""
    horizon = law.ndim
    if len(path) >= horizon:
        law[path[:horizon]] += weight
        return
    for token in np.flatnonzero(following):
        text = (*path, int(token))
        rest = _after(p, int(token), horizon - len(text))
        law[text] += weight * following[token] * rest


def _after(p: np.ndarray, token: int, steps: int) -> np.ndarray:
    if steps == 0:
        return np.ones(())
    return np.stack([p[token, after] * _after(p, after, steps - 1) for after in range(len(p))])

"""What a scheduler asked for, applied: every round cut to its own shape, the rule at its own threshold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.control.base import Asked
from dflash.policy.decision import Decision, end_at
from dflash.policy.draft_score import cumulative, log_confidence
from dflash.policy.noise import F64
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Rule
from dflash.policy.shape import Shape
from dflash.policy.topology import Bool, first_leaf

_CUT = "survival"


def drafted(rounds: Rounds, asked: Asked) -> Rounds:
    """Cut rounds to what was drafted of them.

    Args:
        rounds: R of them, as recorded.
        asked: for each.
    """
    counts = rounds.trees.counts
    rounds = _keep(rounds, rounds.node_depth <= np.repeat(asked.length, counts))
    if not rounds.trees.branching:
        return rounds
    leaf = first_leaf(rounds.parent_node, rounds.parent_slot, rounds.node_depth)
    return _keep(rounds, leaf < np.repeat(asked.branches, rounds.trees.counts))


def verified(rounds: Rounds, shape: Shape, asked: Asked) -> Rounds:
    """Cut rounds that were `drafted` to what is verified of them.

    Args:
        shape: of the policy.
        asked: for each.
    """
    if asked.survival.any():
        rounds = _keep(rounds, survivals(rounds) >= np.repeat(asked.survival, rounds.trees.counts))
    return shape.after_drafting.cut(rounds)


def close(rounds: Rounds, shape: Shape, asked: Asked, tolerance: float) -> Bool:
    """Return whether `verified` might cut each round otherwise if confidences were rounded; `[R]`.

    Args:
        rounds: R of them, `drafted`.
        shape: of the policy.
        tolerance: of the log of a confidence.
    """
    near = np.zeros(len(rounds), dtype=bool)
    if asked.survival.any():
        survival, bound = survivals(rounds), np.repeat(asked.survival, rounds.trees.counts)
        with np.errstate(divide="ignore", invalid="ignore"):
            lead = np.log(survival) - np.log(bound)
        near[rounds.node_round[(lead != 0) & (np.abs(lead) < tolerance)]] = True
        rounds = _keep(rounds, survival >= bound)
    return near | shape.after_drafting.close(rounds, tolerance)


def survivals(rounds: Rounds) -> F64:
    """Return the drafter's word for how likely each node and its ancestors are accepted; `[N]`."""
    return np.exp(cumulative(rounds, log_confidence(rounds, _CUT)))


def decide_each(rule: Rule, rounds: Rounds, t: F64, context: RuleContext) -> Decision:
    """Judge every round under its own threshold.

    Args:
        rule: whose `t` is replaced.
        t: `[R]`; NaN leaves the rule alone.
    """
    values, group = np.unique(t, return_inverse=True)
    if len(values) < 2:
        return rule_at(rule, float(values[0]) if len(values) else np.nan).decide(rounds, context)
    last = np.full(len(rounds), -1, dtype=np.int64)
    emitted = np.full(len(rounds.node_parent) + len(rounds), -1, dtype=np.int64)
    tie = np.zeros(len(rounds), dtype=bool)
    for number, value in enumerate(values.tolist()):
        rows = np.flatnonzero(group == number)
        some = rounds.take(rows)
        decision = rule_at(rule, value).decide(some, context)
        beyond = decision.last_slot - some.root_slot
        last[rows] = np.where(beyond > 0, rounds.node_offsets[rows] + beyond - 1, -1)
        emitted[rounds.root_slot[rows] + beyond], tie[rows] = decision.bonus, decision.coin_tie
    return end_at(rounds, last, emitted, tie)


def rule_at(rule: Rule, t: float) -> Rule:
    """Return a rule with another threshold; NaN leaves it alone."""
    changed: Any = rule
    return rule if np.isnan(t) else replace(changed, t=t)


def _keep(rounds: Rounds, keep: Bool) -> Rounds:
    if keep.all():
        return rounds
    counts = np.bincount(rounds.node_round[keep], minlength=len(rounds))
    return rounds.select(np.arange(len(rounds)), np.flatnonzero(keep), counts)

"""Expectation: the chance that each drafted node is accepted, with the coins integrated out.

The target's own choice counts as a coin. Chances are conditional on the recorded drafts; `drafted_chances`
integrates over the last draft of a path as well.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dflash.policy.block import Block, pass_probability
from dflash.policy.context import CoinSource, Proposal, RuleContext
from dflash.policy.errors import ChainsOnly, MixedProposals, NullColumn
from dflash.policy.match import Match
from dflash.policy.noise import F64, I64, Purpose
from dflash.policy.rounds import Rounds
from dflash.policy.rule import Rule
from dflash.policy.siblings import SIBLING_COLUMNS, draft_law, sibling_log_ratio, target_law
from dflash.policy.speculative import Speculative
from dflash.policy.topology import path_sum
from dflash.replay.errors import DraftLawIncomplete, NoExpectation, NoIntegratedDrafts
from dflash.replay.integrated import core_rule, own_chances

LAW_COLUMNS = ("node_token", "node_logp", "node_logq", *SIBLING_COLUMNS)


def needs(rule: Rule, context: RuleContext, drafts: bool) -> tuple[str, ...]:
    """Return the columns that the chances are made of.

    Args:
        drafts: whether drafts are integrated over too.
    """
    rule = core_rule(rule, context)
    law = drafts or isinstance(rule, Speculative) or context.proposal is Proposal.SHARED
    matched = ("node_token", "node_logp", *(LAW_COLUMNS if law and context.sampled else ()))
    return matched if isinstance(rule, Match) else (*rule.needs(context), *matched)


def chances(rule: Rule, rounds: Rounds, context: RuleContext) -> F64:
    """Return the chance that each node lies on the accepted path, given the drafts; `[N]`.

    A rule that tosses no coin decides: its chances are 0 and 1.

    Raises:
        NoExpectation: the rule tosses coins in a way of its own.
        ChainsOnly: siblings shared the target's noise.
        DraftLawIncomplete: the chance depends on all of q, of which the file holds a part.
    """
    rule.refuse(context, rounds.trees.branching)
    rule = core_rule(rule, context)
    own = own_chances(rule, rounds, context)
    if own is not None:
        return _along(rounds, own)
    if isinstance(rule, Match) or (isinstance(rule, Speculative | Block) and not context.sampled):
        return _along(rounds, _choice_chance(rule, rounds, context))
    if isinstance(rule, Speculative):
        return _along(rounds, _first_passing(rounds, context))
    if isinstance(rule, Block):
        return _largest_passing(rounds, pass_probability(rounds, True))
    return rule.decide(rounds, replace(context, coins=_no_coins(rule.name))).accepted.astype(np.float64)


def drafted_chances(rule: Rule, rounds: Rounds, context: RuleContext) -> F64:
    """Return the chance that a chain is accepted to each depth, that depth's draft integrated out; `[N]`.

    The drafts before it are the recorded ones, accepted with the chance that they have: that keeps the
    estimate unbiased, which a product of integrated slots would not be.

    Raises:
        NoIntegratedDrafts: the rule is none of `speculative` and `match`, or a tree branches.
        DraftLawIncomplete: the file does not hold all of q.
    """
    rule = core_rule(rule, context)
    if not isinstance(rule, Speculative | Match):
        raise NoIntegratedDrafts(rule.name)
    if not context.sampled:
        return chances(rule, rounds, context)
    if rounds.trees.branching:
        raise NoIntegratedDrafts(rule.name, branches=True)
    before = np.ones(len(rounds.node_parent))
    reached = chances(rule, rounds, context)
    below = np.flatnonzero(rounds.parent_node >= 0)
    before[below] = reached[rounds.parent_node[below]]
    p, q, tail = _laws(rule, rounds, context)
    if isinstance(rule, Speculative):
        return np.asarray(before * np.minimum(p, q).sum(axis=1))
    if context.proposal is not Proposal.SHARED:
        return np.asarray(before * (p * q).sum(axis=1))
    agree = np.zeros(len(p))
    for place in range(p.shape[1]):
        here = q[:, place] > 0
        agree[here] += q[here, place] * _shared(p[here], q[here], tail[here], np.full(here.sum(), place))
    return np.asarray(before * agree)


def _along(rounds: Rounds, step: F64) -> F64:
    """Multiply the chances of the nodes of each path."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(path_sum(rounds.parent_node, np.log(step))))


def _choice_chance(rule: Rule, rounds: Rounds, context: RuleContext) -> F64:
    """The chance that the target's choice is the draft."""
    if not (context.sampled and context.proposal is Proposal.SHARED):
        return np.exp(rounds.present("node_logp"))
    if rounds.trees.branching:
        raise ChainsOnly(f"{rule.name} --expect")
    p, q, tail = _laws(rule, rounds, context)
    hit = rounds["draft_topk_token"][rounds.expanded_row[rounds.parent_slot]] == rounds["node_token"][:, None]
    if not hit.any(axis=1).all():
        raise NullColumn("draft_topk_token", "a draft is not among the stored draft top-k")
    place = hit.argmax(axis=1)
    return _shared(p, q, tail, place)


def _shared(p: F64, q: F64, tail: F64, place: I64) -> F64:
    """Chance that the target chooses the token at `place`, which the drafter drew with the same noise."""
    rows = np.arange(len(p))
    own_p, own_q = p[rows, place], q[rows, place]
    possible = own_p > 0
    scale_p, scale_q = np.where(possible, own_p, 1.0), own_q
    most = np.maximum(p / scale_p[:, None], q / scale_q[:, None]).sum(axis=1) + tail / scale_p
    return np.where(possible, 1.0 / (own_q * most), 0.0)


def _first_passing(rounds: Rounds, context: RuleContext) -> F64:
    """The chance that each node is the sibling that passes, once its parent is accepted."""
    log_ratio = rounds.present("node_logp") - rounds.present("node_logq")
    if not rounds.trees.branching:
        return np.asarray(np.exp(np.minimum(0.0, log_ratio)))
    later = rounds.node_rank > 0
    if not context.q_complete:
        raise DraftLawIncomplete("speculative on trees")
    log_ratio[later] = sibling_log_ratio(rounds, context)[later]
    passes = np.exp(np.minimum(0.0, log_ratio))
    left = np.ones(len(rounds.node_parent) + len(rounds))
    found = np.empty(len(passes))
    for rank in range(int(rounds.node_rank.max()) + 1):
        nodes = np.flatnonzero(rounds.node_rank == rank)
        slot = rounds.parent_slot[nodes]
        found[nodes] = left[slot] * passes[nodes]
        left[slot] *= 1.0 - passes[nodes]
    return found


def _largest_passing(rounds: Rounds, h: F64) -> F64:
    """The chance that a coin at a node's depth or below it passes, on chains."""
    with np.errstate(divide="ignore"):
        log_fail = np.log1p(-np.minimum(h, 1.0))
    chance = np.empty(len(h))
    fails = np.zeros(len(rounds))
    for depth in range(int(rounds.node_depth.max(initial=0)), 0, -1):
        nodes = np.flatnonzero(rounds.node_depth == depth)
        owner = rounds.node_round[nodes]
        fails[owner] += log_fail[nodes]
        chance[nodes] = -np.expm1(fails[owner])
    return chance


def _laws(rule: Rule, rounds: Rounds, context: RuleContext) -> tuple[F64, F64, F64]:
    """p and q over the stored draft top-k at the slot of every node `[N, K]`, and p outside of it `[N]`."""
    if context.proposal is Proposal.MIXED:
        raise MixedProposals(rule.name)
    if not context.q_complete:
        raise DraftLawIncomplete(rule.name)
    slots = rounds.parent_slot
    row = rounds.expanded_row[slots]
    if (row < 0).any():
        raise NullColumn("draft_topk_logit", "a node stands under a slot that the drafter did not expand")
    p = target_law(rounds, slots, row, context.temperature)
    q = draft_law(rounds["draft_topk_logit"][row], context.draft)
    return p, q, np.maximum(0.0, 1.0 - p.sum(axis=1))


def _no_coins(rule: str) -> CoinSource:
    def refuse(rounds: Rounds, purpose: Purpose) -> F64:
        raise NoExpectation(rule)

    return refuse

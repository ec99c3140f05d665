"""Decisions that walk down a tree by coins: at each slot to the first child that passes, else a new draw."""

from __future__ import annotations

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision, end_at
from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool, segment_max

COIN_TIE = 1e-6
RATIO_RULES = frozenset({"speculative", "fly", "ensemble"})


def first_passing(rounds: Rounds, ok: Bool, slot_token: I64, excess: F64 | None = None) -> Decision:
    """Accept at each slot the first child that is `ok`, and emit `slot_token` where the path ends.

    Args:
        rounds: R rounds with N nodes.
        ok: `[N]` whether a node passes once its ancestors are accepted and its earlier siblings are not.
        slot_token: `[N + R]` bonus token of each slot.
        excess: `[N]` by how much each coin lies over its threshold; none if no coin decides.
    """
    trees = rounds.trees
    if trees.chains and not trees.branching:
        count = trees.leading(ok)
        last = np.where(count > 0, rounds.node_offsets[:-1] + count - 1, -1)
    else:
        untried = _earlier_sibling(rounds, ok)
        alive = trees.along_path(ok & ~untried)
        # a path is unique here, so the deepest node is the last one
        deepest = segment_max(np.where(alive, rounds.node_depth, 0), rounds.node_offsets, 0)
        nodes = np.flatnonzero(alive & (rounds.node_depth == deepest[rounds.node_round]))
        last = np.full(len(rounds), -1, dtype=np.int64)
        last[rounds.node_round[nodes]] = nodes
        on_path = np.zeros(len(rounds) + len(alive), dtype=bool)
        on_path[rounds.root_slot] = True
        on_path[rounds.node_slot] = alive
        tried: Bool = on_path[rounds.parent_slot] & ~untried
    tie = np.zeros(len(rounds), dtype=bool)
    if excess is not None:
        near = np.flatnonzero(np.abs(excess) < COIN_TIE)
        owner = trees.round_of(near)
        if trees.chains and not trees.branching:
            tie[owner[near - rounds.node_offsets[owner] <= count[owner]]] = True
        else:
            tie[owner[tried[near]]] = True
    return end_at(rounds, last, slot_token, tie)


def replacements(rounds: Rounds, known: bool) -> I64:
    """Return what is emitted at every slot once all of its children have failed; `[N + R]`, -1 = unknown.

    Args:
        known: whether `node_residual_token` was drawn from the residual of the rule that asks.
    """
    emitted: I64 = rounds["slot_choice"].copy()
    token = rounds["node_residual_token"] if known else np.int64(-1)
    trees = rounds.trees
    if trees.chains and trees.width:
        rows = emitted.reshape(len(rounds), -1)
        rows[:, :-1] = token.reshape(len(rounds), -1) if known else token
        return emitted
    # ascending, so that the last sibling that failed at a slot stays
    emitted[rounds.parent_slot] = token
    return emitted


def residuals_known(rule: str, context: RuleContext) -> bool:
    """Return whether the recording holds draws from norm(max(0, p - q)), which `rule` would emit."""
    return context.recorded_rule == rule or (context.sampled and context.recorded_rule in RATIO_RULES)


def unknown_residuals(known: bool) -> str | None:
    """Return what a reader must know where replacements are not recorded."""
    return (
        None if known else "tokens that replace a rejected draft were not recorded: their bonus_token is null"
    )


def _earlier_sibling(rounds: Rounds, ok: Bool) -> Bool:
    """Return whether an earlier sibling of each node is `ok`; `[N]`."""
    found = np.zeros(len(ok), dtype=bool)
    if not rounds.trees.branching:
        return found
    slots = rounds.parent_slot
    first: I64 = np.full(len(ok) + len(rounds), len(ok), dtype=np.int64)
    np.minimum.at(first, slots[ok], np.flatnonzero(ok))
    return np.asarray(first[slots] < np.arange(len(ok)))

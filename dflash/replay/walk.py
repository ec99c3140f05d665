"""Walk: closed-loop replay over dense rows; where a policy would have gone, and what it meets there.

Every dense row is judged once, in columns; a walk is then a chain of jumps from anchor to anchor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.lazy import Columns
from dflash.policy.noise import I64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool
from dflash.replay.batch import Part
from dflash.replay.dense import COMMITTED, ON_TRUNK, DenseBatch, onto_trunk
from dflash.replay.near_ties import (
    CHOSEN,
    NEAR_TIE_COLUMNS,
    NearTie,
    cut_to,
    cut_tolerance,
    near_ties,
    with_leads,
)

WALK_COLUMNS = ("node_token", *NEAR_TIE_COLUMNS)


class Walked(NamedTuple):
    """What a policy does on the dense rows of one context.

    Attributes:
        rows: `[V]` visited rows of the batch, in file order.
        owner: `[V]` request of each.
        rounds: the visited rounds, cut to the shape in force.
        decision: theirs.
        kept: `[V]` tokens that stay within the answer.
        covered: `[requests]` tokens of each answer that the walk accounts for, 0 for other contexts.
        left_trunk: `[V]` whether the round emits a token that the trunk does not hold; the walk ends there.
        near_ties: rounds in which rounding may have decided.
        clipped: rounds for which the control wanted a larger shape than was recorded.
    """

    rows: I64
    owner: I64
    rounds: Rounds
    decision: Decision
    kept: I64
    covered: I64
    left_trunk: Bool
    near_ties: tuple[NearTie, ...]
    clipped: int = 0


class Steps(NamedTuple):
    """Where rounds lead to.

    Attributes:
        kept: `[R]` tokens that stay within the answer.
        good: `[R]` tokens of them before the trunk is left.
        left: `[R]` whether it is left.
    """

    kept: I64
    good: I64
    left: Bool


def marked(dense: DenseBatch, part: Part) -> Part:
    """Prepare the dense rows of one context for walks under any number of policies.

    The committed token becomes the choice wherever a path lies on the trunk.
    """
    rounds = with_leads(onto_trunk(part.rounds, dense.trunk, part.rows))

    def make(name: str) -> I64:
        if name == CHOSEN:
            return rounds.values["slot_choice"]
        committed = rounds[COMMITTED]
        return np.where(committed >= 0, committed, rounds.values["slot_choice"])

    names = [CHOSEN, "slot_choice", *(["slot_argmax"] if part.context.temperature == 0 else [])]
    return part._replace(rounds=rounds.with_values(Columns(names, make)))


def walk(policy: Policy, dense: DenseBatch, part: Part, tolerance: float, strict: bool = True) -> Walked:
    """Follow a policy of static control from the first anchor of every request to its end.

    A walk that leaves the trunk ends there.

    Args:
        part: the dense rows of one context, `marked`.
        tolerance: the header's `tie_tolerance`, in raw logits.
        strict: the trunk holds the target's choices, so that any other choice must be a near-tie.

    Raises:
        WalkDiverged: it is none.
    """
    rounds = cut_to(policy.shape, part.rounds, cut_tolerance(dense.batch.file, tolerance))
    decision = policy.rule.decide(rounds, part.context)
    steps = steps_of(rounds, decision, dense.trunk.left[part.rows])
    visited = _jump(part, dense, np.where(steps.left, 0, steps.kept))
    seen = rounds.take(visited)
    met = Steps(steps.kept[visited], steps.good[visited], steps.left[visited])
    begun = np.unique(part.owner)
    return walked(
        dense,
        part.rows[visited],
        seen,
        decision.take(seen, visited),
        met,
        begun,
        part.context,
        tolerance,
        strict,
    )


def walked(
    dense: DenseBatch,
    rows: I64,
    rounds: Rounds,
    decision: Decision,
    steps: Steps,
    begun: I64,
    context: RuleContext,
    tolerance: float,
    strict: bool,
) -> Walked:
    """Put together what happened in visited rounds.

    Args:
        rows: `[V]` of the batch, in file order.
        steps: of the visited rounds.
        begun: requests whose first token, which came from the prefill, is counted here.
    """
    owner = dense.batch.owner[rows]
    covered = np.zeros(len(dense.outputs), dtype=np.int64)
    covered[begun] = 1
    np.add.at(covered, owner, np.where(steps.left, steps.good, steps.kept))
    ties = near_ties(dense, rows, rounds, decision, context, tolerance, strict)
    return Walked(rows, owner, rounds, decision, steps.kept, covered, steps.left, ties)


def steps_of(rounds: Rounds, decision: Decision, tokens_left: I64) -> Steps:
    """Return how far each round goes, and whether it emits a token that the trunk does not hold.

    Args:
        tokens_left: `[R]` committed tokens after each anchor.
    """
    committed = rounds.values[COMMITTED]
    astray = np.flatnonzero(decision.accepted & (rounds.values[ON_TRUNK] == 0))
    at = rounds.node_round[astray]
    good = decision.accepted_count - np.bincount(at, minlength=len(rounds))
    # below a token off the trunk nothing is committed, and past the end nothing is known
    left = np.bincount(at[committed[rounds.parent_slot[astray]] >= 0], minlength=len(rounds)) > 0
    last = committed[decision.last_slot]
    left |= (last >= 0) & (decision.bonus != last)
    return Steps(np.minimum(decision.accepted_count + 1, tokens_left), good, left)


def _jump(part: Part, dense: DenseBatch, step: I64) -> I64:
    """Return the places within the part that are visited; a step of 0 ends a walk."""
    place_of = np.full(len(dense.batch.owner), -1, dtype=np.int64)
    place_of[part.rows] = np.arange(len(part.rows))
    requests = np.unique(part.owner)
    current = dense.trunk.first[requests]
    end = current + dense.trunk.rows[requests]
    visited = np.zeros(len(part.rows), dtype=bool)
    open_ = current < end
    while open_.any():
        current, end = current[open_], end[open_]
        here = place_of[current]
        visited[here] = True
        current = current + step[here]
        open_ = (step[here] > 0) & (current < end)
    return np.flatnonzero(visited)

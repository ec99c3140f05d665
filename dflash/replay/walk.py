"""Walk: closed-loop replay over dense rows; where a policy would have gone, and what it meets there.

Every dense row is judged once, in columns; a walk is then a chain of jumps from anchor to anchor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.noise import F64, I64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool
from dflash.replay.batch import Part
from dflash.replay.dense import COMMITTED, ON_TRUNK, DenseBatch, onto_trunk
from dflash.replay.errors import WalkDiverged

WALK_COLUMNS = ("node_token", "slot_choice", "slot_gap", "slot_cut_gap", "node_draft_gap")
CHOSEN = "slot_chosen"
LEAD = "node_lead"


class NearTie(NamedTuple):
    """A round of a walk in which rounding may have decided.

    Attributes:
        kind: `choice` (the dense row chose another token than the trunk holds), `margin` (the choice won by
            less than the tolerance) or `draft` (a drafted token did).
    """

    file: str
    request_id: str
    anchor_position: int
    kind: str


class Walked(NamedTuple):
    """What a policy does on the dense rows of one context.

    Attributes:
        rows: `[V]` visited rows of the batch, in file order.
        owner: `[V]` request of each.
        rounds: the visited rounds, cut to the policy's shape.
        decision: theirs.
        kept: `[V]` tokens that stay within the answer.
        covered: `[requests]` tokens of each answer that the walk accounts for, 0 for other contexts.
        left_trunk: `[V]` whether the round emits a token that the trunk does not hold; the walk ends there.
        near_ties: rounds in which rounding may have decided.
    """

    rows: I64
    owner: I64
    rounds: Rounds
    decision: Decision
    kept: I64
    covered: I64
    left_trunk: Bool
    near_ties: tuple[NearTie, ...]


def walk(policy: Policy, dense: DenseBatch, part: Part, tolerance: float, strict: bool = True) -> Walked:
    """Follow a policy from the first anchor of every request to its end, or to where it leaves the trunk.

    Args:
        part: the dense rows of one context.
        tolerance: the header's `tie_tolerance`, in raw logits.
        strict: the trunk holds the target's choices, so that any other choice must be a near-tie.

    Raises:
        WalkDiverged: it is none.
    """
    trunk = dense.trunk
    marked = _with_choices(onto_trunk(part.rounds, trunk, part.rows), part.context)
    rounds = policy.shape.cut(_with_leads(marked))
    decision = policy.rule.decide(rounds, part.context)
    left, good = _leaves(rounds, decision)
    kept = np.minimum(decision.accepted_count + 1, trunk.left[part.rows])
    visited = _jump(part, dense, np.where(left, 0, kept))
    seen = rounds.take(visited)
    again = policy.rule.decide(seen, part.context)
    rows, owner = part.rows[visited], part.owner[visited]
    covered = np.zeros(len(dense.outputs), dtype=np.int64)
    covered[np.unique(part.owner)] = 1
    np.add.at(covered, owner, np.where(left[visited], good[visited], kept[visited]))
    ties = _near_ties(dense, rows, seen, again, part.context, tolerance, strict)
    return Walked(rows, owner, seen, again, kept[visited], covered, left[visited], ties)


def _with_choices(rounds: Rounds, context: RuleContext) -> Rounds:
    """Let the committed token be the choice wherever a path lies on the trunk."""
    committed, recorded = rounds[COMMITTED], rounds["slot_choice"]
    choice = np.where(committed >= 0, committed, recorded)
    values = {CHOSEN: recorded, "slot_choice": choice}
    if context.temperature == 0:
        values["slot_argmax"] = choice
    return rounds.with_values(values)


def _with_leads(rounds: Rounds) -> Rounds:
    """Add by how much each drafted token beat its next sibling; null for the last one."""
    gap = rounds["node_draft_gap"]
    node, following = _neighbours(rounds)
    lead = np.full(len(gap), np.nan)
    lead[node] = gap[node] - gap[following]
    return rounds.with_values({LEAD: lead})


def _neighbours(rounds: Rounds) -> tuple[I64, I64]:
    """Return every node that has a next sibling, and that sibling."""
    order = np.argsort(rounds.parent_slot, kind="stable")
    one, two = order[:-1], order[1:]
    same = rounds.parent_slot[one] == rounds.parent_slot[two]
    return one[same], two[same]


def _draft_gaps(rounds: Rounds) -> F64:
    """Return the margin of every draft over the best one left out, be it cut away or never drafted."""
    last = np.ones(len(rounds.node_parent), dtype=bool)
    last[_neighbours(rounds)[0]] = False
    lead = rounds[LEAD]
    return np.where(last & ~np.isnan(lead), lead, rounds["node_draft_gap"])


def _leaves(rounds: Rounds, decision: Decision) -> tuple[Bool, I64]:
    """Return whether each round emits a token that the trunk does not hold, and how many on it before."""
    committed = rounds[COMMITTED]
    # below a token off the trunk nothing is committed, and past the end nothing is known
    off = decision.accepted & (rounds[ON_TRUNK] == 0) & (committed[rounds.parent_slot] >= 0)
    left = np.bincount(rounds.node_round[off], minlength=len(rounds)) > 0
    on = decision.accepted & (rounds[ON_TRUNK] > 0)
    good = np.bincount(rounds.node_round[on], minlength=len(rounds))
    last = committed[decision.last_slot]
    left |= (last >= 0) & (decision.bonus != last)
    return left, good


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


def _near_ties(
    dense: DenseBatch,
    rows: I64,
    rounds: Rounds,
    decision: Decision,
    context: RuleContext,
    tolerance: float,
    strict: bool,
) -> tuple[NearTie, ...]:
    scaled = tolerance / context.temperature if context.temperature > 0 else tolerance
    on_path = np.zeros(len(rounds.node_parent) + len(rounds), dtype=bool)
    on_path[rounds.root_slot] = True
    on_path[rounds.node_slot] = decision.accepted
    committed = rounds[COMMITTED]
    judged = on_path & (committed >= 0)
    close = (rounds["slot_gap"] < scaled) | (rounds["slot_cut_gap"] < tolerance)
    differs = judged & (rounds[CHOSEN] != committed)
    slot_round = np.repeat(np.arange(len(rounds)), np.diff(rounds.node_offsets) + 1)
    if strict and (differs & ~close).any():
        slot = int(np.flatnonzero(differs & ~close)[0])
        raise _diverged(dense, rows[slot_round[slot]], rounds, slot)
    drafted = on_path[rounds.parent_slot] & (_draft_gaps(rounds) < scaled)
    kinds = {
        "choice": slot_round[differs],
        "margin": slot_round[judged & close & ~differs],
        "draft": rounds.node_round[drafted],
    }
    found: dict[int, str] = {}
    for kind, where in kinds.items():
        for place in np.unique(where).tolist():
            found.setdefault(place, kind)
    return tuple(
        NearTie(*_where(dense, rows[place]), int(rounds.anchor_position[place]), kind)
        for place, kind in sorted(found.items())
    )


def _diverged(dense: DenseBatch, row: int, rounds: Rounds, slot: int) -> WalkDiverged:
    place = int(np.searchsorted(rounds.root_slot, slot, side="right")) - 1
    depth = 0 if slot == rounds.root_slot[place] else int(rounds.node_depth[slot - place - 1])
    choice, committed = int(rounds[CHOSEN][slot]), int(rounds[COMMITTED][slot])
    position = int(rounds.anchor_position[place]) + depth + 1
    return WalkDiverged(_where(dense, row)[1], position, committed, choice, float(rounds["slot_gap"][slot]))


def _where(dense: DenseBatch, row: int) -> tuple[str, str]:
    return str(dense.batch.file.path), dense.batch.requests[int(dense.batch.owner[row])].request_id

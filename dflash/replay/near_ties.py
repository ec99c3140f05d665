"""Near-ties: rounds of a walk in which rounding may have decided, listed so that nobody wonders later."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dflash.draftfile.reader import DraftFile
from dflash.policy.context import RuleContext
from dflash.policy.decision import Decision
from dflash.policy.lazy import Columns
from dflash.policy.noise import F64, I64
from dflash.policy.rounds import Rounds
from dflash.policy.shape import SCORED, Shape
from dflash.policy.topology import Bool
from dflash.replay.dense import COMMITTED, DenseBatch
from dflash.replay.errors import WalkDiverged

NEAR_TIE_COLUMNS = ("slot_choice", "slot_gap", "slot_cut_gap", "node_draft_gap")
CHOSEN = "slot_chosen"
LEAD = "node_lead"
CUT_CLOSE = "cut_close"
# families whose confidence is a share of occurrences, the same float32 whenever it is computed
COUNTED = frozenset({"ngram", "suffix"})


class NearTie(NamedTuple):
    """A round of a walk in which rounding may have decided.

    Attributes:
        kind: `choice` (the dense row chose another token than the trunk holds), `margin` (the choice won by
            less than the tolerance), `draft` (a drafted token did) or `cut` (a confidence lay so near to the
            bound of a cut).
    """

    file: str
    request_id: str
    anchor_position: int
    kind: str


def with_leads(rounds: Rounds) -> Rounds:
    """Add by how much each drafted token beat its next sibling, null for the last one, before any is cut."""
    if rounds.trees.chains:
        return rounds

    def make(name: str) -> F64:
        gap = rounds["node_draft_gap"]
        node, following = _neighbours(rounds)
        lead = np.full(len(gap), np.nan)
        lead[node] = gap[node] - gap[following]
        return lead

    return rounds.with_values(Columns([LEAD], make))


def cut_tolerance(file: DraftFile, tolerance: float) -> float:
    """Return how far rounding may move the log of a confidence: not at all where confidences are counts."""
    return 0.0 if all(drafter["family"] in COUNTED for drafter in file.header.drafters) else tolerance


def cut_to(shape: Shape, rounds: Rounds, tolerance: float) -> Rounds:
    """Cut dense rows, and note in which of them rounding might have cut otherwise.

    Args:
        tolerance: of `cut_tolerance`.
    """
    if not shape.cuts() & set(SCORED):
        return shape.cut(rounds)
    return shape.cut(rounds.with_values({CUT_CLOSE: shape.close(rounds, tolerance)}))


def near_ties(
    dense: DenseBatch,
    rows: I64,
    rounds: Rounds,
    decision: Decision,
    context: RuleContext,
    tolerance: float,
    strict: bool,
) -> tuple[NearTie, ...]:
    """List the near-ties among visited rounds.

    Args:
        rows: `[V]` of the batch; `rounds` and `decision` are theirs.
        tolerance: the header's `tie_tolerance`, in raw logits.
        strict: the trunk holds the target's choices, so that any other choice must be a near-tie.

    Raises:
        WalkDiverged: it is none.
    """
    scaled = tolerance / context.temperature if context.temperature > 0 else tolerance
    on_path = np.zeros(len(rounds.node_parent) + len(rounds), dtype=bool)
    on_path[rounds.root_slot] = True
    on_path[rounds.node_slot] = decision.accepted
    judged = np.flatnonzero(on_path & (rounds[COMMITTED] >= 0))
    differs = rounds[CHOSEN][judged] != rounds[COMMITTED][judged]
    gap, cut_gap = (rounds.values[name][judged].astype(np.float64) for name in ("slot_gap", "slot_cut_gap"))
    close = (gap < scaled) | (cut_gap < tolerance)
    if strict and (differs & ~close).any():
        raise _diverged(dense, rows, rounds, int(judged[np.flatnonzero(differs & ~close)[0]]))
    place = np.repeat(np.arange(len(rounds)), rounds.trees.counts + 1)[judged]
    kinds = {
        "choice": place[differs],
        "margin": place[close & ~differs],
        "draft": rounds.node_round[_near_drafts(rounds, on_path, scaled)],
        "cut": np.flatnonzero(rounds[CUT_CLOSE]) if CUT_CLOSE in rounds.values else judged[:0],
    }
    found: dict[int, str] = {}
    for kind, where in kinds.items():
        for one in np.unique(where).tolist():
            found.setdefault(one, kind)
    return tuple(
        NearTie(*_where(dense, int(rows[one])), int(rounds.anchor_position[one]), kind)
        for one, kind in sorted(found.items())
    )


def _near_drafts(rounds: Rounds, on_path: Bool, tolerance: float) -> Bool:
    """Return whether each node was drafted within the tolerance of one left out, where it was tried."""
    return np.asarray((_draft_gaps(rounds) < tolerance) & on_path[rounds.parent_slot])


def _draft_gaps(rounds: Rounds) -> F64:
    """Return the margin of every draft over the best one left out, be it cut away or never drafted."""
    if LEAD not in rounds.values:
        return rounds["node_draft_gap"]
    last = np.ones(len(rounds.node_parent), dtype=bool)
    last[_neighbours(rounds)[0]] = False
    lead = rounds[LEAD]
    return np.where(last & ~np.isnan(lead), lead, rounds["node_draft_gap"])


def _neighbours(rounds: Rounds) -> tuple[I64, I64]:
    """Return every node that has a next sibling, and that sibling."""
    order = np.argsort(rounds.parent_slot, kind="stable")
    one, two = order[:-1], order[1:]
    same = rounds.parent_slot[one] == rounds.parent_slot[two]
    return one[same], two[same]


def _diverged(dense: DenseBatch, rows: I64, rounds: Rounds, slot: int) -> WalkDiverged:
    place = int(np.searchsorted(rounds.root_slot, slot, side="right")) - 1
    depth = 0 if slot == rounds.root_slot[place] else int(rounds.node_depth[slot - place - 1])
    choice, committed = int(rounds[CHOSEN][slot]), int(rounds[COMMITTED][slot])
    position = int(rounds.anchor_position[place]) + depth + 1
    request = _where(dense, int(rows[place]))[1]
    return WalkDiverged(request, position, committed, choice, float(rounds["slot_gap"][slot]))


def _where(dense: DenseBatch, row: int) -> tuple[str, str]:
    return str(dense.batch.file.path), dense.batch.requests[int(dense.batch.owner[row])].request_id

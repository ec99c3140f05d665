"""Which part of a recorded tree a policy uses: what is drafted of it, and what is then verified."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from dflash.policy.context import RuleContext
from dflash.policy.draft_score import SCORE_COLUMNS, Scored, best, cumulative, log_confidence, lowest
from dflash.policy.parameter import Number, Whole, parameter
from dflash.policy.rounds import Rounds
from dflash.policy.topology import Bool, along_path, first_leaf

SCORED = ("confidence", "survival", "nodes")


@dataclass(frozen=True, slots=True)
class Shape:
    """Bounds on the tree; None leaves it as recorded. They cut in the order in which they stand here.

    Attributes:
        length: the largest depth.
        branches: the largest number of root-to-leaf paths, in order of proposal.
        first_positions: the largest depth at which siblings are kept; below it only the first child is.
        confidence: stop before the first node in which the drafter trusts less.
        survival: stop before the first node whose product of confidences along the path is less.
        nodes: keep this many, those with the largest product of confidences along the path.
    """

    length: int | None = parameter(Whole(0), None)
    branches: int | None = parameter(Whole(1), None)
    first_positions: int | None = parameter(Whole(0), None)
    confidence: float | None = parameter(Number(0.0, 1.0), None)
    survival: float | None = parameter(Number(0.0, 1.0), None)
    nodes: int | None = parameter(Whole(0), None)

    @property
    def whole(self) -> bool:
        """Whether nothing is cut."""
        return not self.cuts()

    @property
    def after_drafting(self) -> Shape:
        """The bounds that cut a tree which was drafted in the right length and branches already."""
        return replace(self, length=None, branches=None)

    def cuts(self, largest: Shape | None = None) -> set[str]:
        """Return the names of the bounds in force.

        Args:
            largest: the recorded shape; a bound that equals its own cuts nothing.
        """
        names = {item.name for item in fields(self) if getattr(self, item.name) is not None}
        if largest is None:
            return names
        return {name for name in names if getattr(self, name) != getattr(largest, name)}

    def peeks(self, context: RuleContext) -> set[str]:
        """Return the names of the cuts that look at a token before deciding whether to try it.

        A confidence that was fixed before the draw may be looked at, a probability of the drawn token not.
        `nodes` weighs siblings and branches against each other, so that one draw decides about another.
        """
        harmless = {"confidence", "survival"} if context.slot_confidence else set()
        return (self.cuts() & set(SCORED)) - harmless

    def needs(self, context: RuleContext) -> tuple[str, ...]:
        """Return the columns that `cut` reads."""
        if not self.cuts() & set(SCORED):
            return ()
        return ("node_confidence",) if context.slot_confidence else SCORE_COLUMNS

    def filled(self, other: Shape) -> Shape:
        """Return this shape with its open bounds taken from another."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(other, **{name: bound for name, bound in given.items() if bound is not None})

    def cut(self, rounds: Rounds) -> Rounds:
        """Return the rounds with the nodes outside of the bounds removed; every kept node keeps its noise.

        Raises:
            DraftScoreMissing: a cut by confidence meets nodes of which the drafter states none.
        """
        rounds = self._drafted(rounds)
        for name in SCORED:
            if getattr(self, name) is not None:
                rounds = _keep(rounds, self._scored(rounds, name).keep)
        return rounds

    def close(self, rounds: Rounds, tolerance: float) -> Bool:
        """Return whether the cut of each round might turn out otherwise if confidences were rounded; `[R]`.

        Args:
            rounds: R of them, uncut.
            tolerance: of the log of a confidence. One that equals its bound is a frequency, which is exact.
        """
        near = np.zeros(len(rounds), dtype=bool)
        rounds = self._drafted(rounds)
        for name in SCORED:
            if getattr(self, name) is not None:
                keep, lead = self._scored(rounds, name)
                near[rounds.node_round[(lead != 0) & (np.abs(lead) < tolerance)]] = True
                rounds = _keep(rounds, keep)
        return near

    def _drafted(self, rounds: Rounds) -> Rounds:
        """Cut by the bounds that look at the form of the trees alone."""
        if self.length is not None:
            rounds = _keep(rounds, rounds.node_depth <= self.length)
        if self.branches is not None:
            leaf = first_leaf(rounds.parent_node, rounds.parent_slot, rounds.node_depth)
            rounds = _keep(rounds, leaf < self.branches)
        if self.first_positions is not None:
            single = (rounds.node_depth <= self.first_positions) | (rounds.node_rank == 0)
            rounds = _keep(rounds, along_path(rounds.parent_node, single))
        return rounds

    def _scored(self, rounds: Rounds, cut: str) -> Scored:
        score = log_confidence(rounds, cut)
        if cut == "nodes":
            return best(rounds, cumulative(rounds, score), self.nodes or 0)
        path = lowest(rounds, score) if cut == "confidence" else cumulative(rounds, score)
        bound = _log(getattr(self, cut))
        with np.errstate(invalid="ignore"):
            return Scored(path >= bound, path - bound)


def _log(bound: float) -> float:
    """Return log of a bound as stored, so that a stored confidence equals the bound it stands for."""
    return float(np.log(np.float64(np.float32(bound)))) if bound > 0 else -np.inf


def _keep(rounds: Rounds, keep: Bool) -> Rounds:
    if keep.all():
        return rounds
    counts = np.bincount(rounds.node_round[keep], minlength=len(rounds))
    return rounds.select(np.arange(len(rounds)), np.flatnonzero(keep), counts)

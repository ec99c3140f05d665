"""A policy's control over the lanes: what each drafts next, under which rule, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dflash.drafters.base import Anchor, Drafter, DraftShape, Proposal
from dflash.engine.cut import rounds_of, trimmed
from dflash.engine.lane import Lane
from dflash.engine.states import States, state_text
from dflash.policy.control.base import Asked, Load
from dflash.policy.control.controller import Ahead, Controller, Outcome, frame_of
from dflash.policy.control.cut import rule_at, survivals, verified
from dflash.policy.noise import I64
from dflash.policy.registry import Policy
from dflash.policy.rule import Rule
from dflash.policy.shape import Shape
from dflash.policy.step_time import StepTime


class Turn(NamedTuple):
    """How one lane's next round runs; `state` is what decided it, None under static control."""

    shape: DraftShape
    rule: Rule
    state: dict[str, Any] | None

    @property
    def text(self) -> str | None:
        """The `control_state` column."""
        return None if self.state is None else state_text(self.state)


class Result(NamedTuple):
    """How deep the tree of a round was, and how deep the path that was accepted."""

    accepted: int
    drafted: int


class LaneControl:
    """Asks a policy's scheduler before every round of the lanes, and tells it what they came to.

    `largest` bounds every draft; `step_time` is for controls that predict how long a round takes, None where
    nobody says.
    """

    def __init__(self, policy: Policy, largest: DraftShape, lanes: int, step_time: StepTime | None) -> None:
        self.policy, self.step_time = policy, step_time
        self._largest, self._lanes = largest, lanes
        self._frame = frame_of(policy.rule, policy.shape, Shape(largest.length, largest.branches), step_time)
        self.restart()
        self._survival = np.empty(0)

    def at_all_lanes(self) -> LaneControl:
        """The same where a round takes as long however many lanes have requests."""
        if self.step_time is None:
            return self
        return LaneControl(self.policy, self._largest, self._lanes, self.step_time.for_batch(self._lanes))

    def restart(self) -> None:
        """Forget all that was learned; no lane may be busy."""
        self._controller = Controller(self.policy.control, self._frame, self._lanes, foresees=True)

    def open(self, lane: Lane) -> None:
        """A request starts in this lane."""
        self._controller.open(np.array([lane.index]))

    def turns(self, lanes: Sequence[Lane]) -> list[Turn]:
        """Ask for the next round of these lanes, which share a step."""
        context = float(np.mean([len(lane.trunk) for lane in lanes]))
        asked = self._asked = self.ask(indices(lanes), context)
        shapes = zip(asked.length.tolist(), asked.branches.tolist(), asked.t.tolist(), strict=True)
        return [
            Turn(DraftShape(length, branches), self._rule(t), self._state(lane))
            for lane, (length, branches, t) in zip(lanes, shapes, strict=True)
        ]

    def ask(self, who: I64, context: float) -> Asked:
        """Ask for the next round of the lanes of these indices, which share a step.

        Args:
            who: `[k]`.
            context: mean length of their trunks.
        """
        return self._controller.ask(who, Load(len(who), context))

    def foresee(self, who: I64, context: float, steps: int) -> Ahead:
        """What `ask` will return in the next steps, for lanes of this mean context."""
        return self._controller.foresee(who, Load(len(who), context), steps)

    def states(self, who: I64) -> States:
        """What decides these lanes' next round, once it was asked for."""
        return len(who), self._controller.columns(who)

    def learn(self, who: I64, asked: Asked, accepted: I64, drafted: I64) -> None:
        """Take in what the rounds of one step came to, see `Outcome`."""
        self._controller.tell(who, Outcome(accepted, drafted, asked.length))

    def admit(
        self, anchors: Sequence[Anchor], proposals: Sequence[Proposal], turns: Sequence[Turn]
    ) -> list[Proposal]:
        """Cut drafted trees to what is worth verifying."""
        shape, reads = self.policy.shape, bool(self.policy.control.columns)
        if not reads and shape.after_drafting.whole:
            return list(proposals)
        if reads:
            rounds = rounds_of(anchors, proposals)
            self._survival = survivals(rounds)
            for turn, drafted in zip(turns, np.split(self._survival, rounds.node_offsets[1:-1]), strict=True):
                if turn.state is not None:
                    turn.state["survivals"] = drafted.tolist()
        asked = self._asked
        return trimmed(anchors, proposals, lambda rounds: verified(rounds, shape, asked))

    def tell(self, lanes: Sequence[Lane], turns: Sequence[Turn], results: Sequence[Result]) -> None:
        """Take in what the rounds of one step came to."""
        accepted, drafted = np.array(results, dtype=np.int64).T
        length = np.array([turn.shape.length for turn in turns], dtype=np.int64)
        self._controller.tell(indices(lanes), Outcome(accepted, drafted, length, self._survival))

    def _rule(self, t: float) -> Rule:
        return rule_at(self.policy.rule, t) if self.policy.control.moves_threshold else self.policy.rule

    def _state(self, lane: Lane) -> dict[str, Any] | None:
        return self._controller.facts(lane.index) if self.policy.control.adaptive else None


def propose_each(drafter: Drafter, anchors: Sequence[Anchor], shapes: Sequence[DraftShape]) -> list[Proposal]:
    """Draft from every anchor in its own shape, anchors of one shape together."""
    proposals: dict[int, Proposal] = {}
    for shape in dict.fromkeys(shapes):
        places = [place for place, other in enumerate(shapes) if other == shape]
        drafts = drafter.propose([anchors[place] for place in places], shape)
        proposals.update(zip(places, drafts, strict=True))
    return [proposals[place] for place in range(len(anchors))]


def indices(lanes: Sequence[Lane]) -> I64:
    """Lanes as control knows them; `[k]`."""
    return np.array([lane.index for lane in lanes], dtype=np.int64)

"""Walks under a control: what a round may be follows from what the rounds before it came to.

All requests take a step at once. A control that couples them is given the lanes of the recording instead: a
request that ends frees its lane for the next, as in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dflash.policy.control.base import Asked, Load
from dflash.policy.control.controller import Controller, Outcome
from dflash.policy.control.cut import drafted, rule_at, survivals, verified
from dflash.policy.decision import Decision
from dflash.policy.noise import F64, I64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.replay.batch import Part
from dflash.replay.dense import DenseBatch
from dflash.replay.walk import Steps, Walked, steps_of, walked


class Visits(NamedTuple):
    """Rounds of a walk and what was asked for in each.

    Attributes:
        rows: `[V]` of the batch, ascending.
    """

    rows: I64
    asked: Asked


class Ran(NamedTuple):
    """Rounds under one rule, as a policy under control saw them.

    Attributes:
        which: `[R]` which of the rounds asked for these are.
        survival: of the nodes that were drafted, empty unless the control reads confidence.
    """

    which: I64
    rounds: Rounds
    decision: Decision
    steps: Steps
    survival: F64


class ControlledWalk:
    """One policy's walk through the row groups of a run; a coupling control goes on from one to the next.

    Args:
        policy: whose control is adaptive.
        controller: makes a fresh one for a number of requests.
        lanes: how many requests the engine has open at once.
    """

    def __init__(self, policy: Policy, controller: Callable[[int], Controller], lanes: int) -> None:
        self.policy = policy
        self.lanes = lanes
        self._fresh = controller
        self._coupled = controller(lanes) if policy.control.couples else None

    def walk(self, dense: DenseBatch, parts: Sequence[Part], tolerance: float, strict: bool) -> list[Walked]:
        """Follow the policy through one row group; see `dflash.replay.walk.walk`."""
        if not parts:
            return []
        visits = self._follow(dense, parts)
        found = []
        for part in parts:
            inside = np.flatnonzero(np.isin(visits.rows, part.rows))
            rows, asked = visits.rows[inside], visits.asked.take(inside)
            begun = np.unique(part.owner)
            for ran in self._run(dense, part, np.searchsorted(part.rows, rows), asked):
                item = walked(
                    dense,
                    rows[ran.which],
                    ran.rounds,
                    ran.decision,
                    ran.steps,
                    begun,
                    part.context,
                    tolerance,
                    strict,
                )
                found.append(item._replace(clipped=int(asked.clipped[ran.which].sum())))
                begun = begun[:0]
        return found

    def _follow(self, dense: DenseBatch, parts: Sequence[Part]) -> Visits:
        trunk, places = dense.trunk, _Places.of(dense, parts)
        queue = np.flatnonzero(trunk.rows > 0)
        count = min(self.lanes, len(queue)) if self._coupled else len(queue)
        controller = self._coupled or self._fresh(count)
        lane, request, queue = np.arange(count), queue[:count], queue[count:]
        controller.open(lane)
        row = trunk.first[request]
        visited: list[Visits] = []
        while len(lane):
            asked = controller.ask(lane, Load(len(lane), float(places.context[row].mean())))
            visited.append(Visits(row, asked))
            outcome, step = self._step(dense, parts, places, row, asked)
            controller.tell(lane, outcome)
            row = row + step
            done = np.flatnonzero((step == 0) | (row >= trunk.first[request] + trunk.rows[request]))
            done, ended = done[: len(queue)], done[len(queue) :]
            request[done], queue = queue[: len(done)], queue[len(done) :]
            row[done] = trunk.first[request[done]]
            controller.open(lane[done])
            lane, request, row = (np.delete(column, ended) for column in (lane, request, row))
        return _in_file_order(visited)

    def _step(
        self, dense: DenseBatch, parts: Sequence[Part], places: _Places, row: I64, asked: Asked
    ) -> tuple[Outcome, I64]:
        """Run one round of every open request; how far each goes, 0 where it leaves its trunk."""
        accepted, depth, step = (np.zeros(len(row), dtype=np.int64) for _ in range(3))
        survival = []
        for number, part in enumerate(parts):
            mine = np.flatnonzero(places.part[row] == number)
            if not len(mine):
                continue
            for ran in self._run(dense, part, places.place[row[mine]], asked.take(mine)):
                index = mine[ran.which]
                accepted[index] = ran.decision.accepted_count
                depth[index] = ran.rounds.trees.tree_depth
                step[index] = np.where(ran.steps.left, 0, ran.steps.kept)
                survival.append(ran.survival)
        return Outcome(accepted, depth, asked.length, np.concatenate(survival)), step

    def _run(self, dense: DenseBatch, part: Part, place: I64, asked: Asked) -> Iterator[Ran]:
        """Judge rounds of one part in the shapes that were asked for, one threshold after the other."""
        policy, reads = self.policy, bool(self.policy.control.columns)
        for t in np.unique(asked.t):
            index = np.flatnonzero(np.isnan(asked.t) if np.isnan(t) else asked.t == t)
            some = asked.take(index)
            tree = drafted(part.rounds.take(place[index]), some)
            rounds = verified(tree, policy.shape, some)
            rule = rule_at(policy.rule, t) if policy.control.moves_threshold else policy.rule
            decision = rule.decide(rounds, part.context)
            steps = steps_of(rounds, decision, dense.trunk.left[part.rows[place[index]]])
            yield Ran(index, rounds, decision, steps, survivals(tree) if reads else np.empty(0))


class _Places(NamedTuple):
    """Where the rows of a batch are: in which part, at which place of it, and after how many tokens."""

    part: I64
    place: I64
    context: F64

    @classmethod
    def of(cls, dense: DenseBatch, parts: Sequence[Part]) -> _Places:
        part, place = (np.zeros(len(dense.batch.owner), dtype=np.int64) for _ in range(2))
        for number, one in enumerate(parts):
            part[one.rows] = number
            place[one.rows] = np.arange(len(one.rows))
        anchors = dense.batch.table["anchor_position"].combine_chunks().to_numpy(zero_copy_only=False)
        return cls(part, place, anchors + 1.0)


def _in_file_order(visited: Sequence[Visits]) -> Visits:
    rows = np.concatenate([some.rows for some in visited])
    order = np.argsort(rows)
    return Visits(rows[order], Asked.joined([some.asked for some in visited]).take(order))

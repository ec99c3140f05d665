"""Rounds of many requests at once, each in the shape that a control asks for after the ones before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dflash.policy.control.base import Asked, Load
from dflash.policy.control.controller import Controller, Outcome
from dflash.policy.control.cut import decide_each, drafted, survivals, verified
from dflash.policy.decision import Decision
from dflash.policy.noise import F64, I64
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.replay.batch import Part

Run = Callable[[I64, Asked], tuple[Outcome, I64]]
Step = Callable[[I64, "Ran"], I64]


class Visits(NamedTuple):
    """Rounds that ran, and what was asked for in each.

    Attributes:
        rows: `[V]` of the batch, ascending.
    """

    rows: I64
    asked: Asked


class Ran(NamedTuple):
    """Rounds of one context as a policy under control saw them.

    Attributes:
        survival: of the nodes that were drafted, empty unless the control reads confidence.
    """

    rounds: Rounds
    decision: Decision
    survival: F64


def follow(controller: Controller, lanes: int, first: I64, rows: I64, context: F64, run: Run) -> Visits:
    """Run every request to its end, at most `lanes` at once; one that ends frees its lane for the next.

    Args:
        controller: for that many requests.
        first: `[requests]` the first row of each, `rows` how many it has.
        context: `[rows of the batch]` tokens up to each anchor.
        run: given one row of every open request and what is asked for, tells what came of it and how many
            rows each goes on, 0 to end it.
    """
    queue = np.flatnonzero(rows > 0)
    lane = np.arange(min(lanes, len(queue)))
    request, queue = queue[: len(lane)], queue[len(lane) :]
    controller.open(lane)
    row, end = first[request], first + rows
    visited: list[Visits] = []
    while len(lane):
        asked = controller.ask(lane, Load(len(lane), float(context[row].mean())))
        visited.append(Visits(row, asked))
        outcome, step = run(row, asked)
        controller.tell(lane, outcome)
        row = row + step
        done = np.flatnonzero((step == 0) | (row >= end[request]))
        freed, ended = done[: len(queue)], done[len(queue) :]
        request[freed], queue = queue[: len(freed)], queue[len(freed) :]
        row[freed] = first[request[freed]]
        controller.open(lane[freed])
        lane, request, row = (np.delete(column, ended) for column in (lane, request, row))
    order = np.argsort(np.concatenate([some.rows for some in visited]))
    every = Visits(np.concatenate([some.rows for some in visited]), Asked.joined([v.asked for v in visited]))
    return Visits(every.rows[order], every.asked.take(order))


def run_part(policy: Policy, part: Part, place: I64, asked: Asked) -> Ran:
    """Judge rounds of one part in the shapes, and under the thresholds, that were asked for.

    Args:
        place: `[R]` of the part.
        asked: for each.
    """
    tree = drafted(part.rounds.take(place), asked)
    rounds = verified(tree, policy.shape, asked)
    if policy.control.moves_threshold:
        decision = decide_each(policy.rule, rounds, asked.t, part.context)
    else:
        decision = policy.rule.decide(rounds, part.context)
    return Ran(rounds, decision, survivals(tree) if policy.control.columns else np.empty(0))


class OneShape:
    """Runs rounds of requests that are all asked for the same; a shape is judged once for the whole batch.

    Args:
        policy: whose control has one state for all requests, and reads no confidence.
        places: of the batch; `parts` likewise.
        step: as for `Places.run`.
    """

    def __init__(self, policy: Policy, places: Places, parts: Sequence[Part], step: Step) -> None:
        self._policy, self._places, self._parts, self._step = policy, places, parts, step
        self._rows = np.flatnonzero(places.part >= 0)
        self._size = len(places.part)
        self._known: dict[tuple[int, int, float], tuple[I64, I64, I64]] = {}

    def __call__(self, row: I64, asked: Asked) -> tuple[Outcome, I64]:
        """Run one row of every open request; see `follow`."""
        key = (int(asked.length[0]), int(asked.branches[0]), float(asked.t[0]))
        # no NaN equals another
        key = key if key[2] == key[2] else (*key[:2], -1.0)
        if key not in self._known:
            self._known[key] = self._all(asked)
        accepted, depth, steps = (column[row] for column in self._known[key])
        return Outcome(accepted, depth, asked.length), steps

    def _all(self, asked: Asked) -> tuple[I64, I64, I64]:
        rows = self._rows
        same = asked.take(np.zeros(len(rows), dtype=np.int64))
        outcome, step = self._places.run(self._policy, self._parts, rows, same, self._step)
        spread = np.zeros((3, self._size), dtype=np.int64)
        spread[:, rows] = outcome.accepted, outcome.drafted, step
        return spread[0], spread[1], spread[2]


class Places(NamedTuple):
    """Where the rows of a batch are: in which part, and at which place of it."""

    part: I64
    place: I64

    @classmethod
    def of(cls, rows: int, parts: Sequence[Part]) -> Places:
        """Number the rows of a batch."""
        part, place = (np.full(rows, -1, dtype=np.int64) for _ in range(2))
        for number, one in enumerate(parts):
            part[one.rows] = number
            place[one.rows] = np.arange(len(one.rows))
        return cls(part, place)

    def runner(self, policy: Policy, parts: Sequence[Part], step: Step) -> Run:
        """Return what runs one row of every open request; see `run`."""
        if policy.control.couples and not policy.control.columns:
            return OneShape(policy, self, parts, step)
        return lambda row, asked: self.run(policy, parts, row, asked, step)

    def run(
        self, policy: Policy, parts: Sequence[Part], row: I64, asked: Asked, step: Step
    ) -> tuple[Outcome, I64]:
        """Run one row of every open request, part by part; see `follow`.

        Args:
            step: given rows of one part and what happened in them, tells how many rows each goes on.
        """
        accepted, depth, steps = (np.zeros(len(row), dtype=np.int64) for _ in range(3))
        survival = []
        for number, part in enumerate(parts):
            mine = np.flatnonzero(self.part[row] == number)
            if len(mine):
                ran = run_part(policy, part, self.place[row[mine]], asked.take(mine))
                accepted[mine], depth[mine] = ran.decision.accepted_count, ran.rounds.trees.tree_depth
                steps[mine] = step(row[mine], ran)
                survival.append(ran.survival)
        return Outcome(accepted, depth, asked.length, np.concatenate(survival)), steps

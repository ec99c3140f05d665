"""Walks under a control: what a round may be follows from what the rounds before it came to.

All requests take a step at once. A control that couples them is given the lanes of the recording instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dflash.policy.control.controller import Controller
from dflash.policy.control.cut import close, drafted
from dflash.policy.noise import I64
from dflash.policy.registry import Policy
from dflash.policy.shape import SCORED
from dflash.replay.batch import Part
from dflash.replay.dense import DenseBatch
from dflash.replay.lockstep import Places, Ran, Visits, follow, run_part
from dflash.replay.near_ties import CUT_CLOSE, cut_tolerance
from dflash.replay.walk import Walked, steps_of, walked


class ControlledWalk:
    """One policy's walk through the row groups of a file; a coupling control goes on from one to the next.

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
        visits, left = self._follow(dense, parts), dense.trunk.left
        found = []
        for part in parts:
            inside = np.flatnonzero(np.isin(visits.rows, part.rows))
            rows, asked = visits.rows[inside], visits.asked.take(inside)
            place = np.searchsorted(part.rows, rows)
            rounds, decision, _ = run_part(self.policy, part, place, asked)
            if self.policy.control.columns or self.policy.shape.cuts() & set(SCORED):
                tree = drafted(part.rounds.take(place), asked)
                near = close(tree, self.policy.shape, asked, cut_tolerance(dense.batch.file, tolerance))
                rounds = rounds.with_values({CUT_CLOSE: near})
            steps, begun = steps_of(rounds, decision, left[rows]), np.unique(part.owner)
            item = walked(dense, rows, rounds, decision, steps, begun, part.context, tolerance, strict)
            found.append(item._replace(clipped=int(asked.clipped.sum())))
        return found

    def _follow(self, dense: DenseBatch, parts: Sequence[Part]) -> Visits:
        trunk, places = dense.trunk, Places.of(len(dense.batch.owner), parts)
        requests = len(trunk.rows)
        controller = self._coupled or self._fresh(requests)
        anchors = dense.batch.table["anchor_position"].combine_chunks().to_numpy(zero_copy_only=False)

        def step(rows: I64, ran: Ran) -> I64:
            steps = steps_of(ran.rounds, ran.decision, trunk.left[rows])
            return np.where(steps.left, 0, steps.kept)

        return follow(
            controller,
            self.lanes if self._coupled else requests,
            trunk.first,
            trunk.rows,
            anchors + 1.0,
            places.runner(self.policy, parts, step),
        )

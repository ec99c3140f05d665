"""`replay --check` of a control: do the recorded outcomes lead to every recorded state?"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dflash.draftfile.reader import DraftFile
from dflash.policy.control.base import Load
from dflash.policy.control.controller import Controller, Outcome, frame_of
from dflash.policy.registry import Policy
from dflash.policy.rounds import Rounds
from dflash.replay.batch import Batch
from dflash.replay.steered import STATE_COLUMNS, largest_shape, step_time_of

STATE_CHECK_COLUMNS = (*STATE_COLUMNS, "step")
_EXTRA = {"survivals"}


class _Row(NamedTuple):
    place: tuple[str, str, int]
    request: int
    turn: int
    accepted: int
    drafted: int
    context: int
    state: dict[str, Any]


class WrongState(NamedTuple):
    """A round whose recorded state is not what the rounds before it lead to."""

    file: str
    request_id: str
    round: int
    expected: str
    found: str


@dataclass(slots=True)
class StateCheck:
    """Collects the live rounds of a run, then runs the control over them again.

    Requests that a control ties together are taken in the steps that they shared, others side by side.
    """

    policy: Policy
    file: DraftFile
    _rows: list[_Row] = field(default_factory=list)
    _requests: int = 0

    def add(self, batch: Batch, rounds: Rounds) -> None:
        """Take in one row group; `rounds` are the batch's own, uncut."""
        live = np.flatnonzero(batch.live)
        table = batch.table.select(["round", "anchor_position", *STATE_CHECK_COLUMNS]).take(live).to_pylist()
        depth, coupled = rounds.trees.tree_depth[live].tolist(), self.policy.control.couples
        accepted, owner = batch.accepted_count[live].tolist(), batch.owner[live].tolist()
        for row, deep, count, request in zip(table, depth, accepted, owner, strict=True):
            place = (str(batch.file.path), batch.requests[request].request_id, int(row["round"]))
            state = json.loads(row["control_state"]) if row["control_state"] else {}
            turn = int(row["step"] if coupled else row["round"])
            number, context = self._requests + request, int(row["anchor_position"]) + 1
            self._rows.append(_Row(place, number, turn, count, deep, context, state))
        self._requests += len(batch.requests)

    def wrong(self) -> list[WrongState]:
        """Return the rounds whose state does not follow, in the order in which they ran."""
        policy, file = self.policy, self.file
        frame = frame_of(policy.rule, policy.shape, largest_shape(file), step_time_of(file))
        turns: dict[str, dict[int, list[_Row]]] = {}
        for row in self._rows:
            turns.setdefault(row.place[0], {}).setdefault(row.turn, []).append(row)
        found = []
        for steps in turns.values():
            # every part of a run comes from an engine of its own
            controller = Controller(policy.control, frame, self._requests)
            for turn in sorted(steps):
                found += self._turn(controller, steps[turn])
        return found

    def _turn(self, controller: Controller, rows: list[_Row]) -> list[WrongState]:
        who = np.array([row.request for row in rows])
        load = Load(len(rows), float(np.mean([row.context for row in rows])))
        asked = controller.ask(who, load)
        wrong = []
        for row in rows:
            expected = controller.facts(row.request)
            found = {name: value for name, value in row.state.items() if name not in _EXTRA}
            if found != expected:
                wrong.append(WrongState(*row.place, json.dumps(expected), json.dumps(found)))
        accepted, drafted = (np.array([row[name] for row in rows]) for name in (3, 4))
        survival = np.array([value for row in rows for value in row.state.get("survivals", ())])
        controller.tell(who, Outcome(accepted, drafted, asked.length, survival))
        return wrong

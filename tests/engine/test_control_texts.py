"""States of control as text: what the host's rounds store, made for many lanes at once."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dflash.drafters.base import DraftShape
from dflash.engine.control import LaneControl, indices
from dflash.engine.states import state_texts
from dflash.policy.registry import parse_policy

POLICIES = [
    "match:control=window",
    "threshold:t=0.7,control=window",
    "match:control=ema",
    "match:control=heuristic",
    "match:control=schedule",
    "match:control=window,control.scope=stream",
    "match:control=ema,control.scope=stream",
]


def lane_control(policy: str) -> tuple[LaneControl, list[Any]]:
    control = LaneControl(parse_policy(policy), DraftShape(7, 2), 5, None)
    lanes: list[Any] = [SimpleNamespace(index=index, trunk=[0] * (index + 3)) for index in range(5)]
    for lane in lanes:
        control.open(lane)
    return control, lanes


@pytest.mark.parametrize("policy", POLICIES)
def test_texts_of_many_lanes_are_those_of_their_turns(policy: str) -> None:
    rng = np.random.default_rng(4)
    control, lanes = lane_control(policy)
    for _ in range(60):
        some = [lanes[index] for index in np.flatnonzero(rng.random(5) < 0.8)] or lanes[:1]
        who = indices(some)
        turns, asked = control.turns(some), control.ask(who, 9.0)
        assert state_texts(control.states(who)) == [turn.text for turn in turns]
        control.learn(who, asked, rng.integers(0, asked.length + 1), asked.length)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_state_that_json_cannot_hold_is_refused_either_way(policy: str, odd: float) -> None:
    control, lanes = lane_control(policy)
    who, state = indices(lanes), control._controller.scheduler.state
    names = [name for name, column in state.items() if name[0] != "_" and column.dtype.kind == "f"]

    def at_once() -> list[str]:
        return state_texts(control.states(who))

    def in_turn() -> list[str | None]:
        return [turn.text for turn in control.turns(lanes)]

    for name in names:
        held = state[name].copy()
        state[name][:] = odd
        for texts in (at_once, in_turn):
            with pytest.raises(ValueError, match="JSON compliant|finite"):
                texts()
        state[name][:] = held
    control.turns(lanes)
    assert all(json.loads(text) is not None for text in state_texts(control.states(who)))

"""Sweeps stand for the policies that somebody would write one by one; fronts leave out what is beaten."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.errors import DflashError
from dflash.policy.registry import parse_policy
from dflash.policy.shape import Shape
from dflash.replay.errors import BadSweep, SweepTooLarge
from dflash.replay.pareto import front
from dflash.replay.sweep import expand, suggested, unique


@pytest.mark.parametrize(
    ("sweep", "policies"),
    [
        ("match", ["match"]),
        ("match:length=1..3", ["match:length=1", "match:length=2", "match:length=3"]),
        ("threshold:t=0.5..0.7..0.1", ["threshold:t=0.5", "threshold:t=0.6", "threshold:t=0.7"]),
        ("match|greedy:length=2", ["match:length=2", "greedy:length=2"]),
        (
            "match:length=1|3,branches=1..2",
            [f"match:length={length},branches={width}" for length in (1, 3) for width in (1, 2)],
        ),
        ("match:control=static|window", ["match", "match:control=window"]),
        ("match: length = 1 | 2", ["match:length=1", "match:length=2"]),
    ],
)
def test_a_sweep_is_its_policies(sweep: str, policies: list[str]) -> None:
    assert expand(sweep) == [parse_policy(policy) for policy in policies]


@pytest.mark.parametrize(
    "text", ["1..", "..3", "3..1", "1..9..0", "1..2..-1", "a..b", "1..2..3..4", "1..inf"]
)
def test_ranges_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadSweep, match="low..high"):
        expand(f"match:length={text}")


@pytest.mark.parametrize("sweep", ["match:length=1|", "match:", "nothing:length=1..2", "match:width=1..2"])
def test_what_no_policy_may_say_no_sweep_may(sweep: str) -> None:
    with pytest.raises(DflashError):
        expand(sweep)


def test_a_sweep_too_large_to_wait_for_is_refused_before_it_is_made() -> None:
    with pytest.raises(SweepTooLarge):
        expand("threshold:t=0..1..0.0000000001")
    with pytest.raises(SweepTooLarge):
        expand("threshold:t=0.1..0.9..0.001,length=1..50")


def test_suggestions_are_every_shape_and_every_control_that_needs_nothing() -> None:
    found = [str(policy) for policy in suggested(parse_policy("match"), Shape(3, 2), lossy=False, lanes=4)]
    shapes = {f"match:length={length},branches={width}" for length in (1, 2, 3) for width in (1, 2)}
    assert shapes | {"match:length=0,branches=1"} <= set(found)
    assert {text for text in found if "control" in text} == {
        f"match:length=3,branches=2,control={name}" for name in ("ema", "heuristic", "window")
    }
    alone = suggested(parse_policy("match"), Shape(3, 2), lossy=False, lanes=1)
    assert {policy.control.name for policy in alone if policy.control.streams} == {
        "ema",
        "goodput",
        "heuristic",
        "window",
    }
    lossy = suggested(parse_policy("match"), Shape(1, 1), lossy=True, lanes=None)
    assert sum(policy.rule.name == "threshold" for policy in lossy) == 5
    assert unique(lossy) == lossy


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=30))
def test_the_front_is_what_nothing_beats(points: list[tuple[int, ...]]) -> None:
    costs = np.array(points, dtype=np.float64)
    expected = [
        not any(
            all(other[axis] <= point[axis] for axis in range(3)) and tuple(other) != tuple(point)
            for other in points
        )
        for point in points
    ]
    assert front(costs).tolist() == expected

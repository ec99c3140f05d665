"""Step-time profiles: what lies between the points of a grid, what is read, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dflash.draftfile.canonical import canonical_json
from dflash.policy.errors import BadStepTime
from dflash.policy.step_time import Grid, StepTime

AXES = ((0.0, 2.0, 8.0), (1.0, 4.0), (0.0, 1000.0))


def profile():
    rng = np.random.default_rng(0)
    draft = np.sort(rng.uniform(0, 100, 6)).tolist()
    verify = np.sort(rng.uniform(100, 900, 12)).tolist()
    return StepTime(Grid(AXES[:2], tuple(draft)), Grid(AXES, tuple(verify)))


def document():
    return profile().to_dict()


def test_points_are_met_and_between_them_times_are_linear():
    grid = profile().verify_us
    points = np.stack(np.meshgrid(*AXES, indexing="ij"), axis=-1).reshape(-1, 3)
    assert grid.at(*points.T) == pytest.approx(grid.us)
    for axis in range(3):
        low, high = np.array([1.0, 2.0, 300.0]), np.array([1.0, 2.0, 300.0])
        low[axis], high[axis] = AXES[axis][0], AXES[axis][1]
        for share in (0.25, 0.5):
            middle = low + share * (high - low)
            expected = (1 - share) * grid.at(*low) + share * grid.at(*high)
            assert grid.at(*middle) == pytest.approx(expected)


def test_beyond_the_grid_the_last_stretch_goes_on_but_never_below_zero():
    grid = Grid(((0.0, 2.0, 4.0),), (0.0, 10.0, 40.0))
    assert grid.at([6.0, 10.0]).tolist() == [70.0, 130.0]
    falling = Grid(((1.0, 2.0),), (10.0, 2.0))
    assert falling.at([3.0]).tolist() == [0.0]
    assert Grid(((1.0,),), (7.0,)).at([0.0, 1.0, 9.0]).tolist() == [7.0, 7.0, 7.0]


def test_a_profile_survives_json_and_the_header_where_numbers_are_text():
    assert StepTime.from_dict(json.loads(json.dumps(document()))) == profile()
    assert StepTime.from_dict(json.loads(canonical_json(document()))) == profile()


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda d: d.pop("draft_us"), "draft_us"),
        (lambda d: d["verify_us"].pop("us"), "verify_us"),
        (lambda d: d["verify_us"].update(us=[1.0]), "12 values"),
        (lambda d: d["draft_us"].update(length=[2, 1, 8]), "ascending"),
        (lambda d: d["draft_us"].update(length=[]), "ascending"),
        (lambda d: d["draft_us"].update(length=["a", 2, 8]), "numbers"),
        (lambda d: d["draft_us"].update(length=5), "numbers"),
        (lambda d: d["draft_us"]["us"].__setitem__(0, -1.0), "0 us"),
        (lambda d: d["draft_us"]["us"].__setitem__(0, float("nan")), "finite"),
    ],
)
def test_what_is_no_profile_is_refused(spoil, match):
    broken = document()
    spoil(broken)
    with pytest.raises(BadStepTime, match=match):
        StepTime.from_dict(broken)


def test_no_document_at_all_is_refused():
    for value in ([], None, 3):
        with pytest.raises(BadStepTime):
            StepTime.from_dict(value)

"""Step-time profiles: what lies between the points of a grid, what is read, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.draftfile.canonical import canonical_json
from dflash.policy.errors import BadStepTime
from dflash.policy.step_time import Grid, StepTime

AXES = ((0.0, 2.0, 8.0), (1.0, 4.0), (0.0, 1000.0))


def profile(draft_axes=AXES):
    rng = np.random.default_rng(0)
    sizes = [math.prod(map(len, axes)) for axes in (draft_axes, AXES)]
    draft, verify = (np.sort(rng.uniform(0, 900, size)).tolist() for size in sizes)
    return StepTime(Grid(draft_axes, tuple(draft)), Grid(AXES, tuple(verify)))


def document():
    return profile().to_dict()


@pytest.mark.parametrize("axes", [AXES, AXES[:2]], ids=["draft by batch", "draft of any batch"])
@pytest.mark.parametrize("batch", [1, 3, 9])
def test_a_profile_at_one_batch_says_the_same_for_all(axes, batch):
    whole = profile(axes)
    one = whole.for_batch(batch)
    lengths, nodes, contexts = np.meshgrid([0, 1, 5, 11], [0, 3, 9], [0, 700, 1500], indexing="ij")
    for others in (1, 2, 64):
        assert one.draft(lengths, 2, others) == pytest.approx(whole.draft(lengths, 2, batch))
        assert one.verify(nodes, others, contexts) == pytest.approx(whole.verify(nodes, batch, contexts))
    assert StepTime.from_dict(one.to_dict()) == one


def test_a_profile_of_any_batch_is_still_read_and_says_the_same_for_all():
    old = profile(AXES[:2])
    assert "batch" not in old.to_dict()["draft_us"]
    assert StepTime.from_dict(old.to_dict()) == old
    assert len(set(old.draft(1.5, 2.0, [1.0, 8.0, 64.0]).tolist())) == 1
    new = profile()
    assert StepTime.from_dict(new.to_dict()) == new
    assert new.draft(1.5, 2.0, [0.0, 500.0, 1000.0]) == pytest.approx(
        new.draft_us.at(1.5, 2.0, [0.0, 500.0, 1000.0])
    )
    assert len(set(new.draft(1.5, 2.0, [0.0, 500.0, 1000.0]).tolist())) == 3


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
        (lambda d: d["draft_us"].pop("batch"), "6 values"),
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


@st.composite
def verify_grids(draw):
    """Grids that may start anywhere, rise, fall and touch 0."""
    starts = (st.integers(0, 8), st.integers(0, 8), st.integers(0, 500))
    axes = []
    for start in starts:
        steps = draw(st.lists(st.integers(1, 64), max_size=2))
        axes.append(tuple(float(point) for point in np.cumsum([draw(start), *steps])))
    size = math.prod(map(len, axes))
    us = draw(st.lists(st.sampled_from([0.0, 1.0, 40.0, 900.0]), min_size=size, max_size=size))
    return Grid(tuple(axes), tuple(us))


@given(verify_grids(), st.data())
def test_no_profile_knows_a_round_that_takes_no_time(grid, data):
    drafting = Grid(((0.0,), (1.0,)), (0.0,))
    least = np.stack(np.meshgrid(*([0, 1, 3, 20], [1, 2, 9], [1, 200]), indexing="ij"), -1).reshape(-1, 3)
    inside = np.all(least <= [axis[-1] for axis in grid.axes], axis=1)
    try:
        read = StepTime(drafting, grid)
    except BadStepTime:
        # some point that can be asked for is the reason: nothing is refused for a place beyond the grid
        within = [np.maximum(low, (low, *axis)) for low, axis in zip((0, 1, 1), grid.axes, strict=True)]
        corners = np.meshgrid(*within, indexing="ij")
        assert grid.at(*corners).min() == 0.0
        return
    assert (grid.at(*least[inside].T) > 0).all()
    place = [data.draw(st.integers(low, high)) for low, high in ((0, 10**3), (1, 10**4), (1, 10**7))]
    assert read.draft(*place[:2], 1) + read.verify(*place) > 0
    assert (read.verify(*least[inside].T) == grid.at(*least[inside].T)).all()


@pytest.mark.parametrize("part", ["all", "nodes 0", "context 0"])
def test_a_profile_that_verifies_in_no_time_is_refused(part):
    broken = document()
    us = np.array(broken["verify_us"]["us"]).reshape([len(axis) for axis in AXES])
    us[{"all": ..., "nodes 0": 0, "context 0": (..., 0)}[part]] = 0.0
    broken["verify_us"]["us"] = us.ravel().tolist()
    if part == "context 0":
        # no round has an empty context
        assert StepTime.from_dict(broken).verify(0, 1, 1) > 0
        return
    with pytest.raises(BadStepTime, match="above 0 us to verify.*found.*nodes 0"):
        StepTime.from_dict(broken)

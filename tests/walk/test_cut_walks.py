"""Cuts in a walk: near-ties of what is cut away, and drafts that a cut does not give."""

from __future__ import annotations

import json

import draft_runs
import pytest
from click.testing import CliRunner
from live_rounds import hold

from dflash.cli.main import app
from dflash.draftfile.run import open_run
from dflash.policy.registry import parse_policy
from dflash.policy.step_time import Grid, StepTime
from dflash.replay.batch import columns_of
from dflash.replay.dense import dense_batches
from dflash.replay.walk import WALK_COLUMNS, marked
from dflash.replay.walks import walker

GIVEN = {"max_new_tokens": 20, "features": "none", "dense": True}


def near_ties(path, text, tolerance):
    """Request, anchor and kind of what a walk lists at a tolerance."""
    policy = parse_policy(text)
    (file,) = open_run([path]).files
    columns = {*columns_of([policy], file), *WALK_COLUMNS}
    (dense,) = dense_batches(file, columns)
    parts = dense.batch.parts(dense.batch.rounds(columns))
    walks = walker(policy, file).walk(dense, [marked(dense, part) for part in parts], tolerance, True)
    return [tie[1:] for found in walks for tie in found.near_ties]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", [(4, 1), (4, 2), (2, 1), (2, 3)], ids=str)
def test_a_cut_lists_the_near_ties_of_a_file_recorded_in_that_shape(
    tiny, tmp_path, drafter_named, shape, temperature
):
    length, branches = shape
    given = GIVEN | {"drafter": drafter_named("model:fair"), "temperature": temperature}
    asked = draft_runs.prompts(3)
    whole = draft_runs.record(tiny, asked, tmp_path / "whole.parquet", length=4, branches=3, **given)
    small = draft_runs.record(
        tiny, asked, tmp_path / "small.parquet", length=length, branches=branches, **given
    )
    policy = f"match:length={length},branches={branches}"
    listed = 0
    for tolerance in (0.1, 0.5, 2.0):
        expected = near_ties(small, "match", tolerance)
        assert near_ties(whole, policy, tolerance) == expected
        listed += sum(kind == "draft" for *_, kind in expected)
    assert listed > 0


SCORED = ["match:nodes=3", "match:survival=0.3", "match:confidence=0.4", "match:control=confidence-scheduled"]


@pytest.mark.parametrize("drafter", ["model:fair", "ngram", "suffix"])
def test_a_cut_by_confidence_may_be_near_only_where_confidences_are_computed(
    tiny, tmp_path, drafter_named, drafter
):
    """What `ngram` and `suffix` state are shares of occurrences, the same number live and dense."""
    drafter = drafter_named(drafter) if ":" in drafter else drafter
    profile = StepTime(
        Grid(((0.0, 4.0), (1.0,)), (10.0, 20.0)), Grid(((0.0, 9.0), (1.0,), (0.0,)), (50.0, 300.0))
    )
    given = GIVEN | {"drafter": drafter, "length": 4, "branches": 2, "step_time": profile}
    path = draft_runs.record(tiny, draft_runs.prompts(3), tmp_path / "run.parquet", **given)
    for policy in SCORED:
        kinds = {kind for *_, kind in near_ties(path, policy, 0.5)}
        assert ("cut" in kinds) == (drafter not in ("ngram", "suffix")), policy


@pytest.mark.parametrize(
    ("policy", "walk"),
    [("match", "path-exact"), ("match:length=2", "path-exact"), ("match:branches=1", "re-judge")],
)
def test_a_cut_that_is_no_live_draft_is_not_walked(tiny, tmp_path, policy, walk):
    """The first paths of a union are not the union of first paths."""
    path = draft_runs.record(
        tiny, draft_runs.prompts(2), tmp_path / "union.parquet", drafter="ngram+suffix", **GIVEN
    )
    words = ["replay", str(path), "--policy", policy, "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False, standalone_mode=False)
    (row,) = json.loads(result.stdout)["runs"][0]["policies"]
    assert row["exactness"] == walk


@pytest.mark.parametrize("policy", ["match:length=2", "match:length=0"])
def test_a_union_cut_in_length_walks_as_it_runs(tiny, tmp_path, drafter_named, policy):
    names = drafter_named("model:fair")
    rounds, _, accepted = hold(
        tiny, tmp_path, f"suffix+{names}", draft_runs.prompts(2), 0.8, [policy], max_new_tokens=16
    )
    assert rounds > 10
    assert accepted > 0

"""Replay == live: walks of one dense file against separate live runs, each with its own drafting calls."""

from __future__ import annotations

import draft_runs
import pytest
from live_rounds import GREEDY, LARGEST, SHAPES, hold, live_rounds, walked

from dflash.drafters.fan import Fan

DRAFTERS = ("ngram", "suffix", "self", "model:good", "model:fair", "model:bad")
SAMPLED = dict.fromkeys(DRAFTERS, SHAPES) | dict.fromkeys(
    ("ngram", "suffix"), (*SHAPES, "speculative:branches=2", "speculative")
)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_walks_are_the_live_runs(tiny, tmp_path, drafter_named, drafter):
    policies = GREEDY[:3] + GREEDY[4:6]
    asked = draft_runs.prompts(2)
    rounds, _, accepted = hold(
        tiny, tmp_path, drafter_named(drafter), asked, 0.0, policies, max_new_tokens=18
    )
    assert rounds > 30
    assert accepted > 0 or drafter == "model:bad"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_sampled_walks_are_the_live_runs(tiny, tmp_path, drafter_named, drafter):
    policies = SAMPLED[drafter][:3] + SAMPLED[drafter][4:]
    asked = draft_runs.prompts(2)
    rounds, _, accepted = hold(
        tiny, tmp_path, drafter_named(drafter), asked, 0.8, policies, max_new_tokens=18
    )
    assert rounds > 30
    assert accepted > 0 or drafter == "model:bad"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_trees_that_fork_below_the_anchor_walk_as_they_run(tiny, tmp_path, drafter_named, temperature):
    policies = ("match:length=2", "match:branches=3", "match:length=3,branches=2", "match:branches=1")
    given = {"fan": Fan((2, 1, 2)), "branches": 4, "max_new_tokens": 18}
    rounds, _, accepted = hold(
        tiny,
        tmp_path,
        drafter_named("model:fair"),
        draft_runs.prompts(2),
        temperature,
        policies,
        **given,
    )
    assert rounds > 30
    assert accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "temperature"),
    [
        *((drafter, 0.0) for drafter in ("ngram", "suffix", "self", "model:fair")),
        ("model:fair", 0.8),
    ],
)
def test_fifty_requests_walk_as_they_run(tiny, tmp_path, drafter_named, drafter, temperature):
    policies = GREEDY[:5] if temperature == 0 else SAMPLED[drafter]
    asked, given = draft_runs.prompts(50), {"max_new_tokens": 40, "lanes": 25}
    rounds, ties, _ = hold(tiny, tmp_path, drafter_named(drafter), asked, temperature, policies, **given)
    assert ties < 0.005 * rounds


@pytest.mark.parametrize("drafter", ["ngram", "model:fair"])
def test_a_lossy_walk_is_live_up_to_and_including_the_round_that_diverges(
    tiny, tmp_path, drafter_named, drafter
):
    asked = draft_runs.prompts(4)
    common = LARGEST | {"drafter": drafter_named(drafter), "temperature": 0.8, "max_new_tokens": 24}
    dense = draft_runs.record(tiny, asked, tmp_path / "dense.parquet", dense=True, **common)
    policy = "threshold:t=0.7"
    path = draft_runs.record(tiny, asked, tmp_path / "live.parquet", policy=policy, **common)
    walk, live = walked(dense, policy), live_rounds(path, policy, 0.8)
    mine, theirs = (draft_runs.trunks(draft_runs.rows(file)) for file in (dense, path))
    for name, rounds in walk.rounds.items():
        if name in walk.tie:
            continue
        same = live[name][: len(rounds)]
        assert [item[:2] for item in rounds] == [item[:2] for item in same]
        if name not in walk.left:
            assert mine[name] == theirs[name]
            continue
        # the texts part within that round, not before it
        first = next(
            i for i, pair in enumerate(zip(mine[name], theirs[name], strict=False)) if pair[0] != pair[1]
        )
        assert walk.left[name] == rounds[-1].anchor < first <= rounds[-1].anchor + rounds[-1].accepted + 1
    if drafter == "ngram":
        assert walk.left

"""Cuts by the drafter's confidence, by a node budget and below the first positions: live as in the walk."""

from __future__ import annotations

import draft_runs
import numpy as np
import pytest
from live_rounds import LARGEST, hold

from dflash.drafters.base import CUTS
from dflash.drafters.fan import Fan
from dflash.drafters.ngram import NgramDrafter
from dflash.errors import UsageError
from dflash.policy.rounds import Rounds
from dflash.policy.shape import Shape

SCORED = ("match:nodes=4", "match:confidence=0.02", "match:length=4,survival=0.001,nodes=6")
EVERY = (*SCORED, "match:first_positions=1", "match:branches=2,first_positions=0")
COUNTED = ("node_token", "node_confidence", "draft_lse", "draft_topk_token", "draft_topk_logit")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_drafting_model_is_cut_live_as_in_the_walk(tiny, drafter_named, tmp_path, temperature):
    drafter, fan = drafter_named("model:fair"), Fan((3, 2))
    shape = {"length": 4, "branches": 6, "fan": fan, "max_new_tokens": 16}
    prompts = draft_runs.prompts(2)
    rounds, _, accepted = hold(tiny, tmp_path, drafter, prompts, temperature, EVERY, **shape)
    assert rounds > 20
    assert accepted > 0
    nodes = [
        sum(len(row["node_token"]) for row in draft_runs.rows(tmp_path / f"live{number}.parquet"))
        for number in range(1 + len(EVERY))
    ]
    # every cut leaves something out
    assert all(cut < nodes[0] for cut in nodes[1:])


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "ngram+suffix"])
def test_frequencies_cut_live_as_in_the_walk(tiny, tmp_path, drafter):
    policies = ("match:confidence=0.6", "match:length=4,survival=0.4,nodes=3")
    given = {"max_new_tokens": 16}
    rounds, _, _ = hold(tiny, tmp_path, drafter, draft_runs.prompts(2), 0.0, policies, **given)
    assert rounds > 20


def test_live_trees_are_within_the_cut_and_a_second_cut_changes_nothing(tiny, drafter_named, tmp_path):
    given = LARGEST | {"drafter": drafter_named("model:fair"), "temperature": 0.8, "max_new_tokens": 16}
    shape = Shape(length=4, survival=0.001, nodes=6)
    policy = "match:length=4,survival=0.001,nodes=6"
    path = draft_runs.record(tiny, draft_runs.prompts(1), tmp_path / "a.parquet", policy=policy, **given)
    live = [row for row in draft_runs.rows(path) if row["kind"] == 0]
    rows = [{name: np.array(row[name]) for name in ("node_parent", *COUNTED)} for row in live]
    for row, whole in zip(rows, live, strict=True):
        row["node_confidence"] = np.full(len(row["node_token"]), np.nan, dtype=np.float32)
        row["draft_lse"] = np.array(whole["draft_lse"], dtype=np.float32)
        row["anchor_position"] = whole["anchor_position"]
    rounds = Rounds.from_rows(rows, [(1, 2)] * len(rows))
    assert max(np.diff(rounds.node_offsets)) <= 6
    assert len(shape.cut(rounds).node_parent) == len(rounds.node_parent) > 0


@pytest.mark.parametrize("cut", ["confidence=0.5", "survival=0.5", "nodes=2"])
def test_a_cut_by_what_the_drafter_does_not_state_is_refused_before_decoding(
    tiny, tmp_path, monkeypatch, cut
):
    silent = NgramDrafter().header() | {"cuts": [*CUTS]}
    monkeypatch.setattr(NgramDrafter, "header", lambda drafter: silent)
    with pytest.raises(UsageError, match="ngram states no confidence"):
        draft_runs.record(tiny, ["One"], tmp_path / "a.parquet", drafter="ngram", policy=f"match:{cut}")
    assert not list(tmp_path.iterdir())

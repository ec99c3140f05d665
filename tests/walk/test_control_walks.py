"""Replay == live under controls that change the shape from round to round, whose state follows the walk."""

from __future__ import annotations

import json
from pathlib import Path

import draft_runs
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from live_rounds import hold

from dflash.cli.main import run
from dflash.draftfile.run import open_run
from dflash.engine.control import LaneControl
from dflash.errors import UsageError
from dflash.policy.errors import StepTimeMissing, ThresholdMissing
from dflash.policy.registry import parse_policy
from dflash.policy.step_time import Grid, StepTime
from dflash.replay.run import replay

STEP_TIME = StepTime(
    Grid(((0.0, 8.0), (1.0,)), (0.0, 100.0)),
    Grid(((0.0, 8.0), (1.0, 8.0), (0.0,)), (100.0, 200.0, 150.0, 900.0)),
)
GIVEN = {"length": 6, "branches": 2, "lanes": 2, "max_new_tokens": 20, "step_time": STEP_TIME}
WINDOW = "match:length=3,branches=1,control=window,control.after=3,control.every=3,control.low=0.5"
OWN = (
    WINDOW,
    "match:length=3,control=ema,control.after=2,control.every=1,control.alpha=0.6,control.candidates=1/2/3/4",
    "match:length=2,control=heuristic,control.after=2",
)
TIED = (
    "match:length=2,control=heuristic,control.after=2,control.scope=stream",
    "match:length=3,control=goodput,control.after=2",
    "match:control=schedule,control.table=1:2/2:4",
)


MOVING = "threshold:t=0.6,length=4,branches=1,control=window,control.after=2,control.every=2,control.dt=0.2"


def states(path):
    """The recorded control states of all live rounds."""
    return [json.loads(row["control_state"]) for row in draft_runs.rows(path) if row["kind"] == 0]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policies", [OWN, TIED], ids=["own", "tied"])
def test_walks_go_where_live_controls_went(tiny, tmp_path, policies, temperature):
    asked = draft_runs.prompts(3)
    rounds, _, accepted = hold(tiny, tmp_path, "suffix", asked, temperature, policies, **GIVEN)
    assert rounds > 100
    assert accepted > 0
    for number in range(1, 1 + len(policies)):
        lengths = {state["length"] for state in states(tmp_path / f"live{number}.parquet")}
        assert len(lengths) > 1


def test_drafts_are_admitted_by_confidence_alike(tiny, tmp_path, drafter_named):
    slow = StepTime(
        STEP_TIME.draft_us, Grid(((0.0, 1.0, 2.0, 8.0), (1.0,), (0.0,)), (100.0, 130.0, 200.0, 900.0))
    )
    given = GIVEN | {"step_time": slow}
    policy = "match:branches=1,control=confidence-scheduled"
    hold(tiny, tmp_path, drafter_named("model:fair"), draft_runs.prompts(2), 0.8, (policy,), **given)
    rows = [row for row in draft_runs.rows(tmp_path / "live1.parquet") if row["kind"] == 0]
    kept = [len(row["node_token"]) for row in rows]
    drafted = [len(json.loads(row["control_state"])["survivals"]) for row in rows]
    assert set(drafted) == {GIVEN["length"]}
    assert min(kept) < max(kept)
    for row in rows:
        state = json.loads(row["control_state"])
        assert len(row["node_token"]) == sum(value >= state["survival"] for value in state["survivals"])


def test_a_smaller_recording_clips_the_walk_and_counts(tiny, tmp_path):
    given = GIVEN | {"length": 3, "branches": 1, "drafter": "self"}
    dense = draft_runs.record(tiny, draft_runs.prompts(2), tmp_path / "dense.parquet", dense=True, **given)
    policy = "match:control=heuristic,control.after=1"
    (row,) = replay(open_run([dense]).files, [parse_policy(policy)]).rows
    path = draft_runs.record(
        tiny,
        draft_runs.prompts(2),
        tmp_path / "live.parquet",
        policy=policy,
        **given,
    )
    assert row.walked.clipped == sum(state["clipped"] for state in states(path)) > 0
    assert row.exactness == "path-exact"


def test_walks_of_tied_requests_say_that_they_are_simulations(tiny, tmp_path, capsys):
    dense = draft_runs.record(tiny, draft_runs.prompts(2), tmp_path / "dense.parquet", dense=True, **GIVEN)
    files, asked = open_run([dense]).files, [parse_policy(text) for text in (*OWN, *TIED)]
    rows = replay(files, asked).rows
    words = ["path-exact"] * 3 + ["simulation"] * 3
    assert [row.exactness for row in rows] == words
    assert all("simulation" in " ".join(row.remarks) for row in rows[3:])
    assert [row.walk for row in rows] == words == [row.walk for row in replay(files, asked, dense=False).rows]
    assert run(["replay", str(dense), "--rejudge", "--policy", OWN[0], "--policy", TIED[0]]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("simulation") == 2
    assert "walk: what a closed-loop replay" in told
    assert run(["replay", str(dense), "--json", "--policy", TIED[0]]) == 0
    document = json.loads(capsys.readouterr().out)
    schema = Path(__file__).parents[2] / "schemas" / "replay_v1.schema.json"
    Draft202012Validator(json.loads(schema.read_text("utf-8"))).validate(document)


@pytest.mark.parametrize("policy", [WINDOW, TIED[0], TIED[1], MOVING])
def test_recorded_states_decide_and_follow_from_the_rounds(tiny, tmp_path, policy, monkeypatch):
    def record(name):
        return draft_runs.record(
            tiny,
            draft_runs.prompts(2),
            tmp_path / name,
            policy=policy,
            temperature=0.8,
            dense=name == "good.parquet",
            **GIVEN | {"drafter": "suffix"},
        )

    def check(path):
        return replay(open_run([path]).files, check=True, dense=False)

    good = record("good.parquet")
    result = check(good)
    assert result.check.failures == {}
    (row,) = result.rows
    assert (row.exactness, row.changed_rounds) == ("live", 0)
    kept = [len(live["accepted_nodes"]) + 1 for live in draft_runs.rows(good) if live["kind"] == 0]
    assert row.tau == pytest.approx(sum(kept) / len(kept))

    honest = LaneControl._state

    def later(self, lane):
        state = honest(self, lane)
        return state | {"known": state["known"] + (lane.rounds == 4)}

    monkeypatch.setattr(LaneControl, "_state", later)
    failures = check(record("bad.parquet")).check.failures
    assert set(failures) == {"control_state"}
    assert failures["control_state"] >= 1


def test_the_threshold_moves_live_as_its_states_say(tiny, tmp_path):
    path = draft_runs.record(
        tiny,
        draft_runs.prompts(3),
        tmp_path / "run.parquet",
        policy=MOVING,
        temperature=1.0,
        **GIVEN | {"drafter": "suffix"},
    )
    rows = [row for row in draft_runs.rows(path) if row["kind"] == 0]
    moved = {json.loads(row["control_state"])["t"] for row in rows}
    assert len(moved) > 1
    for row in rows:
        lowest = np.float32(np.log(json.loads(row["control_state"])["t"]))
        passed = [logp >= lowest for logp in row["node_logp"]]
        assert len(row["accepted_nodes"]) == [*passed, False].index(False)


def test_what_a_control_lacks_is_refused_before_a_model_is_needed(tmp_path):
    def settings(policy, **given):
        return draft_runs.session(None, tmp_path / "run.parquet", policy=policy, **given)

    with pytest.raises(StepTimeMissing, match="--cost"):
        settings("match:control=goodput")
    with pytest.raises(ThresholdMissing, match="dt"):
        settings("match:control=window,control.dt=0.1")
    for tied in ("ema,control.scope=stream", "schedule"):
        with pytest.raises(UsageError, match="ties requests together"):
            settings(f"match:control={tied}", resume=True)

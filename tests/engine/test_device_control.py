"""Adaptive control of rounds on the device: the rows, and the states, of rounds through the host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest

from dflash.cli.main import run as run_command
from dflash.draftfile.reader import open_draft_file
from dflash.engine.device.adaptive import AdaptiveEngine
from dflash.engine.device.ladder import rung_lengths
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.errors import UsageError
from dflash.policy.step_time import Grid, StepTime

pytestmark = pytest.mark.usefixtures("by_reference")

# drafts of 2 pay for one request, none pay for two
PROFILE = StepTime(
    Grid(((0.0, 4.0), (1.0, 3.0)), (0.0, 0.0, 40.0, 60.0)),
    Grid(((0.0, 8.0), (1.0, 3.0), (10.0, 60.0)), (100.0, 120.0, 200.0, 220.0, 110.0, 130.0, 900.0, 950.0)),
)
CONTROLS = {
    "window": "match:control=window,control.every=2,control.after=2,control.window=5,control.low=0.4",
    "window, at once": "match:control=window,control.every=1,control.after=1,control.lag=0,control.high=0.5",
    "ema": "match:control=ema,control.candidates=0/1/3,control.after=2,control.every=1,control.down=0.3",
    "heuristic": "match:control=heuristic,control.after=1",
    "heuristic, a round late": "match:length=2,control=heuristic,control.after=1,control.lag=1",
    "goodput": "match:control=goodput,control.shortest=0,control.after=2,control.weight=0.5,control.gain=0,"
    "control.every=3,control.again=4,control.rarely=8",
    "schedule": "match:control=schedule,control.table=1:4/2:1/3:0",
}


def recorded(target: Any, output: Path, asked: list[Any], **given: Any) -> tuple[Any, Any]:
    """A recording's rows, and its engine."""
    chosen = {"draft_impl": "native", "target_impl": "native", "draft_temperature": 4.0, "length": 4}
    run = draft_runs.session(target, output, **(chosen | given))
    entries = with_ids(text_prompt(one) if isinstance(one, str) else one for one in asked)
    run.record(run.conversations(entries, check=True))
    return draft_runs.rows(output), run.engine


def both(target: Any, tmp_path: Path, asked: list[Any], **given: Any) -> Any:
    """The rows of one recording through the host and of one on the device, and the device's engine."""
    host, engine = recorded(target, tmp_path / "host.parquet", asked, rounds="host", **given)
    assert not isinstance(engine, AdaptiveEngine)
    device, engine = recorded(target, tmp_path / "device.parquet", asked, rounds="device", **given)
    assert isinstance(engine, AdaptiveEngine)
    return host, device, engine


def lengths(rows: list[dict[str, Any]]) -> set[int]:
    """Lengths that a control has asked for."""
    return {json.loads(row["control_state"])["length"] for row in rows if row["control_state"]}


@pytest.fixture
def steady(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rounds of one shape are queued in chains soon, so that some go back, or never."""
    rounds = {"soon": 1, "never": 10**6}[request.param]
    monkeypatch.setattr("dflash.engine.device.adaptive.STEADY", rounds)
    return str(request.param)


@pytest.mark.parametrize(
    ("control", "temperature", "steady"),
    [
        ("window", 0.8, "soon"),
        ("window", 0.0, "never"),
        ("window, at once", 0.8, "soon"),
        ("ema", 0.8, "never"),
        ("ema", 0.0, "soon"),
        ("heuristic", 0.8, "never"),
        ("heuristic, a round late", 0.8, "soon"),
        ("goodput", 0.8, "soon"),
        ("goodput", 0.0, "never"),
        ("schedule", 0.8, "soon"),
    ],
    indirect=["steady"],
)
def test_one_lane_is_the_same(
    target: Any, drafter: str, tmp_path: Path, control: str, temperature: float, steady: str
) -> None:
    host, device, engine = both(
        target, tmp_path, draft_runs.prompts(3), drafter=drafter, branches=2, temperature=temperature,
        max_new_tokens=25, policy=CONTROLS[control], step_time=PROFILE,
    )  # fmt: skip
    assert len(lengths(host)) > 1 or control == "schedule"
    device_runs.same_rows(device, host)
    assert run_command(["replay", str(tmp_path / "device.parquet"), "--check"]) == 0
    if steady == "never" or control == "goodput":
        assert engine.wasted_rounds == 0
    if (control, steady) == ("ema", "soon"):
        assert engine.wasted_rounds > 0


def test_rounds_on_the_device_take_as_long_for_any_number_of_requests(
    target: Any, drafter: str, tmp_path: Path
) -> None:
    """So the control reads step times at all lanes, and replay, told where rounds ran, finds its states."""
    found = []
    for name, step_time in (("all", PROFILE), ("lanes", PROFILE.for_batch(3))):
        output = tmp_path / f"{name}.parquet"
        run = draft_runs.session(
            target, output, drafter=drafter, draft_impl="native", target_impl="native", length=4, branches=1,
            lanes=3, max_new_tokens=25, policy=CONTROLS["goodput"], step_time=step_time, rounds="device",
        )  # fmt: skip
        run.record(run.conversations(with_ids(map(text_prompt, draft_runs.prompts(4))), check=True))
        engine = open_draft_file(output).header.raw["engine"]
        assert StepTime.from_dict(engine["step_time_profile"]) == step_time
        assert engine["rounds"] == "device"
        assert run_command(["replay", str(output), "--check"]) == 0
        found.append(draft_runs.rows(output))
    # lanes run dry, one after the other
    assert {row["batch_size"] for row in found[0] if row["kind"] == 0} >= {1, 3}
    device_runs.same_rows(*found, atol=0.0, rtol=0.0)


@pytest.mark.parametrize(
    ("control", "temperature", "steady"),
    [
        ("window", 0.0, "soon"),
        ("window, at once", 0.8, "never"),
        ("ema", 0.8, "soon"),
        ("heuristic, a round late", 0.0, "never"),
    ],
    indirect=["steady"],
)
def test_requests_of_many_lanes_are_the_same(
    target: Any, drafter: str, tmp_path: Path, control: str, temperature: float, steady: str
) -> None:
    """Ragged ones, of temperatures of their own, more of them than lanes."""
    asked = [text_prompt(prompt) for prompt in draft_runs.prompts(6)]
    asked[1] = replace(asked[1], max_new_tokens=4, temperature=0.4)
    asked[4] = replace(asked[4], stop=("gggg",), temperature=0.0)
    host, device, _ = both(
        replace(target, eos=frozenset({258, 125})), tmp_path, asked, drafter=drafter, branches=2, lanes=3,
        temperature=temperature, max_new_tokens=25, policy=CONTROLS[control], step_time=PROFILE,
    )  # fmt: skip
    device_runs.same_rows(device, host)
    assert run_command(["replay", str(tmp_path / "device.parquet"), "--check"]) == 0


@pytest.mark.parametrize(
    ("policy", "temperature", "steady"),
    [
        (CONTROLS["goodput"], 0.0, "soon"),
        (CONTROLS["goodput"], 0.8, "never"),
        (CONTROLS["goodput"] + ",control.scope=stream", 0.8, "never"),
        (CONTROLS["schedule"], 0.8, "soon"),
        (CONTROLS["window"] + ",control.scope=stream", 0.8, "soon"),
        (CONTROLS["heuristic"] + ",control.scope=stream", 0.0, "never"),
    ],
    indirect=["steady"],
)
def test_steps_of_coupled_requests_check(
    target: Any, drafter: str, tmp_path: Path, policy: str, temperature: float, steady: str
) -> None:
    """Which requests share a step depends on the engine; states follow from the steps as they were."""
    asked = [text_prompt(prompt) for prompt in draft_runs.prompts(7)]
    asked[2] = replace(asked[2], max_new_tokens=5)
    host, device, _ = both(
        replace(target, eos=frozenset({258, 125})), tmp_path, asked, drafter=drafter, branches=2, lanes=3,
        temperature=temperature, max_new_tokens=19, policy=policy, step_time=PROFILE,
    )  # fmt: skip
    assert draft_runs.trunks(device) == draft_runs.trunks(host)
    assert len(lengths(device)) > 1
    assert run_command(["replay", str(tmp_path / "device.parquet"), "--check"]) == 0
    steps = {row["step"] for row in device if row["kind"] == 0}
    assert steps == set(range(len(steps)))


def test_a_stream_of_one_lane_is_the_same(target: Any, drafter: str, tmp_path: Path) -> None:
    policy = "match:control=heuristic,control.scope=stream,control.after=1"
    host, device, engine = both(
        replace(target, eos=frozenset({258, 125})), tmp_path, draft_runs.prompts(6), drafter=drafter,
        branches=1, max_new_tokens=17, policy=policy,
    )  # fmt: skip
    device_runs.same_rows(device, host)
    assert engine.wasted_rounds == 0


def test_drafting_resumes_on_a_whole_context(
    target: Any, drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After more plain rounds than the ring of taps holds, in a request that others leave alone."""
    monkeypatch.setattr("dflash.engine.device.ladder.RING", 4)
    monkeypatch.setattr("dflash.engine.device.adaptive.STEADY", 4)
    asked = [text_prompt(prompt) for prompt in draft_runs.prompts(5)]
    asked[1:] = [replace(prompt, max_new_tokens=7) for prompt in asked[1:]]
    given = {"drafter": drafter, "branches": 1, "lanes": 2, "max_new_tokens": 40, "dense": True}
    _, device, _ = both(
        target, tmp_path, asked, policy="match:control=schedule,control.table=1:4/2:0", **given
    )  # fmt: skip
    static, _ = recorded(target, tmp_path / "static.parquet", asked, rounds="host", policy="match", **given)
    assert lengths(device) == {0, 4}
    whole = {(row["request_id"], row["anchor_position"]): row for row in static if row["kind"] == 1}
    for row in device:
        twin = whole.get((row["request_id"], row["anchor_position"]))
        if row["kind"] in (0, 1) and row["draft_length"] == 4 and twin and twin["draft_length"] == 4:
            assert row["node_token"] == twin["node_token"]
    assert run_command(["replay", str(tmp_path / "device.parquet"), "--check"]) == 0


def test_walks_reproduce_what_the_control_did(target: Any, drafter: str, tmp_path: Path) -> None:
    policy = CONTROLS["window"]
    recorded(
        target, tmp_path / "run.parquet", draft_runs.prompts(3), drafter=drafter, branches=2, lanes=2,
        max_new_tokens=30, policy=policy, dense=True, rounds="device",
    )  # fmt: skip
    for words in (["--check"], ["--policy", policy]):
        assert run_command(["replay", str(tmp_path / "run.parquet"), *words]) == 0


REFUSED = {
    "cuts trees after": {"policy": "match:control=confidence-scheduled"},
    "all that can be drafted": {"policy": "match:control=window", "branches": 3, "draft_top_k": 3},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_controls_go_through_the_host_and_it_is_said(
    target: Any, drafter: str, tmp_path: Path, reason: str
) -> None:
    shared = {"drafter": drafter, "draft_impl": "native", "target_impl": "native", "length": 2, "branches": 1}
    given = shared | {"temperature": 0.8, "step_time": PROFILE} | REFUSED[reason]
    run = draft_runs.session(target, tmp_path / "run.parquet", **given)
    assert not isinstance(run.engine, AdaptiveEngine)
    assert reason in run.rounds_remark
    with pytest.raises(UsageError, match=reason):
        draft_runs.session(target, tmp_path / "run.parquet", **given | {"rounds": "device"})


def test_rungs_are_none_those_of_full_rows_and_all() -> None:
    assert [rung_lengths(longest) for longest in (0, 1, 2, 7, 8)] == [
        [0], [0, 1], [0, 1, 2], [0, 1, 3, 7], [0, 1, 3, 7, 8],
    ]  # fmt: skip

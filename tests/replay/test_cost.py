"""The cost model finds the law of a machine in its recordings, says what it cannot know, prices rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timed import CACHED, DRAFT, FORWARD, POSITION, ROW, clocked, machine
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.draftfile.reader import DraftFile, open_draft_file
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.policy.step_time import StepTime
from dflash.replay.cost import CostModel, fit_cost, load_cost
from dflash.replay.cost_source import cost_of
from dflash.replay.details import Wanted
from dflash.replay.errors import CostMissing, CostUnreadable, NoTimings, SeveralCosts
from dflash.replay.monotone import non_negative
from dflash.replay.run import replay
from dflash.replay.timings import Steps, read_steps


def recording(folder: Path, length: int, **changes: Any) -> DraftFile:
    settings = {"edit": clocked(), "requests": 6} | changes
    recorder = Recorder(proposal=Proposal.DETERMINISTIC, temperature=0.0, length=length, **settings)
    path = recorder.write(folder / f"{length}-{recorder.branches}.parquet", run_id=f"run{length}")
    return open_draft_file(path)


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> list[DraftFile]:
    """Recordings at four lengths, 0 among them."""
    folder = tmp_path_factory.mktemp("cost")
    return [recording(folder, length) for length in (0, 1, 3, 5)]


def test_a_fit_finds_the_law_of_the_machine(lengths: list[DraftFile]) -> None:
    model = fit_cost(lengths)
    assert model.assumptions == ("draft time does not depend on the branches: only 1 was recorded",)
    truth = machine()
    for nodes in (0, 2, 5, 9):
        assert model.step_time.draft(nodes, 1, 1) == pytest.approx(truth.draft(nodes, 1, 1), rel=1e-3)
        for context in (4, 20):
            found = model.step_time.verify(nodes, 1, context)
            assert found == pytest.approx(truth.verify(nodes, 1, context), rel=1e-3)
    assert all(fit.residual_us < 0.5 for fit in model.fits)


def test_noise_and_stalls_do_not_carry_a_fit_away(tmp_path: Path) -> None:
    files = [
        recording(tmp_path, length, edit=clocked(noise=0.1, every=9), requests=16) for length in (0, 1, 3, 5)
    ]
    model = fit_cost(files)
    for nodes in (0, 5):
        found = float(model.step_time.verify(nodes, 1, 12))
        assert found == pytest.approx(FORWARD + ROW * (nodes + 1) + CACHED * 12, rel=0.06)
    draft, verify = model.fits
    assert draft.share is not None
    assert 0.02 < draft.share < 0.2
    assert sum(row.steps for row in verify.residuals) == verify.steps == len(read_steps(files))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 60))
def test_a_fit_never_falls_and_no_weighting_of_terms_fits_better(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    terms = np.column_stack((np.ones(size), random.integers(0, 9, size), random.uniform(0, 50, size)))
    target = random.uniform(1, 100, size)
    found = non_negative(terms, target)
    assert (found >= 0).all()
    error = np.abs(target - terms @ found).sum()
    for _ in range(200):
        other = np.maximum(0.0, found * random.uniform(0.7, 1.3, 3) + random.normal(0, 0.1, 3))
        assert error <= np.abs(target - terms @ other).sum() * 1.02 + 1e-6


def test_what_was_never_recorded_is_assumed_in_words(tmp_path: Path) -> None:
    three = recording(tmp_path, 3)
    model = fit_cost([three])
    assert model.assumptions == (
        # the recorder's family, `self`, is not one that runs a forward a position
        "draft time does not depend on the length: only length 3 was recorded",
        "draft time does not depend on the branches: only 1 was recorded",
        "verifying takes as long for any number of nodes: only 3 was recorded",
    )
    wide = fit_cost([three, recording(tmp_path, 5)], batch=8)
    assert any("extrapolated from 3 nodes" in text for text in wide.assumptions)
    assert any("batch 8" in text and "batches of 1" in text for text in wide.assumptions)


def test_rows_of_one_forward_are_one_observation(tmp_path: Path) -> None:
    def shared(rows: list[dict[str, Any]]) -> None:
        clocked()(rows)
        for row in rows:
            if row["kind"] == 0:
                row |= {"step": row["round"], "batch_size": 4, "round_us": 1000.0 + row["round"]}

    file = recording(tmp_path, 2, edit=shared, requests=4, max_new_tokens=9)
    steps = read_steps([file])
    rounds = [row["round"] for row in pq.read_table(file.path).to_pylist() if row["kind"] == 0]
    assert len(steps) == max(rounds) + 1 < len(rounds)
    assert (steps.batch == 4).all()
    assert steps.verify_us + steps.draft_us == pytest.approx(1000.0 + np.arange(len(steps)))


def test_rounds_without_times_are_counted_and_a_file_without_any_is_refused(tmp_path: Path) -> None:
    clock = clocked()

    def half(rows: list[dict[str, Any]]) -> None:
        clock(rows)
        for row in rows[::2]:
            row["draft_us"] = None

    file = recording(tmp_path, 2, edit=half)
    steps = read_steps([file])
    live = [row for row in pq.read_table(file.path).to_pylist() if row["kind"] == 0]
    assert steps.untimed == sum(row["draft_us"] is None for row in live)
    assert len(steps) == len(live) - steps.untimed
    with pytest.raises(NoTimings):
        read_steps([recording(tmp_path, 4, edit=lambda rows: None)])


def test_a_profile_is_read_back_and_nothing_else_is(tmp_path: Path, lengths: list[DraftFile]) -> None:
    place = tmp_path / "profile.json"
    place.write_text(json.dumps(machine().to_dict()))
    model = load_cost(place, batch=2.0)
    assert (model.step_time, model.source, model.batch) == (machine(), str(place), 2.0)
    refused = {
        "": "an empty file",
        " \n": "an empty file",
        "{": "something else",
        "\udcff": "something else",
        "[]": "a list",
        "null": "found null",
        "{}": "an object without draft_us",
        '{"draft_us": 1}': "an object without verify_us",
        '{"draft_us": 1, "verify_us": 1}': "which this is not",
    }
    for text, told in refused.items():
        place.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(CostUnreadable, match=f"profile.json.*{told}") as error:
            load_cost(place)
        assert "None" not in str(error.value)
    place.unlink()
    with pytest.raises(CostMissing, match=r"profile.json does not exist; [^.]*\.$"):
        load_cost(place)
    paths = [file.path for file in lengths]
    assert cost_of((), paths, None) == fit_cost(lengths)
    with pytest.raises(SeveralCosts):
        cost_of((), [*paths, place], None)


@pytest.mark.parametrize(("lanes", "batch"), [(1, 1.0), (4, 4.0), (64, 6.0)])
def test_a_profile_prices_rounds_at_the_batch_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lanes: int, batch: float
) -> None:
    """Six requests fill no more than six lanes."""
    place, file = tmp_path / "profile.json", recording(tmp_path, 2, lanes=lanes)
    place.write_text(json.dumps(machine().to_dict()))
    assert cost_of((file,), [place], None).batch == batch
    assert cost_of((file,), [place], 3.0).batch == 3.0
    assert run(["replay", str(file.path), "--cost", str(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["cost"]["batch"] == batch


def test_the_documented_profile_is_one() -> None:
    text = (Path(__file__).parents[2] / "schemas" / "README.md").read_text(encoding="utf-8")
    profile = StepTime.from_dict(json.loads(text.split("```json")[1].split("```")[0]))
    assert profile.draft(2.5, 1, 8) == 170.0
    assert profile.verify(15, 8, 4096) == 38300.0
    assert profile.verify(0, 1, 8192) == 13000.0


@pytest.mark.parametrize("branches", [1, 2])
def test_the_speed_of_a_policy_is_that_of_its_rounds_one_by_one(tmp_path: Path, branches: int) -> None:
    file = recording(tmp_path, 4, branches=branches)
    cost = CostModel(machine(), "law", 1.0, (), (), 0)
    policies = [parse_policy(text) for text in ("match", "match:length=2", "match:length=0")]
    rows = replay([file], policies, wanted=Wanted(cost=cost)).rows
    for row, longest in zip(rows, (4, 2, 0), strict=True):
        tokens = us = plain = verified = 0.0
        for live in pq.read_table(file.path).to_pylist():
            if live["kind"] != 0:
                continue
            nodes, accepted = longest * branches, min(longest, len(live["accepted_nodes"]))
            context = live["anchor_position"] + 1
            tokens += accepted + 1
            drafting = DRAFT + POSITION * longest if longest else 0.0
            us += drafting + FORWARD + ROW * (nodes + 1) + CACHED * context
            plain += (accepted + 1) * (FORWARD + ROW + CACHED * context)
            verified += nodes + 1
        assert row.speed is not None
        # one-token decoding is priced at each request's mean context
        assert row.speed.speed_up == pytest.approx(plain / us, rel=0.02)
        assert row.speed.tokens_per_second == pytest.approx(1e6 * tokens / us)
        assert row.speed.verified_per_token == pytest.approx(verified / tokens)
        assert row.speed.interval is not None
        assert row.speed.interval.low <= row.speed.speed_up <= row.speed.interval.high
    assert rows[2].speed is not None
    assert rows[2].speed.speed_up == pytest.approx(1.0)


def test_replay_prints_what_it_assumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(recording(tmp_path, 3).path)
    assert run(["replay", path, "--cost", "fit", "--calibration"]) == 0
    text = capsys.readouterr().out
    assert "assumes: verifying takes as long for any number of nodes: only 3 was recorded" in text
    assert "residual" in text
    assert "speed-up" in text
    assert run(["replay", path, "--cost", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_a_fit_to_several_batches_knows_what_drafting_for_one_more_request_takes(
    monkeypatch: pytest.MonkeyPatch, lengths: list[DraftFile]
) -> None:
    rng = np.random.default_rng(0)
    length, batch = rng.choice([0.0, 1.0, 4.0, 7.0], 200), rng.choice([1.0, 8.0, 64.0], 200)
    ones = np.ones(200)
    draft = np.where(length > 0, 40.0 + 3.0 * batch, 40.0)
    steps = Steps(length, ones, length, batch, 100 * ones, draft, 500 + batch * (length + 1), 0)
    monkeypatch.setattr("dflash.replay.cost.read_steps", lambda files: steps)
    step_time = fit_cost(lengths).step_time
    for at in (1.0, 3.0, 7.0):
        assert step_time.draft(at, 1, [1.0, 20.0, 64.0]) == pytest.approx([43.0, 100.0, 232.0], rel=1e-3)
    assert step_time.draft(0, 1, 64) == pytest.approx(40.0, rel=1e-3)


@pytest.mark.parametrize("nodes", [[14.0], [3.0, 14.0]])
def test_plain_decoding_is_never_free(
    monkeypatch: pytest.MonkeyPatch, lengths: list[DraftFile], nodes: list[float]
) -> None:
    """Where times grow steeply with the rows, no line through large steps leads below zero."""
    rng = np.random.default_rng(0)
    size, batch = rng.choice(nodes, 200), rng.choice([1.0, 2.0], 200)
    verify = 1000.0 + 500.0 * np.maximum(0.0, batch * (size + 1) - 22)
    steps = Steps(size, np.ones(200), size, batch, 100 * np.ones(200), 40 * np.ones(200), verify, 0)
    monkeypatch.setattr("dflash.replay.cost.read_steps", lambda files: steps)
    step_time = fit_cost(lengths).step_time
    least = verify.min() if len(nodes) > 1 else 0
    for requests in (1, 2):
        assert (step_time.verify([0, 1, 2], requests, 100) > max(1.0, 0.5 * least)).all()

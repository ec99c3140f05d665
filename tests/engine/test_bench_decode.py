"""`dflash bench decode` on a CPU: every side decodes the same number of tokens."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import jsonschema
import pytest
import torch

from dflash.bench import decode_document
from dflash.bench.decode import (
    PLAIN,
    Decoder,
    DecodeSettings,
    FirstToken,
    Kept,
    Side,
    SideResult,
    first_token,
    measure,
    peer_prompts,
)
from dflash.bench.decode_clock import Run
from dflash.bench.decode_document import document
from dflash.bench.decode_models import RandomSubject, Subject, random_target
from dflash.bench.decode_peers import measure_peers
from dflash.bench.round_profile import ASSUMPTIONS, lanes_of, profile_rounds, settings_of
from dflash.bench.step_shapes import MODELS
from dflash.cli.main import run as run_command
from dflash.engine.features import FeatureMode
from dflash.engine.prompts.files import text_prompt
from dflash.policy.step_time import Grid, StepTime
from dflash.replay.cost import CostModel
from dflash.target.load import load_target
from dflash.target.native_layers import Way

TIMED = "match:control=goodput,control.shortest=0,control.scope=stream"
LEVEL = StepTime(Grid(((0.0,), (1.0,)), (9.0,)), Grid(((0.0,), (1.0,), (1.0,)), (90.0,)))


def small_subject(monkeypatch: pytest.MonkeyPatch) -> RandomSubject:
    for module in ("dflash.engine.session", "dflash.bench.decode_models"):
        monkeypatch.setattr(f"{module}.Way", lambda mode: Way(mode, impl="reference"))
    small = {"num_hidden_layers": 4, "vocab_size": 160, "max_position_embeddings": 256, "hidden_size": 64}
    small |= {"intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    return RandomSubject(random_target(MODELS[0], "cpu", torch.float32, **small), block=3)


@pytest.mark.parametrize(
    ("temperature", "policy"), [(0.0, "match"), (0.8, "match:control=schedule,control.table=1:2/2:0")]
)
def test_every_side_decodes_all_tokens(
    monkeypatch: pytest.MonkeyPatch, root: Path, temperature: float, policy: str
) -> None:
    subject = small_subject(monkeypatch)
    given = DecodeSettings(
        3, 1, temperature, prompt_tokens=9, new_tokens=5, repeats=1, host=True, groups=True,
        policies=(policy,),
    )  # fmt: skip
    found = document(subject, given, measure(subject, given, (1, 2)), first_token(subject, given))
    sides = [
        "plain", "plain recorded", "plain host", "speculative", "speculative recorded", "speculative host",
    ]  # fmt: skip
    # one lane makes no groups, and a control takes all lanes
    assert [row["side"] for row in found["rows"]] == [
        *sides, *sides, *(["speculative in groups"] if policy == "match" else []),
    ]  # fmt: skip
    for row in found["rows"]:
        assert [run["tokens"] for run in row["runs"]] == [4 * row["lanes"]]
        assert (row["overhead"] is None) == ("recorded" not in row["side"])
        assert row["emitted_per_round"] >= 1.0
    schema = json.loads((root / "schemas" / "bench_decode_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(json.dumps(found)), schema)


def test_what_recording_adds_once_is_told_apart_from_what_it_adds_to_rounds() -> None:
    """Of runs of any length: seconds before the first token and after the last one are in no round."""
    side = Side(PLAIN)
    recorded = side._replace(kept=Kept())
    for rounds in (10, 10_000):
        spans = [(0.125, 0.25, 0.0), (0.5, 0.28125, 0.25)]
        bare, kept = (
            Run(start, 0.0, decode * rounds, decode * rounds + end, rounds, rounds, ())
            for start, decode, end in spans
        )
        results = [SideResult(side, 1, (bare,) * 3), SideResult(recorded, 1, (kept,) * 3)]
        row = decode_document._row(results[1], results, DecodeSettings(3))
        assert row["once_ms"] == {"before": 375.0, "after": 250.0}
        assert row["overhead"] == 0.125
        assert row["overhead_written"] == pytest.approx(0.125 + 1.0 / rounds)
        assert decode_document._row(results[0], results, DecodeSettings(3))["once_ms"] is None


@pytest.mark.parametrize("after", [3, 8, 10, 11])
def test_an_interruption_leaves_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, root: Path, after: int
) -> None:
    """Each number of lanes has 4 sides, a warming run of each, and then three in turn: 16 runs."""
    subject, runs, run = small_subject(monkeypatch), [], Decoder.run

    def interrupted(decoder: Decoder) -> Run:
        if len(runs) == after:
            raise KeyboardInterrupt
        runs.append(decoder.side)
        return run(decoder)

    monkeypatch.setattr(Decoder, "run", interrupted)
    given = DecodeSettings(3, prompt_tokens=9, new_tokens=5, repeats=3)
    measured = measure(subject, given, (1, 2))
    assert measured.interrupted
    # a side without any run has no rate to compare the others with
    expected = Counter(runs[4:]) if after >= 8 else {}
    assert {result.side: len(result.runs) for result in measured.results} == expected
    if not expected:
        return
    found = document(subject, given, measured, None)
    assert [row["side"] for row in found["rows"]] == [side.name for side in expected]
    schema = json.loads((root / "schemas" / "bench_decode_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(json.dumps(found)), schema)


@pytest.mark.parametrize("stage", ["profile_rounds", "first_token", "measure_peers", None])
def test_the_command_prints_what_was_measured_before_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stage: str | None
) -> None:
    """Wherever it comes after the first number of lanes: all sides of that are there."""
    subject, taken = small_subject(monkeypatch), []
    given = DecodeSettings(3, prompt_tokens=9, new_tokens=5, repeats=1, kept=(), policies=(TIMED,))
    modules = {"profile_rounds": "round_profile", "first_token": "decode", "measure_peers": "decode_peers"}

    def called(name: str, answer: Any) -> Any:
        taken.append(name)
        if name == stage and (name != "profile_rounds" or taken.count(name) == 2):
            raise KeyboardInterrupt
        return answer

    answers = {"profile_rounds": LEVEL, "first_token": FirstToken(2.0, 1.0), "measure_peers": []}
    for name, answer in answers.items():
        instead = partial(lambda name, answer, *words: called(name, answer), name, answer)
        monkeypatch.setattr(f"dflash.bench.{modules[name]}.{name}", instead)
    monkeypatch.setattr("dflash.bench.decode.peer_prompts", lambda *words: [])
    monkeypatch.setattr("dflash.cli.bench_decode._asked", lambda options: (subject, given))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    words = ["bench", "decode", "--lanes", "1", "--lanes", "2", "--peers", "1", "--json", "-q"]
    assert run_command(words) == (0 if stage is None else 130)
    found = json.loads(capsys.readouterr().out)
    lanes = [1, 1] if stage == "profile_rounds" else [1, 1, 2, 2]
    assert [row["lanes"] for row in found["rows"]] == lanes
    assert found["interrupted"] == (stage is not None)
    assert list(found["step_time"]) == ["1"] if stage == "profile_rounds" else ["1", "2"]
    assert (found["first_token_ms"] is None) == (stage in ("profile_rounds", "first_token"))


def test_policies_are_sides_of_one_run_and_controls_get_step_times(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    subject = small_subject(monkeypatch)
    policies = ("match", "match:length=1", TIMED)
    given = DecodeSettings(3, prompt_tokens=9, new_tokens=8, repeats=2, kept=(), policies=policies)
    monkeypatch.setattr("dflash.bench.round_profile.TOKENS", 6)
    profile = profile_rounds(subject, given, [1, 2])
    assert profile.draft_us.axes == ((0.0, 1.0, 2.0, 3.0), (1.0,), (1.0, 2.0))
    # a length between two rungs runs as the next one
    assert (profile.draft(0, 1, [1, 2]) == 0).all()
    assert profile.verify(3, 2, 50) > 0
    model = CostModel(profile, "measured", 2.0, (), ASSUMPTIONS, 0)
    runs = [run._asdict() for run in settings_of(3, 1, [1, 2])]
    assert len(runs) == 2 * 3
    steps = {
        "schema": "dflash.bench_step/1",
        "target": "",
        "drafter": "",
        "runs": runs,
        "cost": model.to_dict(),
    }
    schema = json.loads((root / "schemas" / "bench_step_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(json.dumps(steps)), schema)
    given = replace(given, step_time=profile)
    results = measure(subject, given, [2])
    found = document(subject, given, results, FirstToken(2.0, 1.0))
    assert [row["side"] for row in found["rows"]] == ["plain", *policies]
    schema = json.loads((root / "schemas" / "bench_decode_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(json.dumps(found)), schema)


@pytest.mark.slow
def test_prompts_are_decoded_to_the_ends_of_their_answers(
    monkeypatch: pytest.MonkeyPatch, root: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("dflash.engine.session.Way", lambda mode: Way(mode, impl="reference"))
    target = device_runs.native_target(load_target(str(tiny_folder), device="cpu", dtype="float32"))
    drafter = device_runs.write_drafter(target, tmp_path, "dspark")
    prompts = tuple(text_prompt(prompt) for prompt in draft_runs.prompts(3))
    lists = (prompts[:2], prompts[2:])
    kept = (Kept(), Kept(FeatureMode.ALL, "int8"), Kept(dense=True))
    given = DecodeSettings(3, new_tokens=6, repeats=1, lists=lists, kept=kept)
    subject = Subject(target, drafter, drafter)
    asked = peer_prompts(subject, given, 2)
    peers = measure_peers(target, asked, 3, lambda text: None)
    found = document(subject, given, measure(subject, given, (2,)), FirstToken(2.0, 1.0), peers)
    for ids, peer in zip((asked, asked), found["peers"], strict=True):
        assert peer["failure"] is None
        assert 0 < peer["tokens"] <= 64 * len(ids)
    for row in found["rows"]:
        assert [run["tokens"] for run in row["runs"]] == [3 * 5]
        assert all(run["start"] > 0 and run["decode"] > 0 for run in row["runs"])
        assert [[part["tokens"] for part in run["parts"]] for run in row["runs"]] == [[10, 5]]
    assert found["prompts"] == [2, 1]
    plain = ["plain", "plain recorded", "plain recorded with features in int8"]
    speculative = [name.replace("plain", "speculative") for name in plain]
    assert [row["side"] for row in found["rows"]] == [*plain, *speculative, "speculative recorded densely"]
    assert [row["kept"] and row["kept"]["feature_dtype"] for row in found["rows"]][:3] == [None, None, "int8"]
    assert [(row["overhead"] is None) == (row["kept"] is None) for row in found["rows"]] == 7 * [True]
    schema = json.loads((root / "schemas" / "bench_decode_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(json.dumps(found)), schema)


def test_lanes_are_timed_at_powers_of_eight_and_at_the_most() -> None:
    assert [lanes_of(most) for most in (1, 5, 8, 64, 100)] == [
        [1],
        [1, 5],
        [1, 8],
        [1, 8, 64],
        [1, 8, 64, 100],
    ]

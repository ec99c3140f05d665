"""`dflash bench step` measures every corner of what may be asked for, and leaves a profile to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import draft_runs
import jsonschema
import pytest

from dflash.bench.step import Setting, settings_of
from dflash.cli.main import run
from dflash.replay.cost import load_cost


def test_corners_are_measured_and_plain_decoding_with_them() -> None:
    assert list(settings_of(5, 2, 1)) == [
        Setting(0, 1, 1),
        *(Setting(length, branches, 1) for length in (1, 3, 5) for branches in (1, 2)),
    ]
    assert {setting.lanes for setting in settings_of(1, 1, 8)} == {1, 8}
    assert len(list(settings_of(1, 1, 8))) == 4


@pytest.mark.slow
def test_a_profile_is_measured_and_used(
    tiny: Any, tiny_folder: Path, tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile.json"
    words = ["--target", str(tiny_folder), "--drafter", f"model:{tiny_folder}", "--max-new-tokens", "6"]
    asked = ["bench", "step", *words, "--length", "2", "--branches", "2", "--lanes", "2"]
    assert run([*asked, "-o", str(profile), "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    schema = json.loads((root / "schemas" / "bench_step_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(found)
    assert found["cost"]["assumptions"] == []
    assert found["cost"]["batch"] == 2
    model = load_cost(profile, 2.0)
    assert model.step_time.to_dict() == found["cost"]["step_time"]
    assert model.step_time.draft(2, 1, 1) >= model.step_time.draft(1, 1, 1) > 0
    dense = draft_runs.record(
        tiny, draft_runs.prompts(2), tmp_path / "dense.parquet", dense=True, length=2, branches=2
    )
    assert run(["tune", str(dense), "--cost", str(profile), "--batch", "2", "-q"]) == 0
    assert str(profile) in capsys.readouterr().out
    assert run([*asked, "-o", str(profile)]) == 2

"""`dflash bench decode` on a CPU: every side decodes the same number of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import device_runs
import draft_runs
import jsonschema
import pytest
import torch

from dflash.bench.decode import DecodeSettings, FirstToken, document, first_token, measure, peer_prompts
from dflash.bench.decode_models import RandomSubject, Subject, random_target
from dflash.bench.decode_peers import measure_peers
from dflash.bench.step_shapes import MODELS
from dflash.engine.features import FeatureMode
from dflash.engine.prompts.files import text_prompt
from dflash.target.load import load_target
from dflash.target.native_layers import Way


@pytest.mark.parametrize(
    ("temperature", "policy"), [(0.0, "match"), (0.8, "match:control=schedule,control.table=1:2/2:0")]
)
def test_every_side_decodes_all_tokens(
    monkeypatch: pytest.MonkeyPatch, root: Path, temperature: float, policy: str
) -> None:
    for module in ("dflash.engine.session", "dflash.bench.decode_models"):
        monkeypatch.setattr(f"{module}.Way", lambda mode: Way(mode, impl="reference"))
    small = {"num_hidden_layers": 4, "vocab_size": 160, "max_position_embeddings": 256, "hidden_size": 64}
    small |= {"intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    subject = RandomSubject(random_target(MODELS[0], "cpu", torch.float32, **small), block=3)
    given = DecodeSettings(
        3, 1, temperature, prompt_tokens=9, new_tokens=5, repeats=1, host=True, policy=policy
    )
    found = document(subject, given, measure(subject, given, (1, 2)), first_token(subject, given))
    assert [row["side"] for row in found["rows"]] == 2 * [
        "plain", "plain recorded", "plain host", "speculative", "speculative recorded", "speculative host",
    ]  # fmt: skip
    for row in found["rows"]:
        assert [run["tokens"] for run in row["runs"]] == [4 * row["lanes"]]
        assert (row["overhead"] is None) == ("recorded" not in row["side"])
        assert row["emitted_per_round"] >= 1.0
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
    given = DecodeSettings(3, new_tokens=6, repeats=1, prompts=prompts, features=FeatureMode.ALL, dense=True)
    subject = Subject(target, drafter, drafter)
    asked = peer_prompts(subject, given, 2)
    peers = measure_peers(target, asked, 3, lambda text: None)
    found = document(subject, given, measure(subject, given, (2,)), FirstToken(2.0, 1.0), peers)
    for ids, peer in zip((asked, asked), found["peers"], strict=True):
        assert peer["failure"] is None
        assert 0 < peer["tokens"] <= 64 * len(ids)
    for row in found["rows"]:
        assert [run["tokens"] for run in row["runs"]] == [3 * 5]
        assert all(run["prefill"] > 0 and run["decode"] > 0 for run in row["runs"])
    assert (found["prompts"], found["features"], found["dense"]) == (3, "all", True)
    schema = json.loads((root / "schemas" / "bench_decode_v1.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(json.dumps(found)), schema)

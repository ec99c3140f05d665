"""Rescore against teacher-forced forwards of the same prefixes by a model that the test quantises itself."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers as tf
from draft_runs import prompts, record, trunks
from jsonschema import Draft202012Validator

from dflash.cli.main import run
from dflash.drafters.fan import Fan
from dflash.draftfile.identity import IdentityMismatch
from dflash.draftfile.run import open_run
from dflash.engine.rescore import rescore
from dflash.policy.registry import parse_policy
from dflash.replay.audit.audit import audit
from dflash.replay.errors import ContextsOfAnother
from dflash.replay.run import replay
from dflash.target.load import load_target
from dflash.target.quantise import quantise

RUNS = {
    "greedy": {"drafter": "ngram", "branches": 3, "dense": True},
    "sampled tree": {"temperature": 0.8, "policy": "speculative", "branches": 4, "fan": Fan((2, 2))},
    "block": {"temperature": 0.9, "policy": "block"},
    "shared, cut, dense": {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "dense": True},
}
SAID = {"node_logp", "node_target_logit", "node_mass_above", "node_residual_mass", "node_residual_token"}
SAID |= {"draft_topk_target_logit", "trunk_logp", "off_trajectory"}
TIMES = {"verify_us", "round_us", "step", "batch_size"}


@pytest.fixture(scope="module")
def int8(tiny_folder):
    """The tiny target in int8, by the project and by the test: a loader and a plain model."""
    plain = tf.AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    return load_target(str(tiny_folder), quantisation="int8"), quantise(plain, "int8").model


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS)
def pair(request, tiny, int8, tmp_path_factory):
    """A recording under fp32, and the same drafts scored in int8."""
    folder = tmp_path_factory.mktemp("rescored")
    settings = {"drafter": f"model:{tiny.model.name_or_path}", "length": 3, "branches": 1, **request.param}
    before = record(tiny, prompts(2), folder / "fp32.parquet", max_new_tokens=14, **settings)
    rescore(open_run([before]), int8[0], folder / "int8.parquet")
    return before, folder / "int8.parquet"


def prefixes(row, trunk):
    """The tokens before and at every slot."""
    lines = [trunk[: row["anchor_position"] + 1]]
    for token, parent in zip(row["node_token"], row["node_parent"], strict=True):
        lines.append([*lines[parent + 1], token])
    return lines


def law(logits, facts):
    """log p after temperature, top-k and top-p by transformers' own processors."""
    temperature = facts["temperature"]
    if temperature == 0:
        return torch.where(torch.arange(len(logits)) == int(logits.argmax()), 0.0, -math.inf)
    scores = tf.TemperatureLogitsWarper(temperature)(None, logits[None])
    if facts["top_k"]:
        scores = tf.TopKLogitsWarper(facts["top_k"])(None, scores)
    if facts["top_p"] < 1:
        scores = tf.TopPLogitsWarper(facts["top_p"])(None, scores)
    return torch.log_softmax(scores[0], -1)


def test_p_is_that_of_teacher_forced_scoring(pair, int8):
    rows = pq.read_table(pair[1]).to_pylist()
    trunk = trunks(rows)
    facts = json.loads(rows[0]["request_info"])["sampling"]
    # every other row: the oracle runs one plain forward a prefix
    for row in rows[::2]:
        with torch.inference_mode():
            logits = [
                int8[1](torch.tensor([line])).logits[0, -1].double()
                for line in prefixes(row, trunk[row["request_id"]])
            ]
        for slot, raw in enumerate(logits):
            assert row["slot_lse"][slot] == pytest.approx(float(torch.logsumexp(raw, -1)), abs=1e-3)
            assert row["slot_argmax"][slot] == int(raw.argmax())
            stored = row["slot_topk_logit"][slot * 16 : slot * 16 + 16]
            assert stored == pytest.approx(raw.topk(16).values.tolist(), abs=1e-3)
        for node, (token, parent) in enumerate(zip(row["node_token"], row["node_parent"], strict=True)):
            expected = float(law(logits[parent + 1], facts)[token])
            found = row["node_logp"][node]
            assert found == expected if math.isinf(expected) else found == pytest.approx(expected, abs=2e-3)
        if row["kind"] == 1:
            committed = trunk[row["request_id"]][row["anchor_position"] + 1]
            expected = float(law(logits[0], facts)[committed])
            if not math.isinf(expected):
                assert row["trunk_logp"] == pytest.approx(expected, abs=2e-3)


def test_drafts_contexts_and_decisions_stay(pair):
    before, after = (pq.read_table(path) for path in pair)
    assert before.schema.equals(after.schema)
    same = [name for name in before.column_names if not (name.startswith("slot_") or name in SAID | TIMES)]
    for name in same:
        assert before[name].equals(after[name]), name
    assert not before["slot_lse"].equals(after["slot_lse"])
    for name in TIMES:
        assert after[name].null_count == after.num_rows


def test_the_header_names_parents_and_whose_contexts_they_are(pair, int8):
    before, after = (open_run([path]) for path in pair)
    raw = after.header.raw
    assert raw["parents"] == [before.files[0].content_digest]
    assert raw["contexts"]["target"] == before.header.target
    assert raw["target"] == int8[0].identity
    assert raw["target"]["quantisation"]["bits"] == 8
    assert before.header.contexts is None
    for key in ("drafters", "sampling", "seed", "policy", "shape", "q_complete", "tokenizer"):
        assert raw[key] == before.header.raw[key]


def test_it_is_rejudged_and_nothing_else(pair, capsys):
    files = open_run([pair[1]]).files
    if files[0].header.dense:
        with pytest.raises(ContextsOfAnother, match="not walked"):
            replay(files)
        assert run(["replay", str(pair[1])]) == 2
        assert "--rejudge" in capsys.readouterr().err
    with pytest.raises(ContextsOfAnother, match="not checked"):
        replay(files, check=True, dense=False)
    for row in replay(files, [parse_policy("match")], dense=False).rows:
        assert row.exactness == "re-judge"
        assert any("contexts" in remark and "int8" not in remark for remark in row.remarks)
    assert run(["replay", str(pair[1]), "--expect", "--policy", "match:branches=1", "--json"]) == 0
    policy = json.loads(capsys.readouterr().out)["runs"][0]["policies"][0]
    assert policy["exactness"] == "expectation"
    assert "contexts" in policy["remarks"][-1]
    assert run(["replay", str(pair[1]), "--rejudge"]) == 0
    assert "contexts, drafts and features are those of a run under tiny" in capsys.readouterr().out


def test_the_audit_passes_it_and_names_what_is_anothers(pair):
    """Choices, residuals and laws are recomputed; nothing is said of tokens that another target emitted."""
    found = audit(open_run([pair[1]]).files)
    assert found.passed, found.to_dict()
    reasons = {each.probe: each.reasons for each in found.verdicts if each.reasons}
    assert "another target" in reasons["decisions"][0]
    assert "another target" in reasons["emitted tokens"][0]
    assert next(each for each in found.verdicts if each.probe == "residuals").places > 0


def test_the_same_target_says_the_same_again(tiny, tmp_path):
    before = record(
        tiny, prompts(2), tmp_path / "a.parquet", max_new_tokens=12, **RUNS["sampled tree"] | own(tiny)
    )
    found = rescore(open_run([before]), tiny, tmp_path / "b.parquet")
    assert found.differences == ()
    assert found.slots == sum(len(row) + 1 for row in pq.read_table(before)["node_token"].to_pylist())
    one, two = (pq.read_table(tmp_path / name).to_pylist() for name in ("a.parquet", "b.parquet"))
    for left, right in zip(one, two, strict=True):
        assert left["slot_choice"] == right["slot_choice"]
        for name in ("node_logp", "slot_lse", "slot_topk_logit", "node_residual_mass"):
            assert np.allclose(left[name], right[name], atol=1e-3), name
        assert left["node_residual_token"] == right["node_residual_token"]


def own(target):
    return {"drafter": f"model:{target.model.name_or_path}", "length": 3}


def test_rescored_twice_keeps_the_first_contexts(pair, tiny, tmp_path):
    again = tmp_path / "again.parquet"
    rescore(open_run([pair[1]]), tiny, again)
    first, last = open_run([pair[0]]), open_run([again])
    assert last.header.contexts == first.header.target
    assert last.header.raw["parents"] == [open_run([pair[1]]).files[0].content_digest]


def test_another_tokenizer_is_refused(pair, tiny_folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny_folder, other)
    document = json.loads((other / "tokenizer.json").read_text())
    document["added_tokens"][0]["content"] = "<|start|>"
    (other / "tokenizer.json").write_text(json.dumps(document))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (other / name).exists():
            (other / name).write_text((other / name).read_text().replace("<|bos|>", "<|start|>"))
    with pytest.raises(IdentityMismatch, match="tokenizer"):
        rescore(open_run([pair[0]]), load_target(str(other)), tmp_path / "no.parquet")
    assert not (tmp_path / "no.parquet").exists()


def test_the_command(tiny, tiny_folder, root, tmp_path, capsys):
    before = record(tiny, prompts(1), tmp_path / "a.parquet", max_new_tokens=8, drafter="ngram")
    out = tmp_path / "b.parquet"
    words = ["replay", str(before), "--rescore", str(tiny_folder), "--target-quant", "int8"]
    assert run(words) == 2
    assert "-o PATH" in capsys.readouterr().err
    assert run([*words, "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    schema = json.loads((root / "schemas" / "replay_rescore_v1.schema.json").read_text())
    Draft202012Validator(schema).validate(document)
    assert document["contexts_of"] == "tiny"
    assert document["target"] == "tiny (torchao 8 bits)"
    assert any("quantisation" in difference for difference in document["differences"])
    assert run([*words, "-o", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert run([*words, "-o", str(out), "--overwrite", "--check"]) == 2
    assert run(["replay", str(before), "--target-quant", "int8"]) == 2
    assert "--rescore" in capsys.readouterr().err

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from tiny_recorder import Recorder

from dflash.bench.replay import NotedFile, many
from dflash.bench.replay_files import Made, write
from dflash.cli.main import run
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.replay.expect import Expect
from dflash.replay.expectation import expectation
from dflash.replay.run import replay


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    return write(
        tmp_path_factory.mktemp("made") / "live.parquet", Made(400, per_request=40, feature_bytes=64)
    )


@pytest.mark.parametrize("dense", [False, True])
def test_made_files_join_up_as_recorded_ones_do(tmp_path, dense):
    made = Made(300, dense=dense, per_request=30, length=5)
    path = write(tmp_path / "made.parquet", made)
    assert run(["doctor", str(path)]) == 0
    assert run(["replay", str(path), "--check"]) == 0


def test_a_file_is_read_once_for_200_policies_and_without_its_features(live):
    swept = many(live, 200)
    assert (swept.policies, swept.readings) == (200, 1)
    file = NotedFile.open(live)
    replay([file], [parse_policy("speculative"), parse_policy("match:length=2")])
    expectation([file], [parse_policy("speculative"), parse_policy("match")], Expect.COINS)
    assert len(file.readings) == 2
    assert not any(name.startswith("feature_") for names in file.readings for name in names)


def test_a_dense_file_is_read_once_for_walks_laws_and_re_judging(tmp_path):
    path = Recorder("match", Proposal.INDEPENDENT, 0.8, dense=True).write(tmp_path / "dense.parquet")
    file = NotedFile.open(path)
    policies = [parse_policy(text) for text in ("match", "speculative", "threshold:t=0.3", "vllm-v1")]
    exactness = {row.exactness for row in replay([file], policies).rows}
    assert {"path-exact", "law-exact", "lossy"} <= exactness
    assert len(file.readings) == 1


@pytest.mark.parametrize(
    ("policy", "read", "unread"),
    [
        ("match", {"node_token", "slot_choice"}, {"slot_argmax", "node_logp", "node_logq", "prompt_tokens"}),
        ("greedy", {"slot_argmax"}, {"node_logp", "slot_topk_token"}),
        (
            "block",
            {"node_logp", "node_residual_mass"},
            {"slot_argmax", "slot_topk_token", "draft_topk_token"},
        ),
    ],
)
def test_a_policy_reads_the_columns_that_it_needs(live, policy, read, unread):
    file = NotedFile.open(live)
    replay([file], [parse_policy(policy)])
    (names,) = file.readings
    assert read <= set(names)
    assert not unread & set(names)


def test_the_benchmark_prints_its_document_and_agrees_with_duckdb(capsys, root):
    pytest.importorskip("duckdb")
    words = "--rounds 400 --pairs 1 --policies 9 --feature-gb 0.002 --json"
    assert run(["bench", "replay", *words.split()]) == 0
    document = json.loads(capsys.readouterr().out)
    schema = json.loads((root / "schemas/bench_replay_v1.schema.json").read_text())
    Draft202012Validator(schema).validate(document)
    assert document["memory"]["file_bytes"] > 1_000_000
    assert [item["policy"] for item in document["rejudged"]][:2] == ["match", "greedy"]

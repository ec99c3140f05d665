"""The recorded sample runs are read for ever, and say what they always said."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from dflash.cli.main import app

RUNS = (
    *("ngram-chain", "ngram-tree", "self-match", "self-speculative", "conversation"),
    *("dense-ngram-tree", "dense-self", "quant-none", "quant-int8"),
)
POLICIES = ("match", "speculative", "threshold:t=0.7", "match:length=2")


@pytest.fixture
def samples(root, tmp_path, monkeypatch):
    for path in (root / "sample_runs").iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words):
    return CliRunner().invoke(app, words, catch_exceptions=False, standalone_mode=False)


def same(found, expected):
    """Equal documents, floats to the last few bits."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    else:
        assert found == expected


@pytest.mark.parametrize("name", RUNS)
def test_info_and_replay_say_what_they_said_when_the_run_was_recorded(samples, name):
    same(json.loads(run("info", f"{name}.parquet", "--json").stdout), expected(samples, name, "info"))
    policies = [word for policy in POLICIES for word in ("--policy", policy)]
    replayed = run("replay", f"{name}.parquet", *policies, "--json")
    same(json.loads(replayed.stdout), expected(samples, name, "replay"))


def expected(folder, name, command):
    return json.loads((folder / f"{name}.{command}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RUNS)
def test_every_recorded_decision_is_reproduced(samples, name):
    assert run("replay", f"{name}.parquet", "--check").return_value in (0, None)


@pytest.mark.parametrize("name", RUNS)
def test_tau_is_what_ten_lines_without_the_package_count(samples, name):
    rows = pq.read_table(f"{name}.parquet", columns=["kind", "accepted_nodes"]).to_pylist()
    live = [len(row["accepted_nodes"]) for row in rows if row["kind"] == 0]
    tau = sum(count + 1 for count in live) / len(live)
    document = json.loads(run("replay", f"{name}.parquet", "--json").stdout)
    assert document["runs"][0]["policies"][0]["tau"] == pytest.approx(tau, rel=1e-12)


@pytest.mark.parametrize("name", ["dense-ngram-tree", "dense-self"])
def test_a_walk_under_the_recorded_policy_is_the_recorded_run(samples, name):
    verdicts = samples / "verdicts.parquet"
    assert run("replay", f"{name}.parquet", "-o", str(verdicts)).return_value in (0, None)
    columns = ["kind", "request_id", "anchor_position", "accepted_nodes"]
    rows = pq.read_table(f"{name}.parquet", columns=columns).to_pylist()
    live = {
        (row["request_id"], row["anchor_position"]): row["accepted_nodes"] for row in rows if row["kind"] == 0
    }
    walked = pq.read_table(verdicts).to_pylist()
    assert {(row["request_id"], row["anchor_position"]): row["accepted_nodes"] for row in walked} == live


def test_two_quantisations_differ_as_they_did(samples):
    found = run("diff", "quant-none.parquet", "quant-int8.parquet", "--json")
    assert found.return_value == 1
    document = json.loads(found.stdout)
    same(document, expected(samples, "quant", "diff"))
    assert "quantisation" in document["causes"][0]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_differs_not_from_itself(samples, name):
    found = run("diff", f"{name}.parquet", f"{name}.parquet", "--json")
    assert found.return_value in (0, None)

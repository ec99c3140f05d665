from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.draftfile.run import open_run
from dflash.draftfile.summary import Kind
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.policy.step_time import Grid, StepTime
from dflash.replay.errors import ShapeBeyondRecording
from dflash.replay.run import replay

LARGEST = (3, 3)


def replayed(path, *texts, **how):
    return replay(open_run([path]).files, [parse_policy(text) for text in texts], **how)


def live_numbers(path):
    table = pq.read_table(path, columns=["kind", "accepted_nodes", "emitted"]).to_pylist()
    rounds = [row for row in table if row["kind"] == 0]
    tau = 1 + np.mean([len(row["accepted_nodes"]) for row in rounds])
    return len(rounds), tau, np.mean([row["emitted"] for row in rounds])


@pytest.fixture
def dense_file(tmp_path):
    recorder = Recorder("match", Proposal.SHARED, length=2, dense=True, largest=LARGEST, requests=6)
    return recorder.write(tmp_path / "dense.parquet")


def test_a_row_of_a_walk_has_the_numbers_of_the_live_run(tmp_path, dense_file):
    recorder = Recorder("match", Proposal.SHARED, length=3, branches=2, requests=6)
    live = recorder.write(tmp_path / "live.parquet")
    result = replayed(dense_file, "match:length=3,branches=2", check=True)
    assert result.check.passed
    row = result.rows[0]
    rounds, tau, kept = live_numbers(live)
    assert (row.exactness, row.rounds) == ("path-exact", rounds)
    assert row.tau == pytest.approx(tau)
    assert row.emitted_per_round == pytest.approx(kept)
    assert row.emitted_interval.low < kept < row.emitted_interval.high
    assert (row.walked.covered, row.walked.left_trunk, row.walked.near_ties) == (1.0, 0, 0)


def test_the_recorded_policy_is_what_a_dense_file_walks_by_default(dense_file):
    (row,) = replayed(dense_file).rows
    rounds, tau, _ = live_numbers(dense_file)
    assert row.recorded
    assert (row.rounds, row.tau) == (rounds, pytest.approx(tau))
    (live,) = replayed(dense_file, dense=False).rows
    assert (live.exactness, live.rounds, live.tau) == ("live", rounds, pytest.approx(tau))


def test_lossy_policies_are_compared_where_all_are_on_the_trunk(dense_file):
    match, same, lossy = replayed(
        dense_file, "match:branches=1", "match:branches=1,length=3", "threshold:t=0.3,branches=1"
    ).rows
    assert same.difference == 0.0
    assert lossy.exactness == "lossy"
    assert not lossy.lossless
    assert lossy.walked.left_trunk > 0
    assert lossy.walked.covered < 1
    assert match.walked.covered == 1
    # recounted on the rounds that begin before any request's trunk is left
    assert lossy.difference != pytest.approx(lossy.tau - match.tau)


def test_law_exact_policies_give_expected_rounds(dense_file):
    speculative, longer, re_judged = replayed(
        dense_file, "speculative:branches=1,length=1", "speculative:branches=1", "speculative"
    ).rows
    assert speculative.exactness == longer.exactness == "law-exact"
    assert speculative.tau is None
    assert 1 < speculative.emitted_per_round < longer.emitted_per_round < 4
    assert speculative.emitted_interval.low < speculative.emitted_per_round
    assert re_judged.exactness == "re-judge"


def test_the_law_of_a_walk_holds_the_mean_of_live_runs(tmp_path):
    """Many seeds live against the law along the trunks of other seeds."""
    recorder = Recorder("match", Proposal.INDEPENDENT, length=3, dense=True, requests=60, seed=11)
    (law,) = replayed(recorder.write(tmp_path / "dense.parquet"), "speculative").rows
    live = Recorder("speculative", Proposal.INDEPENDENT, length=3, requests=60, seed=77)
    _, _, kept = live_numbers(live.write(tmp_path / "live.parquet"))
    width = law.emitted_interval.high - law.emitted_interval.low
    assert abs(law.emitted_per_round - kept) < width


def test_a_sampled_trunk_is_walked_in_law_only(tmp_path):
    path = Recorder("speculative", Proposal.INDEPENDENT, length=3, dense=True).write(tmp_path / "run.parquet")
    rows = replayed(path, "match", "speculative", "block", check=True).rows
    assert [row.exactness for row in rows] == ["re-judge", "law-exact", "law-exact"]
    assert rows[2].emitted_per_round >= rows[1].emitted_per_round - 0.1


def test_a_lossy_trunk_is_not_walked(tmp_path):
    path = Recorder("threshold:t=0.3", Proposal.SHARED, dense=True).write(tmp_path / "run.parquet")
    rows = replayed(path, "match", "speculative", check=True).rows
    assert [row.exactness for row in rows] == ["re-judge", "re-judge"]


def test_the_largest_shape_bounds_walks_and_the_live_one_re_judging(dense_file):
    replayed(dense_file, "match:length=3,branches=3")
    with pytest.raises(ShapeBeyondRecording, match="length 4"):
        replayed(dense_file, "match:length=4")


def test_the_command_walks_and_says_so(tmp_path, dense_file, root, capsys):
    words = ["--policy", "match", "--policy", "threshold:t=0.3", "--policy", "speculative:branches=1"]
    out = tmp_path / "verdicts.parquet"
    assert run(["replay", str(dense_file), *words, "--check"]) == 0
    text = capsys.readouterr().out
    for said in ("path-exact", "lossy", "law-exact", "left the trunk", "check passed"):
        assert said in text
    for asked in (words, words[4:]):
        assert run(["replay", str(dense_file), *asked, "-o", str(out)]) == 2
        assert "law-exact" in capsys.readouterr().err
        assert not out.exists()
    assert run(["replay", str(dense_file), *words[:4], "-o", str(out)]) == 0
    capsys.readouterr()
    verdicts = pq.read_table(out).to_pylist()
    assert {row["policy"] for row in verdicts} == {"match", "threshold:t=0.3"}
    assert run(["replay", str(dense_file), *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    schema = json.loads((root / "schemas" / "replay_v1.schema.json").read_text())
    Draft202012Validator(schema).validate(document)
    assert run(["replay", str(dense_file), *words[:2], "--rejudge", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"][0]["policies"]
    assert row["walked"] is None


def undone(rows):
    """Cut a request short, before its dense rows: they come when it has ended."""
    rows[:] = [row for row in rows if row["kind"] != Kind.DENSE]
    rows[-1]["truncated_by"] = "interrupted"


@pytest.mark.parametrize("requests", [0, 2])
@pytest.mark.parametrize(
    "words",
    [
        ["--check"],
        ["--policy", "match:length=1", "--policy", "threshold:t=0.4"],
        ["--policy", "match", "--walk"],
    ],
    ids=" ".join,
)
def test_a_dense_recording_without_a_finished_request_is_replayed(tmp_path, words, requests):
    path = Recorder(dense=True, requests=requests, edit=undone).write(tmp_path / "run.parquet")
    assert run(["replay", str(path), *words]) == 0


def test_a_search_says_that_nothing_can_be_walked(tmp_path, capsys):
    path = Recorder(dense=True, requests=2, edit=undone).write(tmp_path / "run.parquet")
    cost = tmp_path / "cost.json"
    flat = StepTime(Grid(((0.0,), (1.0,)), (0.0,)), Grid(((0.0,), (1.0,), (0.0,)), (100.0,)))
    cost.write_text(json.dumps(flat.to_dict()))
    assert run(["tune", str(path), "--cost", str(cost)]) == 2
    assert "--rejudge" in capsys.readouterr().err
    assert run(["tune", str(path), "--cost", str(cost), "--rejudge"]) == 0

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator
from timed import clocked
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.draftfile.columns import COLUMN
from dflash.draftfile.run import open_run
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.replay.errors import RequestUnknown, ShapeBeyondRecording
from dflash.replay.run import replay

KINDS = [
    (policy, proposal, temperature, length, branches)
    for policy in ("match", "speculative", "threshold:t=0.4", "greedy")
    for proposal in (Proposal.DETERMINISTIC, Proposal.SHARED, Proposal.INDEPENDENT)
    for temperature, length, branches in ((0.0, 3, 2), (0.8, 3, 1), (0.8, 2, 3), (1.3, 0, 1))
]


def dflash(*words, capsys):
    code = run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rejudged(path, *policies, check=False):
    return replay(open_run([path]).files, [parse_policy(text) for text in policies], check=check)


@pytest.mark.parametrize(("policy", "proposal", "temperature", "length", "branches"), KINDS)
def test_every_recorded_decision_is_reproduced(tmp_path, policy, proposal, temperature, length, branches):
    recorder = Recorder(policy, proposal, temperature, length, branches)
    path = recorder.write(tmp_path / "run.parquet")
    result = rejudged(path, check=True)
    assert result.check.passed, result.check.listed
    row = result.rows[0]
    assert row.recorded
    assert row.exactness == "live"
    assert row.changed_rounds == 0
    assert row.unknown_bonus == 0
    # ten lines that know nothing of the package
    table = pq.read_table(path)
    live = [r for r in table.select(["kind", "accepted_nodes", "emitted"]).to_pylist() if r["kind"] == 0]
    assert row.tau == pytest.approx(np.mean([len(r["accepted_nodes"]) + 1 for r in live]))
    assert row.emitted == sum(r["emitted"] for r in live)
    assert row.rounds == len(live)


def test_requests_may_differ_in_temperature(tmp_path):
    recorder = Recorder("speculative", Proposal.INDEPENDENT, branches=2, temperatures=[0.0, 0.8, 1.2, 0.8])
    result = rejudged(recorder.write(tmp_path / "run.parquet"), check=True)
    assert result.check.passed, result.check.listed


def test_parts_of_a_run_count_as_one(tmp_path):
    recorder = Recorder(requests=2)
    for part in range(3):
        recorder.write(tmp_path / f"part{part}.parquet", part=part, parts=3)
    result = rejudged(tmp_path, "match", "match:length=1", check=True)
    assert result.check.passed
    assert result.requests == 6
    one_by_one = [tau_of(tmp_path / f"part{part}.parquet") for part in range(3)]
    rounds = sum(count for count, _ in one_by_one)
    assert result.rows[0].rounds == rounds
    assert result.rows[0].tau == pytest.approx(sum(tokens for _, tokens in one_by_one) / rounds)


def tau_of(path):
    table = pq.read_table(path).to_pylist()
    live = [row for row in table if row["kind"] == 0]
    return len(live), sum(len(row["accepted_nodes"]) + 1 for row in live)


def test_a_shorter_shape_is_counted_from_the_columns(tmp_path):
    path = Recorder(length=3, branches=2).write(tmp_path / "run.parquet")
    row = rejudged(path, "match:length=2,branches=1").rows[0]
    accepted = []
    for r in pq.read_table(path).to_pylist():
        if r["kind"] == 0:
            # level by level: the first branch is node 0, then node 2
            first, second = r["node_token"][0], r["node_token"][2]
            hit = first == r["slot_choice"][0]
            accepted.append(int(hit) + int(hit and second == r["slot_choice"][1]))
    assert row.tau == pytest.approx(1 + np.mean(accepted))
    assert row.lengths == tuple(np.bincount(accepted, minlength=3).tolist())
    assert [item.accepted for item in row.acceptance] == [sum(a >= i for a in accepted) for i in (1, 2)]
    assert row.acceptance[1].reached == row.acceptance[0].accepted
    assert sum(item.marginal for item in row.acceptance) == pytest.approx(row.tau - 1)


def test_what_was_not_recorded_is_null(tmp_path, capsys):
    path = Recorder("match", Proposal.SHARED).write(tmp_path / "run.parquet")
    out = tmp_path / "verdicts.parquet"
    code, _, said = dflash("replay", path, "--policy", "speculative", "-o", out, capsys=capsys)
    assert code == 0
    assert str(out) in said
    verdicts = pq.read_table(out).to_pylist()
    live = [row for row in pq.read_table(path).to_pylist() if row["kind"] == 0]
    assert len(verdicts) == len(live)
    for verdict, row in zip(verdicts, live, strict=True):
        assert (verdict["request_id"], verdict["round"]) == (row["request_id"], row["round"])
        assert verdict["accepted"] == len(verdict["accepted_nodes"])
        whole = verdict["accepted"] == len(row["node_token"])
        assert verdict["bonus_token"] == (row["slot_choice"][-1] if whole else None)
    assert any(verdict["bonus_token"] is None for verdict in verdicts)
    facts = pq.read_metadata(out).metadata
    assert json.loads(facts[b"dflash.policies"]) == ["speculative"]
    assert json.loads(facts[b"dflash.parents"]) == [open_run([path]).files[0].content_digest]


@pytest.mark.parametrize(("column", "policy"), [("slot_choice", "match"), ("slot_argmax", "greedy")])
@pytest.mark.parametrize("all_rows", [True, False])
def test_a_null_where_every_round_holds_a_token_is_named(tmp_path, capsys, column, policy, all_rows):
    def edit(rows):
        for row in rows[1:] if all_rows else rows[-1:]:
            row[column] = np.ma.masked_all(len(row[column]), np.int32)

    path = Recorder("match", temperature=0.0, edit=edit).write(tmp_path / "run.parquet")
    code, out, said = dflash("replay", path, "--policy", policy, capsys=capsys)
    assert (code, out) == (2, "")
    assert column in said
    assert "null" in said


@pytest.mark.parametrize("command", ["replay", "info", "doctor", "cat", "plan", "tune --cost", "diff"])
@pytest.mark.parametrize("quiet", [False, True])
def test_every_command_leaves_verdicts_of_a_folder_out_and_says_so(tmp_path, capsys, command, quiet):
    folder = tmp_path / "runs"
    folder.mkdir()
    path = Recorder("match", Proposal.SHARED, length=2, edit=clocked()).write(folder / "run.parquet")
    assert dflash("replay", path, "-o", folder / "v.parquet", capsys=capsys)[0] == 0
    more = [path] if command == "diff" else [folder, path] if command == "tune --cost" else []
    # quiet stands last, where the files are read before it
    code, _, said = dflash(*command.split(), folder, *more, *["-q"] * quiet, capsys=capsys)
    assert code == 0
    assert said.count("v.parquet") == (0 if quiet else len([one for one in [folder, *more] if one == folder]))
    code, _, said = dflash("replay", folder / "v.parquet", capsys=capsys)
    assert code == 2
    assert "holds verdicts of `replay -o`, not a draft file" in said


def test_verdicts_name_nodes_as_recorded(tmp_path, capsys):
    path = Recorder(length=2, branches=2).write(tmp_path / "run.parquet")
    out = tmp_path / "verdicts.parquet"
    dflash("replay", path, "--policy", "match", "--policy", "match:branches=1", "-o", out, capsys=capsys)
    live = {(r["request_id"], r["round"]): r for r in pq.read_table(path).to_pylist() if r["kind"] == 0}
    for verdict in pq.read_table(out).to_pylist():
        row = live[verdict["request_id"], verdict["round"]]
        if verdict["policy"] == "match":
            assert verdict["accepted_nodes"] == row["accepted_nodes"]
            assert verdict["bonus_token"] == row["bonus_token"]
        else:
            assert verdict["accepted_nodes"] in ([], [0], [0, 2])


def test_an_existing_output_is_kept(tmp_path, capsys):
    path = Recorder().write(tmp_path / "run.parquet")
    out = tmp_path / "verdicts.parquet"
    out.write_text("mine")
    code, _, said = dflash("replay", path, "-o", out, capsys=capsys)
    assert code == 2
    assert "exists" in said
    assert out.read_text() == "mine"
    assert dflash("replay", path, "-o", out, "--overwrite", capsys=capsys)[0] == 0
    assert pq.read_table(out).num_rows > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.parquet", "verdicts.parquet"]


def test_a_failed_replay_leaves_no_output(tmp_path, capsys):
    path = Recorder(length=2).write(tmp_path / "run.parquet")
    out = tmp_path / "verdicts.parquet"
    code, _, _ = dflash("replay", path, "--policy", "match:length=9", "-o", out, capsys=capsys)
    assert code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["run.parquet"]


@pytest.mark.parametrize("bound", ["length=4", "branches=2"])
def test_more_than_was_recorded_is_refused(tmp_path, bound):
    path = Recorder(length=3, branches=1).write(tmp_path / "run.parquet")
    with pytest.raises(ShapeBeyondRecording, match="record with"):
        rejudged(path, f"match:{bound}")


def test_a_request_without_its_key_is_refused(tmp_path):
    def spoil(rows):
        rows[0]["request_info"] = "{}"

    path = Recorder(edit=spoil).write(tmp_path / "run.parquet")
    with pytest.raises(RequestUnknown, match="rng_key"):
        rejudged(path)


def test_json_follows_its_schema(tmp_path, root, capsys):
    schema = json.loads((root / "schemas" / "replay_v1.schema.json").read_text())
    path = Recorder("speculative", Proposal.INDEPENDENT).write(tmp_path / "run.parquet")
    words = ["--check", "--policy", "speculative", "--policy", "threshold:t=0.3,length=2"]
    code, out, _ = dflash("replay", path, *words, "--json", capsys=capsys)
    assert code == 0
    document = json.loads(out)
    Draft202012Validator(schema).validate(document)
    policies = document["runs"][0]["policies"]
    assert [row["policy"] for row in policies] == ["speculative", "threshold:t=0.3,length=2"]
    assert policies[0]["difference"] is None
    assert policies[1]["difference"] == pytest.approx(policies[1]["tau"] - policies[0]["tau"])


def test_text_says_what_each_number_means(tmp_path, capsys):
    path = Recorder().write(tmp_path / "run.parquet")
    code, out, _ = dflash("replay", path, "--policy", "match", "--policy", "match:length=1", capsys=capsys)
    assert code == 0
    for words in ("path-exact", "re-judge", "accepted nodes + 1 per live round", "marginal:", "difference:"):
        assert words in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-P", "length=2"], "exactly one --policy"),
        (["--policy", "match", "--policy", "greedy", "-P", "length=2"], "exactly one --policy"),
        (["--policy", "match", "-P", "length"], "KEY=VALUE"),
        (["--policy", "threshold", "-P", "t=nan"], "finite"),
        (["--policy", "mtach"], "match"),
    ],
)
def test_wrong_options_are_usage_errors(tmp_path, words, said, capsys):
    path = Recorder(requests=1).write(tmp_path / "run.parquet")
    code, out, err = dflash("replay", path, *words, capsys=capsys)
    assert code == 2
    assert said in err
    assert out == ""


def test_a_parameter_may_be_set_apart(tmp_path, capsys):
    path = Recorder().write(tmp_path / "run.parquet")
    code, out, _ = dflash("replay", path, "--policy", "match", "-P", "length=1", "--json", capsys=capsys)
    assert code == 0
    assert json.loads(out)["runs"][0]["policies"][0]["policy"] == "match:length=1"


def test_several_runs_are_reported_one_by_one(tmp_path, capsys):
    one = Recorder().write(tmp_path / "one.parquet", run_id="one")
    two = Recorder("speculative", Proposal.INDEPENDENT).write(tmp_path / "two.parquet", run_id="two")
    code, out, _ = dflash("replay", one, two, "--check", "--json", capsys=capsys)
    assert code == 0
    assert [run["run_id"] for run in json.loads(out)["runs"]] == ["one", "two"]


def test_policies_lists_every_rule(root, capsys):
    schema = json.loads((root / "schemas" / "policies_v1.schema.json").read_text())
    code, out, _ = dflash("policies", "--json", capsys=capsys)
    assert code == 0
    document = json.loads(out)
    Draft202012Validator(schema).validate(document)
    for rule in document["rules"]:
        assert set(rule["columns"]) <= set(COLUMN)
    text = dflash("policies", capsys=capsys)[1]
    for rule in ("greedy", "match (default)", "speculative", "threshold"):
        assert rule in text


@pytest.mark.parametrize("words", [["replay", "--help"], ["replay", "{file}", "--check"], ["policies"]])
def test_nothing_heavy_is_imported(tmp_path, words):
    path = Recorder(requests=1).write(tmp_path / "run.parquet")
    program = (
        "import sys; from dflash.cli.main import run; code = run(sys.argv[1:]); "
        "heavy = {'torch', 'transformers', 'triton', 'scipy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    arguments = [word.format(file=path) for word in words]
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("requests", "tokens"), [(2, 1), (0, 9)])
def test_no_rounds_have_no_tau(tmp_path, requests, tokens, capsys):
    path = Recorder(requests=requests, max_new_tokens=tokens).write(tmp_path / "run.parquet")
    result = rejudged(path, "match", "speculative", check=True)
    assert result.check.passed
    assert [row.tau for row in result.rows] == [None, None]
    assert [row.interval for row in result.rows] == [None, None]
    assert [row.rounds for row in result.rows] == [0, 0]
    policies = ["--policy", "match", "--policy", "greedy"]
    words = ["replay", path, *policies, "--check", "-o", tmp_path / "v.parquet"]
    assert dflash(*words, capsys=capsys)[0] == 0
    assert dflash(*words, "--overwrite", "--json", capsys=capsys)[0] == 0
    assert pq.read_table(tmp_path / "v.parquet").num_rows == 0

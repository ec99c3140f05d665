from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_recorder
from jsonschema import Draft202012Validator
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.draftfile.run import open_run
from dflash.policy.context import Proposal, RuleContext
from dflash.policy.registry import parse_policy
from dflash.policy.rounds import Rounds
from dflash.replay.batch import batches
from dflash.replay.chances import _shared, chances
from dflash.replay.errors import DraftLawIncomplete, NoExpectation, NoIntegratedDrafts, StaticOnly
from dflash.replay.expect import Expect, expect_columns
from dflash.replay.expectation import expectation
from dflash.replay.run import replay

TOSSES = 4000


def expected(path, policy, kind=Expect.COINS):
    return expectation(open_run([path]).files, [parse_policy(policy)], kind).rows[0]


def first_part(path, policy):
    file = open_run([path]).files[0]
    columns = expect_columns([policy], file, Expect.COINS)
    batch = next(batches(file, columns))
    return batch.parts(batch.rounds(columns))[0]


def repeated(rounds: Rounds, times: int) -> Rounds:
    return rounds.take(np.tile(np.arange(len(rounds)), times))


@pytest.mark.parametrize(
    ("policy", "branches"),
    [
        ("speculative", 1),
        ("speculative", 3),
        ("block", 1),
        ("vllm-v1", 1),
        ("vllm-mrv2", 1),
        ("vllm-mrv2:method=block", 1),
        ("transformers", 1),
        ("sglang:method=chain", 1),
        ("sglang:method=block", 1),
        ("sglang", 1),
        ("sglang", 3),
        ("sglang:single=0.4,acc=0.8", 3),
        ("threshold:single=0.2,acc=0.5", 3),
        ("threshold:acc=0", 3),
        ("ensemble", 1),
        ("synthetic:rates=0.9/0.5/0.1", 1),
    ],
)
def test_chances_are_the_means_over_coins(tmp_path, policy, branches):
    """The rule decides the same rounds again and again, with coins of another generator."""
    masses = np.random.default_rng(3)

    def with_masses(rows):
        for row in rows:
            row["node_residual_mass"] = masses.random(len(row["node_token"])).astype(np.float32)

    recorder = Recorder("speculative", Proposal.INDEPENDENT, 0.8, 3, branches, requests=2, edit=with_masses)
    asked = parse_policy(policy)
    part = first_part(recorder.write(tmp_path / "run.parquet"), asked)
    tossed = np.random.default_rng(1)
    context: RuleContext = replace(
        part.context, coins=lambda rounds, _: tossed.random(len(rounds.node_parent))
    )
    rounds = part.rounds.take(np.arange(6))
    many = asked.rule.decide(repeated(rounds, TOSSES), context)
    mean = many.accepted.reshape(TOSSES, -1)
    exact = chances(asked.rule, rounds, part.context)
    error = np.sqrt(np.maximum(exact * (1 - exact), 1e-12) / TOSSES)
    assert (np.abs(mean.mean(axis=0) - exact) <= 5 * error + 1e-9).all()
    assert 0 < exact.mean() < 1


def test_a_shared_draft_is_chosen_as_often_as_races_on_one_noise_agree():
    random = np.random.default_rng(4)
    p, q = random.dirichlet(np.ones(6)), np.append(random.dirichlet(np.ones(4)), [0.0, 0.0])
    noise = random.exponential(size=(400_000, 6))
    with np.errstate(divide="ignore"):
        chosen, drafted = (noise / p).argmin(axis=1), (noise / q).argmin(axis=1)
    for token in range(4):
        mine = drafted == token
        share = (chosen[mine] == token).mean()
        stored, tail = np.array([p[:4]]), np.array([p[4:].sum()])
        exact = _shared(stored, q[None, :4], tail, np.array([token]))[0]
        assert abs(share - exact) < 5 * np.sqrt(exact * (1 - exact) / mine.sum()) + 1e-9


@pytest.mark.parametrize(
    ("policy", "proposal", "branches", "kind"),
    [
        ("match", Proposal.DETERMINISTIC, 2, Expect.COINS),
        ("match", Proposal.SHARED, 1, Expect.COINS),
        ("match", Proposal.SHARED, 1, Expect.DRAFTS),
        ("match", Proposal.INDEPENDENT, 1, Expect.DRAFTS),
        ("speculative", Proposal.INDEPENDENT, 2, Expect.COINS),
        ("speculative", Proposal.INDEPENDENT, 1, Expect.DRAFTS),
    ],
)
def test_the_expectation_is_what_is_played_with_less_noise(tmp_path, policy, proposal, branches, kind):
    path = Recorder("match", proposal, 0.8, 3, branches, requests=40).write(tmp_path / "run.parquet")
    row = expected(path, policy, kind)
    played = replay(open_run([path]).files, [parse_policy(policy)]).rows[0]
    assert row.rounds == played.rounds
    assert played.interval.low - 0.05 < row.tau < played.interval.high + 0.05
    assert row.interval.high - row.interval.low < played.interval.high - played.interval.low
    assert row.tau == pytest.approx(1 + sum(item.marginal for item in row.acceptance))


def test_without_coins_and_at_temperature_0_the_expectation_is_the_decision(tmp_path):
    sampled = Recorder("match", Proposal.SHARED, 0.8).write(tmp_path / "sampled.parquet")
    greedy = Recorder("match", Proposal.DETERMINISTIC, 0.0, 3, 2).write(tmp_path / "greedy.parquet")
    for path, policy in (
        (sampled, "threshold:t=0.4"),
        (sampled, "greedy"),
        (greedy, "match"),
        (greedy, "block"),
    ):
        row = expected(path, policy)
        played = replay(open_run([path]).files, [parse_policy(policy)]).rows[0]
        assert row.tau == pytest.approx(played.tau)
        assert [item.conditional for item in row.acceptance] == pytest.approx(
            [item.conditional for item in played.acceptance]
        )


def test_what_cannot_be_integrated_is_refused_and_says_what_to_record(tmp_path, monkeypatch):
    path = Recorder("match", Proposal.INDEPENDENT, 0.8).write(tmp_path / "run.parquet")
    tree = Recorder("match", Proposal.INDEPENDENT, 0.8, 3, 2).write(tmp_path / "tree.parquet")
    part = Recorder.header
    monkeypatch.setattr(Recorder, "header", lambda self: part(self) | {"q_complete": False})
    cut = Recorder("match", Proposal.INDEPENDENT, 0.8).write(tmp_path / "cut.parquet")
    with pytest.raises(NoExpectation, match="fly"):
        expected(path, "fly")
    with pytest.raises(NoIntegratedDrafts, match="branches=1"):
        expected(tree, "speculative", Expect.DRAFTS)
    with pytest.raises(NoIntegratedDrafts, match="more than one draft") as refused:
        expected(path, "block", Expect.DRAFTS)
    assert "branches=1" not in str(refused.value)
    with pytest.raises(DraftLawIncomplete, match="--draft-top-k"):
        expected(cut, "speculative", Expect.DRAFTS)
    with pytest.raises(StaticOnly, match="control=static"):
        expected(path, "match:control=window")


def test_another_temperature_is_answered_from_the_stored_logits(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_recorder, "TOPK", tiny_recorder.VOCAB)
    recorder = Recorder("match", Proposal.INDEPENDENT, 0.8)
    path = recorder.write(tmp_path / "run.parquet")
    chance, rounds = 0.0, 0
    for row in pq.read_table(path).to_pylist():
        if row["kind"] == 0:
            rounds, reach = rounds + 1, 1.0
            for before, token in zip(
                [row["anchor_token"], *row["node_token"]], row["node_token"], strict=False
            ):
                law = np.exp(recorder.target[before].astype(np.float64) / 1.3)
                reach *= law[token] / law.sum()
                chance += reach
    files = open_run([path]).files
    row = expectation(files, [parse_policy("match")], temperature=1.3).rows[0]
    assert row.tau == pytest.approx(1 + chance / rounds, abs=1e-6)
    same = expectation(files, [parse_policy("speculative")], temperature=0.8).rows[0]
    assert same.tau == expected(path, "speculative").tau


def test_another_temperature_is_refused_where_too_little_is_stored(tmp_path, capsys):
    path = Recorder("match", Proposal.INDEPENDENT, 0.8).write(tmp_path / "run.parquet")
    for policy, why in (
        ("match", "--store-topk"),
        ("typical", "slot_entropy"),
        ("block", "node_residual_mass"),
    ):
        assert run(["replay", str(path), "--expect", "--policy", policy, "--temperature", "2.5"]) == 2
        assert why in capsys.readouterr().err
    assert run(["replay", str(path), "--temperature", "2.5"]) == 2
    assert "--expect" in capsys.readouterr().err


def test_a_walk_that_was_not_recorded_is_refused(tmp_path, capsys):
    live = Recorder("match", Proposal.SHARED).write(tmp_path / "live.parquet")
    dense = Recorder("match", Proposal.INDEPENDENT, branches=2, dense=True).write(tmp_path / "dense.parquet")
    assert run(["replay", str(live), "--walk"]) == 2
    assert "--dense" in capsys.readouterr().err
    assert run(["replay", str(dense), "--walk", "--policy", "speculative"]) == 2
    assert "re-judge" in capsys.readouterr().err
    assert run(["replay", str(dense), "--walk", "--policy", "match"]) == 0


def test_the_command_prints_the_document_of_replay(tmp_path, capsys, root):
    path = Recorder("speculative", Proposal.INDEPENDENT, 0.8).write(tmp_path / "run.parquet")
    for words in (["--expect"], ["--expect", "drafts", "--policy", "match"]):
        assert run(["replay", str(path), "--json", *words]) == 0
        document = json.loads(capsys.readouterr().out)
        schema = json.loads((root / "schemas/replay_v1.schema.json").read_text())
        Draft202012Validator(schema).validate(document)
        assert document["runs"][0]["policies"][0]["exactness"].startswith("expectation")
    assert run(["replay", str(path), "--expect", "coins", "--check"]) == 2
    assert "leave out --check" in capsys.readouterr().err

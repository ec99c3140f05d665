"""The audit passes what `dflash record` leaves, and says what it tested, how well, and what it could not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from audit_runs import audited, failed, foreign, rewritten, untested, verdict
from jsonschema import Draft202012Validator
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.drafters.base import ProposalKind
from dflash.drafters.fan import Fan
from dflash.engine.prompts.files import text_prompt
from dflash.policy.context import Proposal

HONEST = {
    "greedy": {"drafter": "ngram", "branches": 3, "dense": True},
    "drafts without a law": {"drafter": "ngram", "branches": 3, "temperature": 0.8},
    "shared, cool": {"temperature": 0.3, "branches": 2},
    "shared, dense, cut": {"temperature": 1.4, "top_k": 12, "top_p": 0.9, "dense": True},
    "independent tree": {"temperature": 0.8, "policy": "speculative", "branches": 4, "fan": Fan((2, 2))},
    "independent chain, hot": {"temperature": 1.3, "policy": "speculative", "draft_top_p": 0.9},
    "block": {"temperature": 1.1, "policy": "block"},
    "block, dense, cut beyond what is stored": {
        **{"temperature": 1.0, "policy": "block", "drafter": "self", "dense": True},
        **{"top_k": 30, "top_p": 0.95},
    },
    "another draft temperature": {"temperature": 1.0, "policy": "speculative", "draft_temperature": 0.05},
    "match on independent drafts": {"temperature": 1.0, "proposal": ProposalKind.INDEPENDENT},
    "nearly greedy": {"temperature": 0.001, "branches": 2, "policy": "speculative"},
}


@pytest.mark.parametrize("settings", HONEST.values(), ids=HONEST)
def test_honest_files_pass(recorded, settings):
    found = audited(recorded(**settings))
    assert failed(found) == set(), found.to_dict()
    assert found.passed
    looked = {each.probe for each in found.verdicts} - untested(found)
    assert {"decisions", "mass", "target law", "draft law", "residuals", "emitted tokens"} <= looked
    assert ({"prefixes", "trunk"} <= looked) == bool(settings.get("dense"))
    sampled = settings.get("temperature", 0) > 0
    assert ("choices" in looked) == sampled
    assert ("draws" in looked) == (sampled and settings.get("drafter") != "ngram")


THINNED = {
    "a tree cut by its drafts": ({"policy": "match:nodes=3", "branches": 4, "fan": Fan((2, 2))}, "draws"),
    "the same, dense": (
        {"policy": "match:nodes=3", "branches": 4, "fan": Fan((2, 2)), "dense": True},
        "lean",
    ),
    "a chain cut by its drafts": ({"policy": "match:confidence=0.5", "drafter": "self"}, "drafted tokens"),
    "a union": ({"drafter": "self+ngram", "branches": 2}, "draws"),
    "an adaptive control": ({"policy": "match:control=window", "branches": 2}, "independence"),
}


@pytest.mark.parametrize(("settings", "silent"), THINNED.values(), ids=THINNED)
def test_drafts_that_are_no_fair_sample_accuse_nobody(recorded, settings, silent):
    found = audited(recorded(temperature=1.2, **settings))
    assert failed(found) == set(), found.to_dict()
    assert silent in untested(found)
    assert verdict(found, silent).reasons


def test_requests_of_several_temperatures_pass(recorded):
    asked = []
    for number, temperature in enumerate([0.0, 0.7, 1.1, 0.7]):
        prompt = text_prompt(f"Say it again {number}")
        asked.append(replace(prompt, temperature=temperature))
    found = audited(recorded(temperature=0.7, policy="speculative", prompts=asked))
    assert failed(found) == set()
    assert "choices" not in untested(found)


@pytest.mark.parametrize(
    "name",
    ["conversation", "dense-ngram-tree", "dense-self", "ngram-chain", "ngram-tree", "quant-int8"]
    + ["quant-none", "self-match", "self-speculative"],
)
def test_sample_runs_pass(root, name):
    assert audited(root / "sample_runs" / f"{name}.parquet").passed


def test_what_was_not_tested_has_a_reason(recorded):
    found = audited(recorded(drafter="ngram", branches=3, temperature=0.8))
    for name in untested(found):
        assert verdict(found, name).reasons, name
        assert verdict(found, name).places == 0
    assert "--dense" in verdict(found, "prefixes").reasons[0]


def test_incomplete_q_is_named(recorded):
    found = audited(recorded(temperature=1.0, draft_top_k=0, policy="speculative"))
    assert found.passed
    for name in ("draft law", "draws", "drafted tokens", "independence"):
        assert name in untested(found)
        assert "--draft-top-k" in verdict(found, name).reasons[0]


def test_another_generator_leaves_statistics_and_the_stored_numbers(recorded, tmp_path):
    honest = recorded(temperature=0.8, policy="speculative", branches=4, fan=Fan((2, 2)))
    found = audited(rewritten(honest, tmp_path / "foreign.parquet", header=foreign))
    assert found.passed
    assert {"choices", "draws", "residuals"} <= untested(found)
    for name in ("mass", "target law", "draft law", "emitted tokens", "drafted tokens", "independence"):
        assert name not in untested(found)


def test_power_is_stated_for_every_probe_that_looked(recorded):
    found = audited(recorded(temperature=0.8, policy="speculative", branches=4, fan=Fan((2, 2))))
    for each in found.verdicts:
        assert bool(each.power) == bool(each.places), each.probe
        for rate in each.rates:
            assert 0 < rate.detectable < 1
    emitted = verdict(found, "emitted tokens")
    assert emitted.distance is not None
    assert emitted.distance < 5 * emitted.sampling_error
    assert sum(rate.found for rate in emitted.rates) == pytest.approx(1)
    assert "Holm" in found.correction


def test_the_command_prints_text_and_a_document(recorded, root, capsys):
    path = str(recorded(temperature=0.8, policy="speculative", branches=4, fan=Fan((2, 2))))
    assert run(["replay", path, "--audit", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    schema = json.loads((root / "schemas" / "replay_audit_v1.schema.json").read_text())
    Draft202012Validator(schema).validate(document)
    assert document["runs"][0]["false_alarms"] == 0.001
    assert run(["replay", path, "--audit"]) == 0
    said = capsys.readouterr().out
    for words in ("audit passed", "not tested", "record with --dense", "nine files of ten", "Holm"):
        assert words in said


def test_a_failed_audit_exits_1(recorded, tmp_path, capsys):
    def spoil(row):
        row["slot_lse_p"] = [value - 0.5 for value in row["slot_lse_p"]]

    path = rewritten(recorded(temperature=0.3, branches=2), tmp_path / "wrong.parquet", spoil)
    assert run(["replay", str(path), "--audit"]) == 1
    assert "audit FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--check"], ["--policy", "match"], ["-o", "x.parquet"], ["--rejudge"]])
def test_other_questions_are_refused(root, words, capsys):
    assert run(["replay", str(root / "sample_runs" / "ngram-chain.parquet"), "--audit", *words]) == 2
    assert words[0].lstrip("-")[0] in capsys.readouterr().err


def test_pieces_and_their_size_change_nothing(recorded, monkeypatch):
    path = recorded(temperature=0.8, policy="speculative", branches=4, fan=Fan((2, 2)))
    whole = audited(path)
    monkeypatch.setattr("dflash.replay.audit.evidence._ROWS", 1)
    pieces = audited(path)
    for one, other in zip(whole.verdicts, pieces.verdicts, strict=True):
        assert (one.status, one.places, one.near_ties) == (other.status, other.places, other.near_ties)
        assert one.p_value == pytest.approx(other.p_value)


def test_a_run_without_requests_tests_nothing(tmp_path):
    found = audited(Recorder(requests=0).write(tmp_path / "empty.parquet"))
    assert found.passed
    assert untested(found) == {each.probe for each in found.verdicts}
    assert all(each.reasons for each in found.verdicts)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("policy", ["match", "speculative"])
def test_another_honest_recorder_passes(tmp_path, temperature, policy):
    """A decoder of a few lines that shares nothing with the engine but the noise and the file."""
    kind = Proposal.INDEPENDENT if policy == "speculative" else Proposal.SHARED
    recorder = Recorder(policy, kind, temperature, branches=2, requests=6, dense=policy == "match")
    found = audited(recorder.write(tmp_path / "run.parquet"))
    assert found.passed, found.to_dict()


@pytest.mark.slow
def test_many_honest_runs_raise_hardly_an_alarm(tmp_path):
    """Whole audits at a rate of one in ten: at most nine of forty runs, which is three deviations more."""
    alarms = 0
    for seed in range(40):
        kind = Proposal.INDEPENDENT if seed % 2 else Proposal.SHARED
        policy = "speculative" if seed % 2 else "match"
        temperature = 0.3 + 0.06 * (seed // 2)
        recorder = Recorder(policy, kind, temperature, branches=1 + seed % 3, seed=seed)
        found = audited(recorder.write(tmp_path / f"{seed}.parquet"), false_alarms=0.1)
        statistical = {each.probe for each in found.verdicts if each.p_value is not None}
        assert failed(found) <= statistical, found.to_dict()
        alarms += not found.passed
    assert alarms <= 9

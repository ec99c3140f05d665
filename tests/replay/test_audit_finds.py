"""The audit finds what was made wrong on purpose: in stored rows, in headers, and by faults in the engine."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from audit_runs import audited, by_slot, expanded, failed, foreign, rewritten, untested, verdict
from draft_runs import prompts, record

from dflash.drafters.base import ProposalKind
from dflash.drafters.fan import Fan
from dflash.policy.noise import target_exponentials

TREE = {"temperature": 0.8, "policy": "speculative", "branches": 4, "fan": Fan((2, 2))}
CHAIN = {"temperature": 0.8, "policy": "speculative"}
DENSE = {"temperature": 1.4, "top_k": 12, "top_p": 0.9, "dense": True}


def fresh(folder):
    """A path that nothing was written to."""
    return folder / f"{len(list(folder.iterdir()))}.parquet"


def spoiled(recorded, tmp_path, settings, row=lambda row: None, header=lambda header: None):
    return audited(rewritten(recorded(**settings), fresh(tmp_path), row, header))


def raw_q(row):
    """log q by the raw draft logits, before temperature and top-k."""
    logits, tokens = expanded(row, "draft_topk_logit"), expanded(row, "draft_topk_token")
    for node, parent in enumerate(row["node_parent"]):
        place = tokens[parent + 1].index(row["node_token"][node])
        row["node_logq"][node] = logits[parent + 1][place] - row["draft_lse"][parent + 1]


def test_q_of_raw_logits_is_not_the_sampling_law(recorded, tmp_path):
    found = spoiled(recorded, tmp_path, CHAIN, raw_q)
    assert "draft law" in failed(found)
    assert "raw draft logits" in verdict(found, "draft law").causes[0]
    assert "draws" not in failed(found)


def shift_slots(row):
    if row["node_token"]:
        for name in [name for name in row if name.startswith("slot_")]:
            row[name] = np.roll(by_slot(row, name), 1, axis=0).ravel().tolist()


def shift_choices(row):
    row["slot_choice"] = np.roll(row["slot_choice"], 1).tolist()
    row["slot_choice_logit"] = np.roll(row["slot_choice_logit"], 1).tolist()


def shift_nodes(row):
    for name in ("node_logp", "node_target_logit"):
        row[name] = np.roll(row[name], 1).tolist()


@pytest.mark.parametrize("shift", [shift_slots, shift_choices, shift_nodes])
def test_shifted_slots(recorded, tmp_path, shift):
    found = spoiled(recorded, tmp_path, CHAIN, shift)
    assert failed(found) & {"target law", "choices"}
    dense = spoiled(recorded, tmp_path, DENSE, shift)
    assert failed(dense) & {"target law", "choices"}
    assert ("prefixes" in failed(dense)) == (shift is shift_slots)


def lse_too_small(row):
    row["slot_lse_p"] = [value - 0.5 for value in row["slot_lse_p"]]


def log_p_over_zero(row):
    row["node_logp"] = [0.2 for _ in row["node_logp"]]


def raw_lse_too_small(row):
    row["slot_lse"] = [value - 0.5 for value in row["slot_lse"]]


def draft_lse_too_small(row):
    row["draft_lse"] = [None if value is None else value - 0.5 for value in row["draft_lse"]]


def mass_above_one(row):
    row["node_mass_above"] = [1.0 for _ in row["node_mass_above"]]


def residual_over_one(row):
    row["node_residual_mass"] = [1.5 for _ in row["node_residual_mass"]]


MASSES = [
    lse_too_small,
    log_p_over_zero,
    raw_lse_too_small,
    draft_lse_too_small,
    mass_above_one,
    residual_over_one,
]


@pytest.mark.parametrize("spoil", MASSES)
def test_probabilities_over_one(recorded, tmp_path, spoil):
    assert "mass" in failed(spoiled(recorded, tmp_path, CHAIN, spoil))


def test_p_of_raw_logits_is_not_the_sampling_law(recorded, tmp_path):
    """p at temperature 1 where the header says 0.8: its own sums agree, the raw sum does not."""

    def raw(row):
        row["slot_lse_p"] = row["slot_lse"]
        for node, parent in enumerate(row["node_parent"]):
            row["node_logp"][node] = row["node_target_logit"][node] - row["slot_lse"][parent + 1]

    assert "target law" in failed(spoiled(recorded, tmp_path, CHAIN, raw))


@pytest.mark.parametrize("column", ["trunk_logp", "trunk_logq"])
def test_a_trunk_law_of_the_position_before(recorded, tmp_path, column):
    last = []

    def late(row):
        if row["kind"] == 1:
            own, row[column] = row[column], last.pop() if last else row[column]
            last.append(own)

    assert failed(spoiled(recorded, tmp_path, DENSE, late)) == {"trunk"}


def unscaled(row):
    """Residual masses of max(0, p - q), the ratio of the path left out."""
    tokens, logits = expanded(row, "draft_topk_token"), expanded(row, "draft_topk_logit")
    target = expanded(row, "draft_topk_target_logit")
    for node, parent in enumerate(row["node_parent"]):
        slot = parent + 1
        q = np.exp(np.array(logits[slot][:8]) / 0.8)
        p = np.exp(np.array(target[slot]) / 0.8 - row["slot_lse_p"][slot])
        rest = np.maximum(0, p[:8] - q / q.sum()).sum() + p[8:].sum() + max(0.0, 1 - p.sum())
        assert row["node_token"][node] in tokens[slot]
        row["node_residual_mass"][node] = float(rest)


def test_an_unscaled_residual(recorded, tmp_path):
    found = spoiled(recorded, tmp_path, CHAIN, unscaled)
    assert failed(found) == {"residuals"}
    assert "not scaled" in verdict(found, "residuals").causes[0]


def another_replacement(row):
    """The target's own choice in place of a draw from the residual."""
    for node, parent in enumerate(row["node_parent"]):
        row["node_residual_token"][node] = row["slot_choice"][parent + 1]


def test_a_replacement_that_is_no_draw_from_the_residual(recorded, tmp_path):
    found = spoiled(recorded, tmp_path, TREE, another_replacement)
    assert "residuals" in failed(found)
    assert verdict(found, "residuals").listed[0].what == "node_residual_token"


def label(rule):
    return lambda header: header["policy"].update({"rule": {"name": rule}})


def test_a_per_token_test_labelled_block(recorded, tmp_path):
    found = spoiled(recorded, tmp_path, CHAIN, header=label("block"))
    assert {"decisions", "residuals"} <= failed(found)
    assert any("speculative" in cause for cause in verdict(found, "decisions").causes)


def test_a_per_token_test_in_the_engine_that_says_block(audit_models, tmp_path, monkeypatch):
    from dflash.policy.block import Block
    from dflash.policy.speculative import Speculative

    def decide(self, rounds, context):
        return Speculative().decide(rounds, replace(context, recorded_rule="speculative"))

    with monkeypatch.context() as wrong:
        wrong.setattr(Block, "decide", decide)
        path = fault(audit_models, tmp_path, temperature=0.8, policy="block", count=5)
    found = audited(path)
    assert failed(found) == {"decisions"}
    assert verdict(found, "decisions").causes == ("speculative accepts what was accepted in every round",)


def test_replacements_from_an_unscaled_residual_under_block(audit_models, tmp_path, monkeypatch):
    """Only the draws are wrong: the masses, and so the decisions, are those of block verification."""
    from dflash.engine import residual

    draw = residual.block_residual_token
    monkeypatch.setattr(residual, "block_residual_token", lambda capped, *rest: draw(1.0, *rest))
    found = audited(fault(audit_models, tmp_path, temperature=1.1, policy="block", count=5))
    assert failed(found) == {"residuals"}
    assert {fault.what for fault in verdict(found, "residuals").listed} == {"node_residual_token"}


def test_a_lossy_rule_labelled_lossless(recorded, tmp_path):
    lossy = {"drafter": "ngram", "temperature": 0.8, "policy": "threshold:t=0.15", "prompts": prompts(8)}
    honest = audited(recorded(**lossy))
    assert failed(honest) == set()
    assert "lossy" in verdict(honest, "emitted tokens").reasons[0]
    found = spoiled(recorded, tmp_path, lossy, header=label("match"))
    assert {"decisions", "lean"} <= failed(found)
    rate = verdict(found, "lean").rates[0]
    assert rate.found > rate.expected + rate.detectable / 2


def fault(audit_models, tmp_path, **given):
    """Record under a fault that the test has put into the engine."""
    target, fair = audit_models
    settings = {"drafter": fair, "length": 3, "branches": 1, "max_new_tokens": 20, **given}
    return record(target, prompts(settings.pop("count", 3)), fresh(tmp_path), **settings)


def test_draft_noise_that_is_the_targets(audit_models, tmp_path, monkeypatch):
    def shared(key, anchor, depth, path, vocabulary):
        return target_exponentials(key, anchor + depth, vocabulary)

    monkeypatch.setattr("dflash.drafters.drawing.draft_exponentials", shared)
    settings = {"temperature": 1.5, "length": 1, "policy": "speculative"}
    path = fault(audit_models, tmp_path, count=6, drafter="self", **settings)
    found = audited(path)
    assert failed(found) >= {"draws", "independence"}
    assert "the noise of the target's choices" in verdict(found, "draws").causes[0]
    # without its generator the coincidence alone tells
    other = audited(rewritten(path, fresh(tmp_path), header=foreign))
    assert "draws" in untested(other)
    assert failed(other) == {"independence"}


def test_shared_drafts_on_noise_of_their_own(recorded, tmp_path):
    honest = {"temperature": 1.0, "proposal": ProposalKind.INDEPENDENT}

    def relabel(header):
        header["drafters"][0]["proposal"] = "shared"

    found = spoiled(recorded, tmp_path, honest, header=relabel)
    assert failed(found) == {"draws"}
    assert "noise of their own" in verdict(found, "draws").causes[0]


def test_draws_from_raw_logits(audit_models, tmp_path, monkeypatch):
    from dflash.drafters import drawing
    from dflash.policy.context import DraftSampling

    law = drawing.ranked_law
    monkeypatch.setattr(
        drawing, "ranked_law", lambda tokens, logits, sampling: law(tokens, logits, DraftSampling(1.0))
    )
    found = audited(fault(audit_models, tmp_path, temperature=0.4, policy="speculative"))
    assert {"draft law", "draws"} <= failed(found)
    assert any("raw draft logits" in cause for cause in verdict(found, "draws").causes)


def test_logits_of_the_slot_before(audit_models, tmp_path, monkeypatch):
    """Every number of a slot is another slot's: only a prefix that is scored twice can tell."""
    from dflash.engine.judge import Judge

    law = Judge._law

    def late(self, anchor, proposal, logits, sampling):
        rows = torch.clamp(torch.arange(len(logits)) - 1, min=0)
        return law(self, anchor, proposal, logits[rows], sampling)

    monkeypatch.setattr(Judge, "_law", late)
    settings = {"drafter": "ngram", "temperature": 0.8}
    dense = audited(fault(audit_models, tmp_path, dense=True, **settings))
    assert "prefixes" in failed(dense)
    live = audited(fault(audit_models, tmp_path, **settings))
    assert "prefixes" in untested(live)
    assert "--dense" in verdict(live, "prefixes").reasons[0]


def test_emitted_tokens_that_do_not_follow_p(audit_models, tmp_path, monkeypatch):
    """A greedy target that calls itself sampling: its race never looks at the noise."""
    from dflash.target import statistics

    race = statistics.race
    monkeypatch.setattr(statistics, "race", lambda scaled, noise: race(scaled, torch.zeros_like(noise)))
    path = fault(audit_models, tmp_path, drafter="ngram", temperature=1.2, max_new_tokens=48, count=4)
    found = audited(path)
    assert {"choices", "emitted tokens"} <= failed(found)
    other = audited(rewritten(path, fresh(tmp_path), header=foreign))
    assert failed(other) == {"emitted tokens", "lean"}
    emitted = verdict(other, "emitted tokens")
    assert emitted.distance > 3 * emitted.sampling_error
    assert emitted.p_value < 1e-3 / 4


def test_a_token_without_probability_is_refused_once(recorded, tmp_path):
    """One token at temperature 0 that is not the choice."""
    done = []

    def swap(row):
        if row["kind"] == 2 and not done:
            done.append(row["bonus_token"])
            row["bonus_token"] = (row["bonus_token"] + 1) % 200

    found = spoiled(recorded, tmp_path, {"drafter": "ngram", "branches": 3, "dense": True}, swap)
    assert {"decisions", "emitted tokens"} <= failed(found)
    assert verdict(found, "emitted tokens").listed[0].found == str((done[0] + 1) % 200)


def test_drafts_that_do_not_follow_q(audit_models, tmp_path, monkeypatch):
    """Without its generator, a drafter that always takes its favourite is betrayed by its ranks."""
    from dflash.drafters import drawing

    draw = drawing.draw
    monkeypatch.setattr(drawing, "draw", lambda law, noise, count: draw(law, 0 * noise, count))
    path = fault(audit_models, tmp_path, temperature=1.5, proposal=ProposalKind.INDEPENDENT, count=5)
    found = audited(path)
    assert "draws" in failed(found)
    assert any("largest draft logits" in cause for cause in verdict(found, "draws").causes)
    other = audited(rewritten(path, fresh(tmp_path), header=foreign))
    assert failed(other) == {"drafted tokens"}


def test_a_fault_is_listed_with_its_place(recorded, tmp_path):
    found = spoiled(recorded, tmp_path, CHAIN, shift_nodes)
    fault = verdict(found, "target law").listed[0]
    assert fault.file.endswith(".parquet")
    assert fault.what == "node_target_logit"
    assert fault.row.startswith(("live", "dense"))
    assert fault.place.startswith("node")
    assert not math.isclose(float(fault.expected), float(fault.found))

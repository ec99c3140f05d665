"""Every number of a row against plain forwards and transformers' own logits processors, none of our code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

CASES = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.4, "top_k": 12},
    {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 1.2, "top_k": 20, "top_p": 0.9},
]


def logits_after(target, tokens):
    with torch.inference_mode():
        return target.model(torch.tensor([tokens])).logits[0, -1].double()


def processed(logits, temperature, top_k=0, top_p=1.0):
    """log p after temperature, top-k, top-p, in transformers' order; one-hot at temperature 0."""
    if temperature == 0:
        best = int((logits == logits.max()).nonzero()[0])
        return torch.full_like(logits, -math.inf).index_fill(0, torch.tensor(best), 0.0)
    scores = TemperatureLogitsWarper(temperature)(None, logits[None])
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return torch.log_softmax(scores[0], -1)


def trunks(rows):
    """Each row with the tokens before and at its anchor."""
    trunk = []
    for row in rows:
        if row["kind"] == 2:
            trunk = list(row["prompt_tokens"])
        yield row, list(trunk)
        path = [row["node_token"][node] for node in row["accepted_nodes"]]
        trunk += [*path, row["bonus_token"]][: row["emitted"]]


def prefixes(row, trunk):
    """Token prefix of every slot, anchor first."""
    lines = [trunk]
    for token, parent in zip(row["node_token"], row["node_parent"], strict=True):
        lines.append([*lines[parent + 1], token])
    return lines


@pytest.mark.parametrize("sampling", CASES, ids=str)
@pytest.mark.parametrize("drafter", ["ngram", "self"])
def test_target_columns_are_what_plain_forwards_say(tiny, record, drafter, sampling):
    rows = record(tiny, ["abc abc"], drafter=drafter, length=3, branches=2, max_new_tokens=14, **sampling)
    for row, trunk in trunks(rows):
        assert row["anchor_position"] == len(trunk) - 1
        assert row["anchor_token"] == trunk[-1]
        slots = [logits_after(tiny, line) for line in prefixes(row, trunk)]
        for slot, raw in enumerate(slots):
            check_slot(row, slot, raw, sampling)
        for node, parent in enumerate(row["node_parent"]):
            check_node(row, node, slots[parent + 1], sampling)


def check_slot(row, slot, raw, sampling):
    close = {"abs": 2e-4, "rel": 1e-4}
    log_p = processed(raw, **sampling)
    assert row["slot_argmax"][slot] == int(raw.argmax())
    assert row["slot_lse"][slot] == pytest.approx(float(torch.logsumexp(raw, -1)), **close)
    choice = row["slot_choice"][slot]
    assert row["slot_choice_logit"][slot] == pytest.approx(float(raw[choice]), **close)
    assert log_p[choice] > -math.inf
    top = raw.topk(16)
    stored = slice(slot * 16, slot * 16 + 16)
    assert row["slot_topk_token"][stored] == top.indices.tolist()
    assert row["slot_topk_logit"][stored] == pytest.approx(top.values.tolist(), **close)
    judged = torch.log_softmax(raw, -1) if sampling["temperature"] == 0 else log_p
    entropy = float(-(judged.exp() * judged.masked_fill(judged == -math.inf, 0)).sum())
    assert row["slot_entropy"][slot] == pytest.approx(entropy, abs=2e-4)
    kept = log_p > -math.inf
    if sampling["temperature"] == 0:
        assert choice == int(raw.argmax())
        assert row["slot_gap"][slot] == pytest.approx(float(top.values[0] - top.values[1]), abs=4e-4)
        assert row["slot_cutoff"][slot] == -math.inf
        assert row["slot_lse_p"][slot] is None
    else:
        scaled = (raw / sampling["temperature"]).masked_fill(~kept, -math.inf)
        assert row["slot_lse_p"][slot] == pytest.approx(float(torch.logsumexp(scaled, -1)), **close)
        if kept.all():
            assert row["slot_cutoff"][slot] == -math.inf
            assert row["slot_cut_gap"][slot] is None
        else:
            assert row["slot_cutoff"][slot] == pytest.approx(float(raw[kept].min()), **close)
            distance = float(raw[kept].min() - raw[~kept].max())
            assert 0 <= row["slot_cut_gap"][slot] <= distance + 4e-4


def check_node(row, node, raw, sampling):
    token = row["node_token"][node]
    log_p = processed(raw, **sampling)
    judged = torch.log_softmax(raw, -1) if sampling["temperature"] == 0 else log_p
    assert row["node_target_logit"][node] == pytest.approx(float(raw[token]), abs=2e-4)
    stored, expected = row["node_logp"][node], float(log_p[token])
    assert stored == expected if expected == -math.inf else stored == pytest.approx(expected, abs=4e-4)
    above = float(judged[raw > raw[token]].exp().sum())
    assert row["node_mass_above"][node] == pytest.approx(above, abs=2e-4)


@pytest.mark.parametrize("kind", ["shared", "independent"])
def test_draft_columns_are_a_law_and_residuals_follow_from_it(tiny, record, kind):
    """q from the stored draft logits alone; residual mass from q and plain target forwards."""
    from dflash.drafters.base import ProposalKind

    rows = record(
        tiny,
        ["abc abc"],
        drafter="self",
        policy="speculative" if kind == "independent" else "match",
        proposal=ProposalKind(kind),
        temperature=0.9,
        length=3,
        branches=3,
        max_new_tokens=16,
    )
    live = [(row, trunk) for row, trunk in trunks(rows) if row["kind"] == 0]
    assert len(live) > 3
    for row, trunk in live:
        slots = [logits_after(tiny, line) for line in prefixes(row, trunk)]
        check_draft(row, slots)


def check_draft(row, slots):
    expanded = [slot for slot, lse in enumerate(row["draft_lse"]) if lse is not None]
    parents = row["node_parent"]
    ratio = {-1: 1.0}
    for slot in expanded:
        where = slice(16 * expanded.index(slot), 16 * expanded.index(slot) + 16)
        tokens, logits = row["draft_topk_token"][where], np.array(row["draft_topk_logit"][where])
        target = [float(slots[slot][token]) for token in tokens]
        assert row["draft_topk_target_logit"][where] == pytest.approx(target, abs=2e-4)
        q = np.zeros(len(slots[slot]))
        q[tokens[:8]] = np.exp(logits[:8] / 0.9) / np.exp(logits[:8] / 0.9).sum()
        p = torch.softmax(slots[slot] / 0.9, -1).numpy()
        for node in [node for node, parent in enumerate(parents) if parent == slot - 1]:
            token = row["node_token"][node]
            assert row["node_logq"][node] == pytest.approx(math.log(q[token]), abs=1e-4)
            mass = np.maximum(0, ratio[slot - 1] * p - q).sum()
            assert row["node_residual_mass"][node] == pytest.approx(mass, abs=1e-4)
            assert row["node_margin"][node] == pytest.approx(logits[0] - logits[1], abs=1e-4)
            assert tokens[row["node_rank"][node]] == token
            ratio[node] = min(1.0, ratio[slot - 1] * p[token] / q[token])
            q[token] = 0.0
            q /= q.sum()

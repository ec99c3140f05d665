"""Recorded block drafts against an independent oracle, which also makes every known mistake once."""

from __future__ import annotations

import block_models
import draft_runs
import numpy as np
import pytest
import torch
from block_oracle import TRAPS, Oracle

TOKENS = 7
SHARED = ("tap off by one", "slot shift", "no fused norm", "no head norms", "input norm on context")
ALWAYS = (*SHARED, "sees the anchor's taps", "positions from zero", "no final norm")
SEEN = {
    "dflash": (*ALWAYS, "no window", "not causal", "all causal"),
    "dflash-wide": (*SHARED[:4], "no window", "all causal", "no soft-cap"),
    "dflash2": (*SHARED, "no window", "token before ignored", "no convolution", "filters swapped"),
    "dspark": (*ALWAYS, "all causal", "token before ignored"),
    "dspark-gated": ("token before ignored",),
    "dspark-rnn": ("token before ignored",),
}


@pytest.fixture(scope="module")
def drafted(tiny, tmp_path_factory):
    """By kind and temperature: the folder of a random drafter and the dense rows of its drafts."""
    made = {}

    def get(kind, temperature=0.0):
        if (kind, temperature) not in made:
            folder = tmp_path_factory.mktemp("drafters") / kind
            model = block_models.drafter(tiny.model, kind)
            block_models.write_block(model, folder, 2)
            path = draft_runs.record(
                tiny,
                draft_runs.prompts(1),
                folder / "run.parquet",
                drafter=block_models.named(kind, folder),
                length=model.config.drafts,
                branches=1,
                dense=True,
                max_new_tokens=TOKENS,
                temperature=temperature,
            )
            made[kind, temperature] = folder, draft_runs.rows(path)
        return made[kind, temperature]

    return get


@pytest.fixture
def view(tiny, drafted):
    """An oracle, the dense rows, and the target's hidden states over the whole trunk by one plain forward."""

    def get(kind, trap=None, temperature=0.0):
        folder, table = drafted(kind, temperature)
        (trunk,) = draft_runs.trunks(table).values()
        with torch.inference_mode():
            states = tiny.model(torch.tensor([trunk]), output_hidden_states=True).hidden_states
        embedding, head = (
            part.weight.double().numpy()
            for part in (tiny.model.get_input_embeddings(), tiny.model.get_output_embeddings())
        )
        oracle = Oracle(folder, embedding, head, trap)
        return oracle, [row for row in table if row["kind"] == 1], [s[0].double().numpy() for s in states]

    return get


def worst(oracle, rows, states):
    """Largest distance of a stored draft logit from the oracle's."""
    found = 0.0
    for row in rows:
        before = [row["anchor_token"], *row["node_token"][:-1]]
        logits = oracle.logits(states, row["anchor_position"], before)
        tokens = np.array(row["draft_topk_token"]).reshape(len(before), -1)
        stored = np.array(row["draft_topk_logit"]).reshape(len(before), -1)
        for slot, mine in enumerate(logits):
            found = max(found, float(np.abs(mine[tokens[slot]] - stored[slot]).max()))
            lse = np.logaddexp.reduce(mine[np.isfinite(mine)])
            found = max(found, abs(float(lse) - row["draft_lse"][slot]))
    return found


@pytest.mark.parametrize("kind", SEEN)
def test_draft_logits_are_the_oracles(view, kind):
    oracle, rows, states = view(kind)
    assert len(rows) == TOKENS - 1
    assert worst(oracle, rows, states) < 2e-4
    for row in rows:
        before = [row["anchor_token"], *row["node_token"][:-1]]
        logits = oracle.logits(states, row["anchor_position"], before)
        assert row["node_token"] == logits.argmax(-1).tolist()
        expected = oracle.confidence(states, row["anchor_position"], before)
        stored = row["node_confidence"]
        assert stored == (
            [None] * len(before) if expected is None else pytest.approx(expected[: len(before)], abs=1e-5)
        )


@pytest.mark.parametrize(("kind", "trap"), [(kind, trap) for kind, traps in SEEN.items() for trap in traps])
def test_every_trap_would_be_seen(view, kind, trap):
    oracle, rows, states = view(kind, trap)
    assert worst(oracle, rows[-1:], states) > 5e-3


def test_no_trap_is_left_out():
    assert {trap for traps in SEEN.values() for trap in traps} == set(TRAPS)


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_q_is_the_law_that_tokens_were_drawn_from(view, kind):
    """log q is of the processed logits, not of the raw ones (transformers#47932)."""
    oracle, rows, states = view(kind, temperature=0.8)
    for row in rows:
        before = [row["anchor_token"], *row["node_token"][:-1]]
        for slot, raw in enumerate(oracle.logits(states, row["anchor_position"], before)):
            best = np.argsort(-raw)[:8]
            law = raw[best] / 0.8 - np.logaddexp.reduce(raw[best] / 0.8)
            drawn = law[best == row["node_token"][slot]]
            assert row["node_logq"][slot] == pytest.approx(float(drawn[0]), abs=1e-4)
            finite = raw[np.isfinite(raw)]
            wrong = float(raw[row["node_token"][slot]] - np.logaddexp.reduce(finite))
            assert abs(wrong - row["node_logq"][slot]) > 1e-3

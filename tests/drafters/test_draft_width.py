"""How many tokens a slot can be drawn from: header, run and replay agree, whatever bounds the width."""

from __future__ import annotations

import block_models
import draft_runs
import numpy as np
import pytest

from dflash.cli.main import run
from dflash.draftfile.reader import open_draft_file
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.policy.context import context_from_header
from dflash.policy.errors import IncompleteDraftLaw

TEMPERATURE = 0.8
# DFlash 2 draws from 16 candidates at most, the others from 256 tokens
CANDIDATES = {"dflash": None, "dflash2": 16, "dspark": None, "dspark-rnn": None, "model": None}


@pytest.fixture(scope="module")
def places(tiny, other_folder, tmp_path_factory):
    """What `--drafter` calls a drafter of each kind."""
    found = {"model": f"model:{other_folder}"}
    for kind in set(CANDIDATES) - {"model"}:
        folder = tmp_path_factory.mktemp("drafters") / kind
        block_models.write_block(block_models.drafter(tiny.model, kind), folder, 2)
        found[kind] = block_models.named(kind, folder)
    return found


@pytest.fixture
def session(tiny, tmp_path):
    def opened(name, **given):
        chosen = {"length": 3, "branches": 1, "temperature": TEMPERATURE, "policy": "speculative"} | given
        return draft_runs.session(tiny, tmp_path / "run.parquet", drafter=name, **chosen)

    return opened


@pytest.mark.parametrize("top_k", [0, 8, 16, 40])
@pytest.mark.parametrize("kind", CANDIDATES)
def test_the_header_knows_whether_q_is_stored_whole(session, places, kind, top_k):
    width = min((each for each in (CANDIDATES[kind], top_k) if each), default=None)
    made = session(places[kind], draft_top_k=top_k)
    assert made.header["draft_topk"] == width
    assert made.header["q_complete"] == (width is not None and width <= 16)
    assert made.engine.context == context_from_header(made.header)


@pytest.mark.parametrize("top_k", [0, 8])
@pytest.mark.parametrize("kind", CANDIDATES)
def test_trees_of_draws_are_judged_where_all_of_q_is_stored(session, places, in_folder, kind, top_k):
    """log q of every node is what the stored logits make of it, exactly where the header says so."""
    given = {"branches": 3, "draft_top_k": top_k, "max_new_tokens": 10}
    if top_k == 0 and CANDIDATES[kind] is None:
        with pytest.raises(IncompleteDraftLaw):
            session(places[kind], **given)
        return
    made = session(places[kind], **given)
    entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(2))
    made.record(made.conversations(entries, check=True))
    path = made.settings.output
    assert run(["replay", str(path), "--check", "-q"]) == 0
    assert open_draft_file(path).header.q_complete
    width = top_k or CANDIDATES[kind]
    first = [row for row in draft_runs.rows(path) if row["kind"] == 0 and row["node_token"]]
    assert len(first) > 3
    for row in first:
        tokens, logits = (np.array(row[name][:width]) for name in ("draft_topk_token", "draft_topk_logit"))
        scaled = logits.astype(float) / TEMPERATURE
        law = dict(zip(tokens.tolist(), scaled - np.logaddexp.reduce(scaled), strict=True))
        assert row["node_logq"][0] == pytest.approx(law[row["node_token"][0]], abs=1e-5)


@pytest.mark.parametrize("order", [("dflash2", "model"), ("model", "dflash2")])
def test_one_wide_drafter_makes_a_union_wide(session, places, order):
    made = session("+".join(places[kind] for kind in order), draft_top_k=0, policy="match")
    assert made.header["draft_topk"] is None
    assert not made.header["q_complete"]


@pytest.mark.parametrize("given", [{"temperature": 0.0}, {"proposal": "deterministic"}])
def test_drafts_that_are_not_drawn_need_no_law(session, places, given):
    made = session(places["model"], draft_top_k=0, **given)
    assert made.header["draft_topk"] is None
    assert made.header["q_complete"]

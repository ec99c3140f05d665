"""Block drafters: walks of one dense file against live runs, and unions with them."""

from __future__ import annotations

import draft_runs
import pytest
from click.testing import CliRunner
from law_runs import hold as hold_law
from live_rounds import hold

from dflash.cli.main import app

POLICIES = ("match:length=2", "match:branches=1", "match:length=3,branches=2")


@pytest.mark.parametrize(
    ("kind", "temperature"),
    [("dflash", 0.0), ("dflash2", 0.8), ("dspark-rnn", 0.0), ("dspark-rnn", 0.8)],
)
def test_walks_are_the_live_runs(tiny, tmp_path, block_drafter, kind, temperature):
    rounds, _, accepted = hold(
        tiny, tmp_path, block_drafter(kind), draft_runs.prompts(2), temperature, POLICIES, max_new_tokens=18
    )
    assert rounds > 30
    assert accepted > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_are_those_of_plain_decoding(tiny, tmp_path, block_drafter, temperature):
    """Whatever the drafter, one seed gives one text under a rule that emits choices."""
    given = {"temperature": temperature, "features": "none", "max_new_tokens": 14, "branches": 2}
    asked, texts = draft_runs.prompts(2), []
    for number, drafter in enumerate(["none", *map(block_drafter, ("dflash", "dflash2", "dspark-rnn"))]):
        path = draft_runs.record(tiny, asked, tmp_path / f"{number}.parquet", drafter=drafter, **given)
        texts.append(list(draft_runs.trunks(draft_runs.rows(path)).values()))
    assert all(text == texts[0] for text in texts)


def test_several_lanes_draft_together(tiny, tmp_path, block_drafter):
    """Lanes of different lengths in one forward draft what each drafts alone."""
    given = {"drafter": block_drafter("dflash"), "features": "none", "max_new_tokens": 12, "branches": 2}
    asked = draft_runs.prompts(3)
    one = draft_runs.rows(draft_runs.record(tiny, asked, tmp_path / "one.parquet", **given))
    many = draft_runs.rows(draft_runs.record(tiny, asked, tmp_path / "many.parquet", lanes=3, **given))
    key = ("request_id", "anchor_position", "node_token", "node_parent", "accepted_nodes")
    assert sorted(str([row[name] for name in key]) for row in one) == sorted(
        str([row[name] for name in key]) for row in many
    )


def test_live_rounds_of_speculative_follow_the_law_of_the_walk(tiny, tmp_path, block_drafter):
    given = {"drafter": block_drafter("dspark-rnn"), "length": 4, "max_new_tokens": 16, "lanes": 4}
    between, own = hold_law(tiny, tmp_path, draft_runs.prompts(6), 2, **given)
    assert abs(between) < 1
    assert abs(own) < 2.576


def test_recordings_pass_check_and_audit(tiny, tmp_path, block_drafter):
    """Every decision is made again, and every draw: q as stored is the law that tokens were drawn from."""
    given = {"drafter": block_drafter("dflash2"), "temperature": 0.8, "max_new_tokens": 16, "dense": True}
    path = draft_runs.record(tiny, draft_runs.prompts(2), tmp_path / "run.parquet", **given)
    for words in (["--check"], ["--audit"]):
        result = CliRunner().invoke(app, ["replay", str(path), *words], standalone_mode=False)
        assert result.exception is None
        assert result.return_value in (0, None), result.output


def test_two_block_drafters_in_a_union_are_each_given_their_taps(tiny, tmp_path, block_drafter):
    """Each proposes in the union what it proposes alone."""
    parts = [block_drafter("dflash"), block_drafter("dspark-rnn")]
    given = {"features": "none", "max_new_tokens": 8, "branches": 1, "dense": True}
    asked = draft_runs.prompts(1)
    union = draft_runs.rows(
        draft_runs.record(tiny, asked, tmp_path / "union.parquet", drafter="+".join(parts), **given)
    )
    for number, part in enumerate(parts):
        alone = draft_runs.record(tiny, asked, tmp_path / f"{number}.parquet", drafter=part, **given)
        drafts = {row["anchor_position"]: row for row in draft_runs.rows(alone) if row["kind"] == 1}
        for row in (row for row in union if row["kind"] == 1):
            whole = drafts[row["anchor_position"]]["node_token"]
            lines = []
            for token, parent in zip(row["node_token"], row["node_parent"], strict=True):
                lines.append([*(lines[parent] if parent >= 0 else []), token])
            assert whole in lines

"""`file:` proposes what was drafted at the same trunk, by the same models, and drafts nothing else."""

from __future__ import annotations

import draft_runs
import pytest
from tiny_model import write_tiny

from dflash.drafters.base import ProposalKind
from dflash.draftfile.identity import IdentityMismatch
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.errors import UsageError
from dflash.policy.errors import MixedProposals
from dflash.target.load import load_target

RUNS = {
    "ngram": {"drafter": "ngram"},
    "self": {"drafter": "self"},
    "self, T=0.8 shared": {"drafter": "self", "temperature": 0.8},
    "self, T=0.8 independent": {"drafter": "self", "temperature": 0.8, "policy": "speculative"},
    "ngram+self, T=0.8": {"drafter": "ngram+self", "temperature": 0.8},
    "suffix+self": {"drafter": "suffix+self"},
}
DECIDED = ("anchor_position", "accepted_nodes", "bonus_token", "emitted", "truncated_by")
DRAFTED = ("node_token", "node_parent", "node_source", "node_rank", "node_logq", "node_draft_gap")


def replayed(target, asked, output, stored, **given):
    """Record from stored drafts; the rows, the session's drafter, and the kinds of its header."""
    run = draft_runs.session(target, output, drafter=f"file:{stored}", **given)
    entries = with_ids(text_prompt(prompt) for prompt in asked)
    run.record(run.conversations(entries, check=True))
    return draft_runs.rows(output), run.drafter


def decided(rows, names=DECIDED):
    return [tuple(row[name] for name in names) for row in rows if row["kind"] != 1]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("dense", [False, True], ids=["live rows", "dense rows"])
def test_a_run_from_stored_drafts_is_the_run_that_stored_them(tiny, tmp_path, run, dense):
    asked, given = draft_runs.prompts(2), {"max_new_tokens": 20, "branches": 2} | run
    if given.get("policy") == "speculative":
        given["branches"] = 1
    stored = draft_runs.record(tiny, asked, tmp_path / "stored.parquet", dense=dense, **given)
    rows = draft_runs.rows(stored)
    again, drafter = replayed(
        tiny, asked, tmp_path / "again.parquet", stored, **{k: v for k, v in given.items() if k != "drafter"}
    )
    live = sum(row["kind"] == 0 for row in rows)
    assert (drafter.hits, drafter.misses) == (live, 0)
    names = (*DECIDED, *DRAFTED, "node_residual_token")
    assert decided(again, names) == decided(rows, names)
    assert any(row["accepted_nodes"] for row in again)
    assert not hasattr(drafter, "model")


@pytest.mark.parametrize("run", [RUNS["ngram"], RUNS["self, T=0.8 shared"]], ids=["ngram", "shared"])
def test_a_smaller_shape_is_cut_out_of_the_stored_trees(tiny, tmp_path, run):
    asked, given = draft_runs.prompts(2), {"max_new_tokens": 20} | run
    stored = draft_runs.record(tiny, asked, tmp_path / "stored.parquet", dense=True, **given)
    shape = {"policy": "match:length=2,branches=2"}
    fresh = draft_runs.record(tiny, asked, tmp_path / "fresh.parquet", **given | shape)
    given.pop("drafter")
    again, drafter = replayed(tiny, asked, tmp_path / "again.parquet", stored, **given | shape)
    names = (*DECIDED, "node_token", "node_parent")
    assert decided(again, names) == decided(draft_runs.rows(fresh), names)
    assert drafter.misses == 0


def test_what_was_never_drafted_is_a_miss_and_drafts_nothing(tiny, tmp_path):
    asked, given = draft_runs.prompts(2), {"max_new_tokens": 16, "temperature": 0.8}
    stored = draft_runs.record(tiny, asked, tmp_path / "stored.parquet", drafter="self", **given)
    for number, change in enumerate(({"seed": 8}, {"temperature": 0.7})):
        rows, drafter = replayed(tiny, asked, tmp_path / f"{number}.parquet", stored, **given | change)
        assert drafter.hits == 0
        assert drafter.misses == sum(row["kind"] == 0 for row in rows)
        assert not any(row["node_token"] for row in rows)
    rows, drafter = replayed(tiny, ["another prompt"], tmp_path / "other.parquet", stored, **given)
    assert drafter.hits == 0


def test_the_header_names_every_stored_drafter(tiny, tmp_path):
    given = {"max_new_tokens": 8, "temperature": 0.8}
    stored = draft_runs.record(tiny, ["hi"], tmp_path / "stored.parquet", drafter="ngram+self", **given)
    run = draft_runs.session(tiny, tmp_path / "again.parquet", drafter=f"file:{stored}", **given)
    entries = run.drafter.headers()
    assert [each["family"] for each in entries] == ["ngram", "model"]
    assert {each["name"] for each in entries} == {"file:stored.parquet"}
    assert run.drafter.kind is ProposalKind.MIXED
    with pytest.raises(MixedProposals, match="one kind"):
        draft_runs.session(
            tiny, tmp_path / "x.parquet", drafter=f"file:{stored}", policy="speculative", **given
        )


@pytest.fixture(scope="module")
def stored(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "stored.parquet"
    return draft_runs.record(tiny, ["Say it twice"], path, drafter="suffix", max_new_tokens=24)


@pytest.mark.parametrize(
    ("words", "loaded"),
    [
        ("target weights", {"seed": 3}),
        ("target config", {"layers": 1}),
        ("chat template", {"template": False}),
        ("target quantisation", {}),
    ],
)
@pytest.mark.parametrize("use", ["file", "warm"])
def test_other_models_are_refused_by_what_differs(tmp_path, tiny_folder, stored, words, loaded, use):
    folder = write_tiny(tmp_path / "tiny", **loaded) if loaded else tiny_folder
    other = load_target(str(folder), quantisation="none" if loaded else "int8")
    named = {"drafter": f"file:{stored}"} if use == "file" else {"drafter": "suffix", "warm": (stored,)}
    with pytest.raises(IdentityMismatch, match=words):
        draft_runs.session(other, tmp_path / "x.parquet", **named)


def test_a_warm_store_raises_tau_on_a_prompt_seen_before(tiny, tmp_path, stored):
    given = {"drafter": "suffix", "max_new_tokens": 24}
    cold = draft_runs.rows(stored)
    path = draft_runs.record(tiny, ["Say it twice"], tmp_path / "warm.parquet", warm=(stored,), **given)
    warm = draft_runs.rows(path)
    assert draft_runs.trunks(warm) == draft_runs.trunks(cold)
    tau = [
        sum(len(row["accepted_nodes"]) + 1 for row in rows if row["kind"] == 0)
        / sum(row["kind"] == 0 for row in rows)
        for rows in (cold, warm)
    ]
    assert tau[1] > 1.2 * tau[0]
    assert len([row for row in warm if row["kind"] == 0]) < len([row for row in cold if row["kind"] == 0])


def test_warm_without_a_store_is_refused(tiny, tmp_path, stored):
    with pytest.raises(UsageError, match="--warm with the drafter suffix"):
        draft_runs.session(tiny, tmp_path / "x.parquet", drafter="ngram", warm=(stored,))

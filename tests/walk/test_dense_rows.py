"""What a dense row holds: the draft of a live round at its anchor, and nothing of any other round."""

from __future__ import annotations

import math

import draft_runs
import pytest

from dflash.drafters.base import ProposalKind
from dflash.drafters.fan import Fan
from dflash.engine.dense.dense_pass import DensePass
from dflash.engine.lane import Lane
from dflash.engine.prompts.files import text_prompt, with_ids

EXACT = ("node_token", "node_parent", "node_source", "node_rank", "node_residual_token")
NODE = (
    *("node_logq", "node_margin", "node_confidence", "node_logp", "node_target_logit", "node_mass_above"),
    "node_residual_mass",
)
SLOT_EXACT = ("slot_argmax", "slot_choice")
SLOT = (
    *("slot_choice_logit", "slot_gap", "slot_cut_gap", "slot_lse", "slot_lse_p", "slot_cutoff"),
    *("slot_entropy", "draft_lse"),
)
EVERY = (*EXACT, *NODE, "node_draft_gap", *SLOT_EXACT, *SLOT)
EVERY_K = ("slot_topk_logit", "draft_topk_logit")
RUNS = {
    "ngram": {"drafter": "ngram"},
    "suffix": {"drafter": "suffix"},
    "self": {"drafter": "self"},
    "model": {"drafter": "model:fair"},
    "tree": {"drafter": "model:fair", "fan": Fan((2, 1, 2)), "branches": 4},
    "union": {"drafter": "ngram+model:fair+suffix"},
    "ngram, T=0.8": {"drafter": "ngram", "temperature": 0.8},
    "suffix, T=0.8": {"drafter": "suffix", "temperature": 0.8, "top_k": 20},
    "model, shared": {"drafter": "model:fair", "temperature": 0.8},
    "model, independent": {"drafter": "model:fair", "temperature": 0.8, "proposal": "independent"},
    "tree, shared": {"drafter": "self", "temperature": 0.8, "fan": Fan((2, 2)), "branches": 4},
    "tree, speculative": {
        **{"drafter": "model:fair", "temperature": 0.8, "policy": "speculative"},
        **{"fan": Fan((2, 2)), "branches": 3},
    },
    "model, speculative": {"drafter": "model:fair", "temperature": 0.8, "policy": "speculative"},
    "union, shared": {"drafter": "self+model:fair", "temperature": 0.9, "top_p": 0.9},
    "union, mixed": {"drafter": "suffix+model:fair", "temperature": 0.8},
    "dflash": {"drafter": "block:dflash"},
    "dflash 2, shared": {"drafter": "block:dflash2", "temperature": 0.8, "fan": Fan((2, 2)), "branches": 4},
    "dspark, speculative": {"drafter": "block:dspark-rnn", "temperature": 0.8, "policy": "speculative"},
}
# the first paths of a union are not the union of first paths
CUTS = [
    pytest.param(run, cut, id=f"{name}, {cut}")
    for name, run in RUNS.items()
    for cut in (None, (2, 3), (3, 1))
    if cut != (3, 1) or "+" not in run["drafter"]
]
EACH = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


@pytest.fixture
def settings(drafter_named):
    """The keywords of a run, models in place."""

    def made(run, **more):
        given = {"features": "none", "length": 4, "branches": 3, "max_new_tokens": 16} | run | more
        given["drafter"] = "+".join(drafter_named(name) for name in given["drafter"].split("+"))
        if "proposal" in given:
            given["proposal"] = ProposalKind(given["proposal"])
        return given

    return made


def close(one, other, where):
    """Equal values, floats to 1e-4; a cut gap under top-p is a quotient of small sums."""
    if isinstance(one, float) and isinstance(other, float) and math.isfinite(one):
        rel = 1e-3 if where[0] == "slot_cut_gap" else 1e-5
        assert one == pytest.approx(other, abs=1e-4, rel=rel), where
    else:
        assert one == other, where


def kept(row, length, branches):
    """Nodes of the first paths down to a depth, in order."""
    parents, depth = row["node_parent"], draft_runs.depths(row["node_parent"])
    inner = {parent for node, parent in enumerate(parents) if depth[node] <= length}
    paths = [[node] for node in range(len(parents)) if depth[node] <= length and node not in inner]
    for path in paths:
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
    leaves = sorted(paths, key=lambda path: path[::-1])[:branches]
    return [node for node in range(len(parents)) if any(node in path for path in leaves)]


def same_rows(row, dense, nodes, *, gaps=True):
    """Hold a row against a dense one whose nodes stand for it."""
    index = {node: place for place, node in enumerate(nodes)}
    names = (*EXACT, *NODE, *(["node_draft_gap"] if gaps else []))
    for name in names:
        values = [dense[name][node] for node in nodes]
        if name == "node_parent":
            values = [index.get(parent, -1) for parent in values]
        assert len(values) == len(row[name]), (name, row["anchor_position"])
        for one, other in zip(row[name], values, strict=True):
            close(one, other, (name, row["anchor_position"]))
    for name in (*SLOT_EXACT, *SLOT):
        values = [dense[name][slot] for slot in (0, *(node + 1 for node in nodes))]
        for slot, (one, other) in enumerate(zip(row[name], values, strict=True)):
            # a leaf of a cut draft was not expanded
            if not (name == "draft_lse" and one is None and slot and slot - 1 not in row["node_parent"]):
                close(one, other, (name, row["anchor_position"], slot))


def by_anchor(table, kind):
    """Rows of a kind by request and anchor."""
    return {(row["request_id"], row["anchor_position"]): row for row in table if row["kind"] == kind}


@pytest.mark.parametrize(("run", "cut"), CUTS)
def test_a_dense_row_at_a_live_anchor_is_the_live_row(tiny, tmp_path, settings, run, cut):
    given = settings(run)
    rule = run.get("policy", "match")
    # a union has the branches of each of its drafters
    parts = run["drafter"].count("+") + 1
    policy = rule if cut is None else f"{rule}:length={cut[0]},branches={cut[1] * parts}"
    given["policy"] = policy
    path = draft_runs.record(tiny, draft_runs.prompts(2), tmp_path / "run.parquet", dense=True, **given)
    table = draft_runs.rows(path)
    live, dense = by_anchor(table, 0), by_anchor(table, 1)
    shared = live.keys() & dense.keys()
    assert len(shared) > 4
    for place in shared:
        row, other = live[place], dense[place]
        if "+" in run["drafter"]:
            nodes = [
                n
                for n, depth in enumerate(draft_runs.depths(other["node_parent"]))
                if depth <= (cut or (9,))[0]
            ]
        else:
            nodes = kept(other, *(cut or (9, 9)))
        same_rows(row, other, nodes, gaps=cut is None or cut[1] >= given["branches"])
    assert any(row["node_token"] for row in live.values())


@EACH
def test_every_committed_token_but_the_last_has_a_dense_row(tiny, tmp_path, settings, run):
    path = draft_runs.record(
        tiny, draft_runs.prompts(2), tmp_path / "run.parquet", dense=True, **settings(run)
    )
    table = draft_runs.rows(path)
    texts = draft_runs.trunks(table)
    starts = {row["request_id"]: len(row["prompt_tokens"]) for row in table if row["kind"] == 2}
    for name, text in texts.items():
        rows = [row for row in table if row["kind"] == 1 and row["request_id"] == name]
        assert [row["anchor_position"] for row in rows] == list(range(starts[name], len(text) - 1))
        assert [row["anchor_token"] for row in rows] == text[starts[name] : -1]


@EACH
def test_a_draft_depends_on_the_prefix_not_on_the_rounds_before_it(tiny, tmp_path, settings, run):
    """Rules that accept differently reach one anchor by different rounds."""
    given = settings(run)
    rules = ("speculative", "speculative:length=1") if "policy" in run else ("match", "threshold:t=0.95")
    tables = []
    for number, rule in enumerate(rules):
        path = tmp_path / f"{number}.parquet"
        policy = given | {"policy": rule}
        tables.append(
            draft_runs.rows(draft_runs.record(tiny, draft_runs.prompts(2), path, dense=True, **policy))
        )
    one, two = ((by_anchor(table, 0), by_anchor(table, 1), draft_runs.trunks(table)) for table in tables)
    assert one[0].keys() != two[0].keys()
    met = 0
    for (name, anchor), row in (*one[0].items(), *one[1].items()):
        same = one[2][name][: anchor + 1] == two[2][name][: anchor + 1]
        for other in (two[0].get((name, anchor)), two[1].get((name, anchor))):
            if other is None or not same or len(other["node_token"]) != len(row["node_token"]):
                continue
            if row["kind"] != other["kind"] or row["kind"] == 0:
                met += row["kind"] == 0
            same_rows(row, other, range(len(row["node_token"])))
    assert met > 3


def dense_rows(session, tokens, budget=192):
    """Dense rows of one request whose answer is given."""
    (conversation,) = session.conversations(with_ids([text_prompt("Say one two one two")]))
    session.forget()
    lane = Lane.start(0, conversation.next(None), frozenset(), session.target.tokenizer, None)
    lane.trunk += tokens
    session.trunk.reset(0)
    states = session.trunk.append(0, lane.trunk).taps
    session.drafter.open(0)
    if states is not None:
        session.drafter.see(0, states)
    whole = session.engine.dense
    part = DensePass(session.trunk, session.drafter, whole.judge, whole.shape, budget)
    return [plain(row) for row in part.rows(lane)]


def plain(row):
    """Columns as lists of Python numbers, null for what is missing."""
    found = {}
    for name, value in row.items():
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, list):
            value = [None if isinstance(item, float) and math.isnan(item) else item for item in value]
        found[name] = value
    return found


def same_in_all(one, other, names):
    for name in names:
        assert len(one[name]) == len(other[name]), name
        for mine, theirs in zip(one[name], other[name], strict=True):
            close(mine, theirs, (name, one["anchor_position"]))


ANSWER = [ord(letter) for letter in "one two one two three one two one"]


@EACH
def test_tokens_after_an_anchor_change_nothing_at_it(tiny, tmp_path, settings, run):
    session = draft_runs.session(tiny, tmp_path / "run.parquet", dense=True, **settings(run))
    whole = dense_rows(session, ANSWER)
    for last in (1, 9, 20):
        other = dense_rows(session, [*ANSWER[:last], *(token ^ 3 for token in ANSWER[last : last + 5])])
        for place, (one, two) in enumerate(zip(whole, other, strict=False)):
            if place < last:
                same_in_all(one, two, (*EVERY, *EVERY_K))
            if place < last - 1:
                assert one["trunk_logp"] == pytest.approx(two["trunk_logp"], abs=1e-4)
                known = last - 1 - place
                mine, theirs = one["trunk_logq"], two["trunk_logq"]
                assert (mine is None) == (theirs is None)
                if mine is not None:
                    assert mine[:known] == pytest.approx(theirs[:known], abs=1e-4)
        assert any(
            one["slot_lse"] != two["slot_lse"] for one, two in zip(whole[last:], other[last:], strict=False)
        )


@EACH
def test_the_size_of_the_forwards_changes_nothing(tiny, tmp_path, settings, run):
    session = draft_runs.session(tiny, tmp_path / "run.parquet", dense=True, **settings(run))
    whole = dense_rows(session, ANSWER)
    for budget in (1, 40):
        for one, two in zip(whole, dense_rows(session, ANSWER, budget), strict=True):
            same_in_all(one, two, (*EVERY, *EVERY_K))

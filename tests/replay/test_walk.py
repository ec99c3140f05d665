from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny_recorder import Recorder

from dflash.draftfile.run import open_run
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.replay.batch import columns_of
from dflash.replay.dense import dense_batches
from dflash.replay.walk import WALK_COLUMNS, marked, walk

LARGEST = (3, 3)


def walked(path, text, strict=True):
    policy = parse_policy(text)
    (file,) = open_run([path]).files
    columns = {*columns_of([policy], file), *WALK_COLUMNS, "slot_argmax", "slot_choice"}
    (dense,) = dense_batches(file, columns)
    parts = dense.batch.parts(dense.batch.rounds(columns))
    return dense, [walk(policy, dense, marked(dense, part), 1e-3, strict) for part in parts]


def live(path):
    """(request, anchor, accepted, emitted) of each live round, from the columns alone."""
    rows = pq.read_table(path, columns=["kind", "request_id", "anchor_position", "accepted_nodes", "emitted"])
    return [
        (r["request_id"], r["anchor_position"], len(r["accepted_nodes"]), r["emitted"])
        for r in rows.to_pylist()
        if r["kind"] == 0
    ]


def rounds_of(dense, results):
    found = []
    for result in results:
        for place, owner in enumerate(result.owner):
            found.append(
                (
                    dense.batch.requests[owner].request_id,
                    int(result.rounds.anchor_position[place]),
                    int(result.decision.accepted_count[place]),
                    int(result.kept[place]),
                )
            )
    return sorted(found, key=lambda item: (int(item[0][1:]), item[1]))


SHAPES = [(0, 1), (1, 1), (3, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("rule", "proposal", "temperature"),
    [
        ("match", Proposal.SHARED, 0.8),
        ("match", Proposal.INDEPENDENT, 0.8),
        ("match", Proposal.DETERMINISTIC, 1.1),
        ("match", Proposal.DETERMINISTIC, 0.0),
        ("greedy", Proposal.DETERMINISTIC, 0.0),
        ("speculative", Proposal.DETERMINISTIC, 0.9),
        ("threshold:t=0.7", Proposal.DETERMINISTIC, 0.0),
    ],
)
def test_a_walk_is_the_live_run_round_by_round(tmp_path, shape, rule, proposal, temperature):
    length, branches = shape
    dense_file = Recorder(
        "match", proposal, temperature, 2, 1, dense=True, largest=LARGEST, requests=4
    ).write(tmp_path / "dense.parquet")
    live_file = Recorder(rule, proposal, temperature, length, branches, requests=4).write(
        tmp_path / "live.parquet"
    )
    bounds = f"length={length},branches={branches}"
    text = f"{rule},{bounds}" if ":" in rule else f"{rule}:{bounds}"
    dense, results = walked(dense_file, text)
    assert rounds_of(dense, results) == live(live_file)
    assert all(not result.left_trunk.any() for result in results)
    assert sum(result.covered for result in results).tolist() == dense.outputs.tolist()
    assert [result.near_ties for result in results] == [()] * len(results)


@pytest.mark.parametrize("rule", ["threshold:t=0.3", "greedy"])
def test_a_lossy_walk_is_exact_up_to_the_round_that_leaves_the_trunk(tmp_path, rule):
    dense_file = Recorder("match", Proposal.SHARED, dense=True, largest=LARGEST, requests=4).write(
        tmp_path / "dense.parquet"
    )
    live_file = Recorder(rule, Proposal.SHARED, length=3, requests=4).write(tmp_path / "live.parquet")
    colon = "," if ":" in rule else ":"
    dense, (result,) = walked(dense_file, f"{rule}{colon}branches=1,length=3")
    assert result.left_trunk.any()
    expected = live(live_file)
    found = rounds_of(dense, [result])
    for name in sorted({item[0] for item in found}):
        mine = [item for item in found if item[0] == name]
        theirs = [item for item in expected if item[0] == name][: len(mine)]
        assert [item[:3] for item in mine] == [item[:3] for item in theirs]
    for owner in range(len(dense.outputs)):
        places = np.flatnonzero(result.owner == owner)
        # only the last round of a request may leave
        assert not result.left_trunk[places[:-1]].any()
        whole = result.covered[owner] == dense.outputs[owner]
        assert result.left_trunk[places[-1]] or whole


def another_draft(row):
    row["node_token"] = row["node_token"].copy()
    row["node_token"][0] = (row["node_token"][0] + 1) % 11


def another_choice(row):
    row["slot_choice"] = row["slot_choice"].copy()
    row["slot_choice"][-1] = (row["slot_choice"][-1] + 1) % 11


def another_logit(row):
    row["node_target_logit"] = row["node_target_logit"] + 0.1


@pytest.mark.parametrize("edit", [another_draft, another_choice, another_logit])
def test_a_dense_row_that_is_not_its_live_row_fails_the_check(tmp_path, edit):
    from dflash.replay.run import replay

    def spoil(rows, gap=1.0):
        anchor = rows[2]["anchor_position"]
        (row,) = [row for row in rows if row["kind"] == 1 and row["anchor_position"] == anchor]
        edit(row)
        row["node_draft_gap"] = np.full(len(row["node_draft_gap"]), gap, dtype=np.float32)

    def check(name, spoiled):
        recorder = Recorder("match", length=2, dense=True, largest=(2, 1), requests=1, edit=spoiled)
        return replay(open_run([recorder.write(tmp_path / name)]).files, check=True, dense=False).check

    assert check("clean.parquet", lambda rows: None).failures == {}
    assert check("wrong.parquet", spoil).failures["dense row"] == 1
    near_tie = check("near.parquet", lambda rows: spoil(rows, 1e-5))
    assert near_tie.passed
    assert near_tie.dense_near_ties == 1


def near(rows, gap):
    """The choice of one dense row becomes another token, won by `gap`."""
    row = [row for row in rows if row["kind"] == 1][4]
    row["slot_choice"] = row["slot_choice"].copy()
    row["slot_choice"][0] = (row["slot_choice"][0] + 1) % 11
    row["slot_gap"] = row["slot_gap"].copy()
    row["slot_gap"][0] = gap


def test_a_differing_choice_is_a_near_tie_or_an_error(tmp_path):
    from dflash.replay.errors import WalkDiverged

    def recorder(gap):
        spoil = Recorder("match", Proposal.DETERMINISTIC, length=0, dense=True, requests=1)
        spoil.edit = lambda rows: near(rows, gap)
        return spoil

    clean = Recorder("match", Proposal.DETERMINISTIC, length=0, dense=True, requests=1).write(
        tmp_path / "clean.parquet"
    )
    tied = recorder(1e-4).write(tmp_path / "tied.parquet")
    dense, results = walked(tied, "match")
    assert [tie.kind for tie in results[0].near_ties] == ["choice"]
    # the committed token stays the choice
    assert rounds_of(dense, results) == rounds_of(*walked(clean, "match"))
    with pytest.raises(WalkDiverged, match="no near-tie"):
        walked(recorder(0.5).write(tmp_path / "wrong.parquet"), "match")
    assert walked(tmp_path / "wrong.parquet", "match", strict=False)[1][0].near_ties


def test_missing_dense_rows_are_refused(tmp_path):
    from dflash.replay.errors import DenseIncomplete

    path = Recorder(dense=True, requests=2, edit=lambda rows: rows.pop()).write(tmp_path / "run.parquet")
    with pytest.raises(DenseIncomplete, match="r0"):
        walked(path, "match")

from __future__ import annotations

import json

import pytest
from tiny_recorder import EOS, Recorder

from dflash.cli.main import run
from dflash.draftfile.run import open_run
from dflash.policy.context import Proposal
from dflash.replay.run import replay


def first_live(rows, wanted=lambda row: True):
    return next(row for row in rows if row["kind"] == 0 and wanted(row))


def another_path(rows):
    row = first_live(rows, lambda row: len(row["accepted_nodes"]) > 0 and row["truncated_by"] == "none")
    row["accepted_nodes"] = row["accepted_nodes"][:-1]


def another_bonus(rows):
    first_live(rows)["bonus_token"] ^= 1


def fewer_kept(rows):
    first_live(rows, lambda row: row["emitted"] > 1)["emitted"] -= 1


def another_reason(rows):
    first_live(rows)["truncated_by"] = "length"


def no_reason(rows):
    rows[-1]["truncated_by"] = "none"


def moved_anchor(rows):
    rows[2]["anchor_position"] += 1


def other_anchor(rows):
    rows[2]["anchor_token"] ^= 1


def other_first_token(rows):
    rows[0]["bonus_token"] ^= 1


def info(rows, **changes):
    rows[0]["request_info"] = json.dumps(json.loads(rows[0]["request_info"]) | changes)


def other_coins(rows):
    info(rows, rng_key="0123456789abcdef")


def another_seed(rows):
    info(rows, seed=6)


def another_ordinal(rows):
    info(rows, ordinal=7)


def another_prompt(rows):
    rows[0]["anchor_token"] = 0


def a_lower_limit(rows):
    info(rows, max_new_tokens=3)


def a_smaller_shape(rows):
    first_live(rows)["draft_length"] = 1


def fewer_branches(rows):
    first_live(rows)["branches"] = 1


def talk_past_the_end(rows):
    row = first_live(rows, lambda row: row["emitted"] == len(row["accepted_nodes"]) + 1)
    rows[-1]["truncated_by"] = "eos"
    rows[-1]["accepted_nodes"], rows[-1]["emitted"], rows[-1]["bonus_token"] = [], 1, row["bonus_token"]


SPOILED = [
    (another_path, "accepted_nodes"),
    (another_bonus, "bonus_token"),
    (fewer_kept, "emitted"),
    (another_reason, "truncated_by"),
    (no_reason, "truncated_by"),
    (moved_anchor, "anchor_position"),
    (other_anchor, "anchor_token"),
    (other_first_token, "first token"),
    (other_coins, "rng_key"),
    (another_seed, "rng_key"),
    (another_ordinal, "rng_key"),
    (another_prompt, "prompt"),
    (a_lower_limit, "length"),
    (a_smaller_shape, "shape"),
    (fewer_branches, "shape"),
    (talk_past_the_end, "eos"),
]


@pytest.mark.parametrize(("edit", "what"), SPOILED, ids=[edit.__name__ for edit, _ in SPOILED])
def test_a_spoiled_recording_fails_its_check(tmp_path, edit, what, capsys):
    recorder = Recorder("speculative", Proposal.INDEPENDENT, branches=2, edit=edit)
    path = recorder.write(tmp_path / "run.parquet")
    report = replay(open_run([path]).files, check=True).check
    assert not report.passed
    assert report.failures[what] >= 1
    assert any(failure.what == what for failure in report.listed)
    assert run(["replay", str(path), "--check"]) == 1
    assert "check FAILED" in capsys.readouterr().out


def test_another_rule_than_was_recorded_fails(tmp_path):
    honest = Recorder("speculative", Proposal.INDEPENDENT)
    liar = Recorder("speculative", Proposal.INDEPENDENT)
    liar.header = lambda: honest.header() | {"policy": {"rule": {"name": "match"}}}
    decided = honest.request

    liar.request = decided
    report = replay(open_run([liar.write(tmp_path / "run.parquet")]).files, check=True).check
    assert report.failures["accepted_nodes"] > 3


def test_failures_are_all_counted_and_some_are_listed(tmp_path):
    def every_bonus(rows):
        for row in rows[1:]:
            row["bonus_token"] ^= 1

    recorder = Recorder("match", requests=12, edit=every_bonus)
    report = replay(open_run([recorder.write(tmp_path / "run.parquet")]).files, check=True).check
    assert report.failures["bonus_token"] == report.rounds
    assert [failure.what for failure in report.listed].count("bonus_token") == 10


def test_a_coin_tie_is_listed_and_no_failure(tmp_path, monkeypatch):
    from dflash.policy import sequential, speculative

    path = Recorder("speculative", Proposal.INDEPENDENT).write(tmp_path / "run.parquet")
    files = open_run([path]).files
    calm = replay(files, check=True).check
    assert calm.passed
    assert calm.coin_ties == 0
    monkeypatch.setattr(sequential, "COIN_TIE", 0.5)
    tied = replay(files, check=True)
    assert tied.check.passed
    assert tied.check.coin_ties == tied.rows[0].coin_ties > 0
    assert all(tie.reproduced for tie in tied.check.ties)

    # a decision that went the other way within the tie
    def nudged(rounds, ok, slot_token, excess):
        return sequential.first_passing(rounds, excess <= 0.4, slot_token, excess)

    monkeypatch.setattr(speculative, "first_passing", nudged)
    other = replay(files, check=True).check
    assert other.passed
    assert not all(tie.reproduced for tie in other.ties)


def test_an_interrupted_run_may_end_anywhere(tmp_path):
    from dflash.draftfile.rows import RequestRows
    from dflash.draftfile.writer import DraftFileWriter

    recorder = Recorder()
    path = tmp_path / "run.parquet"
    with DraftFileWriter(path, recorder.header(), run_id="tiny", part=0, parts=1) as writer:
        rows = RequestRows("r0")
        for row in recorder.request(0)[:3]:
            rows.append(row)
        writer.write_request(rows.table())
        writer.finish("interrupted")
    assert replay(open_run([path]).files, check=True).check.passed


def test_an_end_token_ends_a_request(tmp_path):
    recorder = Recorder(requests=8, max_new_tokens=200)
    recorder.target[:, EOS] += 4.0
    result = replay(open_run([recorder.write(tmp_path / "run.parquet")]).files, check=True)
    assert result.check.passed, result.check.listed

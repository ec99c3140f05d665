"""`record` says what goes unnoticed: nothing to resume, stored drafts of other prompts, unread keys."""

from __future__ import annotations

import json
import signal

import pytest

from dflash.cli.main import run
from dflash.engine.loop import Engine


@pytest.fixture
def dflash(tiny_folder, in_folder, capsys):
    """dflash(*words) -> (exit code, lines on stderr)."""

    def call(*words):
        capsys.readouterr()
        code = run(["record", "--target", str(tiny_folder), "--max-new-tokens", "5", *words])
        return code, capsys.readouterr().err.splitlines()

    return call


def about(lines, word):
    return [line for line in lines if word in line]


def test_resuming_nothing_is_told(dflash):
    code, lines = dflash("hello", "-o", "run.parquet", "--resume")
    assert code == 0
    assert about(lines, "resume") == [
        "nothing to resume: there is no recording of run.parquet yet, so all of it is run"
    ]
    code, lines = dflash("hello", "-o", "run.parquet", "--resume")
    assert (code, about(lines, "nothing to resume")) == (0, [])


def test_an_empty_journal_is_nothing_to_resume(dflash, in_folder):
    (in_folder / "run.journal").write_bytes(b"")
    code, lines = dflash("hello", "-o", "run.parquet", "--resume")
    assert (code, len(about(lines, "nothing to resume"))) == (0, 1)


@pytest.mark.parametrize("drafter", ["file:run.parquet", "file:run.parquet+ngram"])
def test_stored_drafts_that_none_of_the_prompts_finds_are_told(dflash, drafter):
    assert dflash("hello", "and on", "-o", "run.parquet")[0] == 0
    for asked, told in (
        (["hello", "and on"], 0),
        (["hello", "another"], "drafts for"),
        (["another", "and one more"], "holds no draft for any"),
    ):
        code, lines = dflash(*asked, "--drafter", drafter, "-o", "again.parquet", "--overwrite")
        found = about(lines, "file:run.parquet holds")
        assert code == 0
        assert len(found) == (1 if told else 0), lines
        assert not told or told in found[0]


@pytest.mark.parametrize(
    ("name", "told"), [("p.jsonl", "keys that are not read: 'answer'"), ("p.txt", "looks like JSON Lines")]
)
def test_what_is_not_read_of_prompts_is_told_once(dflash, in_folder, name, told):
    (in_folder / name).write_text((json.dumps({"prompt": "hello", "answer": "x"}) + "\n") * 3)
    code, lines = dflash("--prompts", name, "-o", "run.parquet")
    assert (code, len(about(lines, told))) == (0, 1)
    assert about(lines, told)[0].startswith(f"warning: {name}:1: ")


@pytest.mark.parametrize("skip", [[], ["--skip-bad"]])
def test_a_draft_file_as_prompts_is_one_error(dflash, in_folder, skip):
    assert dflash("hello", "-o", "run.parquet")[0] == 0
    code, lines = dflash("--prompts", "run.parquet", "-o", "new.parquet", *skip)
    assert code == 2
    (error,) = about(lines, "error")
    assert error.startswith("error: run.parquet: expected prompts as lines")
    assert not (in_folder / "new.parquet").exists()


@pytest.mark.parametrize("dense", [[], ["--dense"]], ids=["live", "dense"])
@pytest.mark.parametrize(
    ("lanes", "rounds", "told"),
    [
        (1, 2, "1 of 3 requests cut short, 2 not begun"),
        (2, 2, "2 of 3 requests cut short, 1 not begun"),
        (3, 2, "3 of 3 requests cut short"),
        (1, None, None),
    ],
)
def test_what_an_interruption_cost_is_told_once(dflash, monkeypatch, lanes, rounds, told, dense):
    left, played = [rounds], Engine.round

    def interrupted(self, *given):
        played(self, *given)
        if left[0] is not None:
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Engine, "round", interrupted)
    words = ["one", "two", "three", "--drafter", "none", "--lanes", str(lanes), *dense]
    code, lines = dflash(*words, "-o", "run.parquet", "--max-new-tokens", "40")
    assert code == (0 if told is None else 130)
    assert about(lines, "interrupted") == ([] if told is None else [f"interrupted: {told}"])
    scoring = about(lines, "scoring dense rows of what was answered")
    assert len(scoring) == (told is not None and bool(dense))

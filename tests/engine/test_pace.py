"""Whether speculation paid: said when pairs of rounds tell it, and never at the price of the recording."""

from __future__ import annotations

import pytest
from recordings import requests_of

from dflash.cli.main import run
from dflash.engine import pace
from dflash.engine.pace import Pair, judge_pairs
from dflash.engine.prompts.chat import Defaults
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.engine.session import Session
from dflash.engine.settings import RecordSettings
from dflash.policy.registry import parse_policy
from dflash.target.sampling import Sampling

PAIRS = [Pair(100.0 + step, 40.0 + step) for step in (0, 3, 1, 2, 4, 0)]
RUNS = {
    "ngram": {"drafter": "ngram"},
    "self, sampled": {"drafter": "self", "temperature": 0.8},
    "self, independent": {"drafter": "self", "temperature": 0.8, "policy": "speculative", "branches": 1},
    "dense": {"drafter": "self+suffix", "dense": True},
}


def test_the_ratio_is_of_sums_and_tau():
    found = judge_pairs(PAIRS, 1.5)
    assert found.speed_up == pytest.approx(1.5 * 250 / 610)
    assert found.lost
    assert not judge_pairs(PAIRS, 2.6).lost


def test_nothing_is_said_on_few_pairs_or_pairs_that_disagree():
    assert judge_pairs(PAIRS[:4], 1.0) is None
    assert not judge_pairs([Pair(100.0, 10.0), Pair(50.0, 90.0)] * 4, 1.2).lost
    assert judge_pairs([Pair(100.0, 50.0)] * 8, 1.2).lost
    assert not judge_pairs([Pair(100.0, 50.0)] * 8, 2.0).lost


def test_a_win_is_told_only_if_it_is_sure():
    assert judge_pairs([Pair(100.0, 50.0)] * 8, 3.0).paid
    assert not judge_pairs([Pair(100.0, 50.0)] * 8, 2.0).paid
    assert not judge_pairs([Pair(100.0, 10.0), Pair(50.0, 90.0)] * 4, 2.0).paid
    for pairs, tau in ((PAIRS, 1.5), (PAIRS, 2.6), ([Pair(100.0, 50.0)] * 8, 2.0)):
        found = judge_pairs(pairs, tau)
        assert not (found.lost and found.paid)


@pytest.mark.parametrize("name", RUNS)
def test_a_watched_recording_is_the_same(tiny, tmp_path, monkeypatch, name):
    """Even with a plain round after every live one."""
    monkeypatch.setattr(pace, "SHARE", 1e9)
    monkeypatch.setattr(pace, "FIRST", 0)
    given = {"policy": "match", "branches": 2, "temperature": 0.0} | RUNS[name]
    defaults = Defaults(Sampling(given.pop("temperature"), 0, 1.0), 7, 24)
    policy = parse_policy(given.pop("policy"))
    files = []
    for watched in (False, True):
        path = tmp_path / f"{watched}.parquet"
        session = Session(
            tiny, RecordSettings(output=path, policy=policy, defaults=defaults, length=3, **given)
        )
        entries = with_ids(text_prompt(text) for text in ("What is a rainbow?", "ab ab ab", "one two one"))
        found = session.record(session.conversations(entries, check=True), watch_pace=watched)
        assert (found.pace is not None) == watched
        files.append(requests_of(path))
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("more", "watched"),
    [([], True), (["--json"], True), (["-q"], False), (["--length", "0"], False), (["--lanes", "2"], False)],
)
def test_it_is_said_in_one_line_at_the_end(tiny_folder, in_folder, capsys, monkeypatch, more, watched):
    monkeypatch.setattr(pace, "SHARE", 1e9)
    monkeypatch.setattr(pace.PaceWatch, "_plain", lambda self, lane: 0.0)
    words = ["record", "hello", "--target", str(tiny_folder), "--max-new-tokens", "64", "-o", "x.parquet"]
    assert run([*words, *more]) == 0
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if "speculation did not pay on this machine, 0.00x" in line]
    assert told == lines[-1:] * watched
    monkeypatch.setattr(pace.PaceWatch, "_plain", lambda self, lane: 1e9)
    assert run([*words, *more, "--overwrite"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "speculation paid on this machine, " in line] == lines[-1:] * watched

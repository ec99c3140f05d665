"""`dflash tune` and `dflash replay` say plainly what a newcomer must know, and their tables cut no number."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from timed import clocked, machine
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.cli.policy_cell import policy_cell
from dflash.cli.replay_text import render
from dflash.draftfile.run import open_run
from dflash.policy.context import Proposal
from dflash.policy.registry import parse_policy
from dflash.policy.step_time import Grid, StepTime
from dflash.replay.result import Replay
from dflash.replay.run import replay as replayed

SCHEMA = Path(__file__).parents[2] / "schemas" / "tune_v1.schema.json"
SWEEP = ["--sweep", "match:length=0..3,branches=1"]


def write(path: Path, **given: Any) -> Path:
    shape = {"length": 3, "branches": 2, "requests": 6, "edit": clocked()}
    return Recorder(**({"proposal": Proposal.SHARED} | shape | given)).write(path)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("live") / "live.parquet")


@pytest.fixture(scope="module")
def law(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile that knows rounds of every size, which a recording of full drafts does not."""
    path = tmp_path_factory.mktemp("law") / "law.json"
    path.write_text(json.dumps(machine().to_dict()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    path = write(
        tmp_path_factory.mktemp("dense") / "dense.parquet", proposal=Proposal.INDEPENDENT, dense=True
    )
    texts = ("match", "speculative:branches=1", "threshold:t=0.3,branches=1,length=2", "vllm-v1:branches=1")
    return replayed(open_run([path]).files, [parse_policy(text) for text in texts])


def tuned(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[dict[str, Any], str]:
    """The document and the text of one search."""
    found = []
    for more in (["--json"], []):
        assert run(["tune", str(path), "-q", *words, *more]) == 0
        found.append(capsys.readouterr().out)
    document = json.loads(found[0])
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(document)
    return document, found[1]


def test_where_drafting_never_pays_tune_says_do_not_speculate(
    live: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = machine()
    slow = StepTime(Grid(fast.draft_us.axes, tuple(us * 1e4 for us in fast.draft_us.us)), fast.verify_us)
    for profile, pays in ((fast, True), (slow, False)):
        cost = tmp_path / f"{pays}.json"
        cost.write_text(json.dumps(profile.to_dict()), encoding="utf-8")
        for sweep in (SWEEP, ["--sweep", "match:length=1..3"]):
            document, text = tuned(capsys, live, "--cost", str(cost), *sweep)
            assert document["speculates"] is pays
            assert ("do not speculate" in text) is not pays


@pytest.mark.parametrize(("batch", "beyond"), [(None, False), ("1", False), ("1000", True)])
def test_a_batch_that_was_never_timed_is_called_extrapolated(
    live: Path, law: Path, capsys: pytest.CaptureFixture[str], batch: str | None, beyond: bool
) -> None:
    document, text = tuned(
        capsys, live, *SWEEP, "--cost", str(law), *([] if batch is None else ["--batch", batch])
    )
    assert document["extrapolated"] is beyond
    assert ("extrapolated: no batch near 1000" in text) is beyond


def test_policies_that_cannot_be_told_from_the_best_are_counted(
    live: Path, law: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--sweep", "match|trtllm:length=1..3,branches=1", "--cost", str(law)]
    document, text = tuned(capsys, live, *words)
    reach = [
        item["difference_interval"] is None or item["difference_interval"][1] >= 0
        for item in document["policies"]
        if item["policy"] != document["best"]
    ]
    assert document["not_told_from_best"] == sum(reach) > 0
    assert f"{sum(reach)} of the other policies cannot be told from it" in text
    assert "re-judged at another policy's anchors" in text


@given(st.lists(st.text("abcxyz=.01", min_size=1, max_size=40), min_size=1, max_size=6))
def test_a_policy_breaks_between_its_parts_only(parts: list[str]) -> None:
    policy = f"rule:{','.join(parts)}"
    lines = policy_cell(policy).split("\n")
    assert "".join(lines) == policy
    assert all(line.endswith(",") for line in lines[:-1])


def shown(run: Replay, width: int) -> str:
    """The text of a replay in a terminal of some width."""
    console = Console(width=width, file=io.StringIO())
    render([run], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_no_number_is_cut_in_a_terminal_of_usual_width(compared: Replay, width: int) -> None:
    text = shown(compared, width)
    for row in compared.rows:
        for value in (row.rounds, row.tau, row.emitted_per_round, row.drafted_per_token):
            assert value is None or f"{value:.3f}" in text or f"{value:.6g}" in text


def test_columns_and_words_are_those_of_what_is_shown(compared: Replay) -> None:
    law = tuple(row for row in compared.rows if row.exactness == "law-exact")
    assert law
    absent = {"\ntau: ", "marginal", "re-judge: every", "drafted a"}
    for rows, told, untold in (
        (law, {"law-exact: their law", "kept a round"}, absent),
        (compared.rows, {"law-exact: ", "\ntau: ", "\nmarginal: ", "re-judge: ", "lossy: "}, {"live: as"}),
    ):
        text = shown(replace(compared, rows=rows), 200)
        assert all(word in text for word in told)
        assert not any(word in text for word in untold)
        names = [name.strip() for name in text.splitlines()[1].split("  ") if name.strip()]
        assert len(names) == len(set(names))


def test_match_on_drafts_of_their_own_noise_advises_what_to_do(compared: Replay) -> None:
    assert any("--proposal shared" in remark for remark in compared.rows[0].remarks)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One request, a round or two."""
    return write(tmp_path_factory.mktemp("alone") / "one.parquet", requests=1, max_new_tokens=3)


REPLAYS = ["", "--check", "--calibration", "--cost fit", "--cost LAW", "--policy match:length=0", "--rejudge"]


@pytest.mark.parametrize("more", REPLAYS)
@pytest.mark.parametrize("requests", ["one", "several"])
def test_the_legend_explains_what_is_shown_and_quiet_leaves_it_out(
    live: Path, alone: Path, law: Path, more: str, requests: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = live if requests == "several" else alone
    words = ["replay", str(path), *more.replace("LAW", str(law)).split()]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert run([*words, "-q"]) == 0
    shown = capsys.readouterr().out
    assert text.startswith(shown)
    legend = text[len(shown) :].strip().splitlines()
    assert legend
    for line in legend:
        word = line.partition(": ")[0]
        known = {"fit": "residual", "round time": "draft = ", "ece": "ECE", "auc": "AUC"}
        assert known.get(word, word) in shown, word


@pytest.mark.parametrize("command", ["replay", "tune --sweep match:length=3"])
def test_numbers_without_an_interval_say_why(
    live: Path, alone: Path, law: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, bare in ((live, False), (alone, True)):
        assert run([*command.split(), str(path), "--cost", str(law), "-q"]) == 0
        text = capsys.readouterr().out
        assert ("no 95 % intervals: they are drawn over requests" in text) is bare
        assert ("tau (95 %)" in text) is not bare


COMMANDS = ["replay", "replay --check", "replay --audit", "info", "diff", "tune --cost LAW", "plan"]


@pytest.mark.parametrize("command", COMMANDS)
def test_one_of_a_thing_is_not_several(
    alone: Path, law: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    again = [str(alone)] if command == "diff" else []
    run([*command.replace("LAW", str(law)).split(), str(alone), *again])
    text = capsys.readouterr().out
    # not the end of a number, nor "1 of 1 rounds accept"
    wrong = r"(?<![\d.,:])(?<!of )1 (live |drafted )?(request|round|row|token|file|tie|forward|failure)s\b"
    assert re.findall(wrong, text) == []
    assert "(s)" not in text

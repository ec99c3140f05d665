"""The plain formulas hold in the worlds that their assumptions describe, and the command states those."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tiny_recorder import Recorder

from dflash.cli.main import run
from dflash.policy.context import Proposal
from dflash.replay.plan import KvShape, any_branch, chain_tau, grid, memory, speed_up, tree_tau

SCHEMA = Path(__file__).parents[2] / "schemas" / "plan_v1.schema.json"


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(["plan", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(found)
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.75, 1.0])
@pytest.mark.parametrize(("length", "branches"), [(1, 1), (3, 1), (2, 3), (3, 2)])
def test_tau_is_the_mean_over_all_outcomes_of_independent_tokens(
    alpha: float, length: int, branches: int
) -> None:
    mean = 0.0
    for outcome in product((True, False), repeat=length * branches):
        chance, longest = 1.0, 0
        for branch in range(branches):
            tokens = outcome[branch * length : (branch + 1) * length]
            longest = max(longest, (*tokens, False).index(False))
            for accepted in tokens:
                chance *= alpha if accepted else 1 - alpha
        mean += chance * (longest + 1)
    assert tree_tau(alpha, length, branches) == pytest.approx(mean)
    if branches == 1:
        assert chain_tau(alpha, length) == pytest.approx(mean)


def test_the_published_examples() -> None:
    assert chain_tau(0.75, 4) == pytest.approx(3.05, abs=5e-3)
    assert any_branch(0.5, 3) == 0.875
    token, branch, more, everybody = memory(KvShape(32, 32, 128, 2), length=4, branches=4, concurrency=32)
    assert (token.value, branch.value) == (512 * 2**10, 2 * 2**20)
    assert (more.value, everybody.value) == (6 * 2**20, 192 * 2**20)


def test_a_free_draft_gains_tau_and_a_useless_one_costs_its_time() -> None:
    assert speed_up(3.0, 4, 0.0) == 3.0
    assert speed_up(1.0, 4, 0.25) == 0.5
    cells = {(cell.length, cell.branches): cell for cell in grid(0.0, range(1, 4), range(1, 3), 0.1)}
    assert all(cell.tau == 1.0 for cell in cells.values())
    assert cells[3, 1].speed_up == pytest.approx(1 / 1.3)


def test_alpha_is_measured_and_the_formula_stands_beside_the_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(proposal=Proposal.DETERMINISTIC, branches=2, length=3, requests=8)
    path = recorder.write(tmp_path / "run.parquet")
    found = ask(capsys, str(path))
    measured = found["measured"]
    accepted = sum(item["accepted"] for item in measured["positions"])
    tried = sum(item["tried"] for item in measured["positions"])
    assert found["inputs"]["alpha"] == measured["alpha"] == accepted / tried
    assert (found["inputs"]["length"], found["inputs"]["branches"]) == (3, 2)
    first, tree = measured["tau"]
    rounds = measured["positions"][0]["tried"]
    assert first["measured"] == pytest.approx(1 + accepted / rounds)
    assert tree["measured"] >= first["measured"]
    assert first["formula"] == pytest.approx(chain_tau(measured["alpha"], 3))
    assert first["interval"][0] < first["measured"] < first["interval"][1]


def test_what_is_given_wins_over_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Recorder().write(tmp_path / "run.parquet")
    given = ask(capsys, str(path), "--alpha", "0", "--length", "0", "--branches", "1")["inputs"]
    assert (given["alpha"], given["length"], given["branches"]) == (0.0, 0, 1)


def test_text_names_every_assumption(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--alpha", "0.75", "--draft-cost", "0.1", "--layers", "2", "--kv-heads", "1", "--head-dim", "8")
    found = ask(capsys, *words)
    assert run(["plan", *words]) == 0
    text = capsys.readouterr().out
    for quantity in found["quantities"]:
        assert quantity["formula"] in text
        assert all(f"assumes: {assumption}" in text for assumption in quantity["assumptions"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--alpha"),
        (("--alpha", "1.5"), "1.5"),
        (("--alpha", "0.5", "--layers", "2"), "--head-dim"),
        (("--alpha", "0.5", "--concurrency", "8"), "--layers"),
    ],
)
def test_incomplete_questions_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_recording_without_drafts_has_no_alpha(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(length=0)
    path = recorder.write(tmp_path / "plain.parquet")
    assert run(["plan", str(path)]) == 2
    assert "--drafter" in capsys.readouterr().err

"""Dense rows on the native step: those of transformers, and in `replay-exact` bit for bit those of rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import pytest

from dflash.cli.main import run as run_command
from dflash.engine.dense.dense_pass import DensePass
from dflash.engine.dense.lanes import COPIES, STEP_ROWS, backwards, lanes_for
from dflash.engine.dense.native import NativeDensePass
from dflash.engine.dense.rounds import DenseRounds
from dflash.engine.memory import estimate
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.target.native import NativeTrunk, proven
from dflash.target.native_layers import Way

DRAWN = {"temperature": 0.8, "draft_temperature": 4.0}
NUCLEUS = {"draft_top_p": 0.7, "draft_top_k": 4}
DENSE = 1


@pytest.fixture(scope="module")
def target(tiny: Any) -> Any:
    return proven(device_runs.native_target(tiny), Way(impl="reference"))


@pytest.fixture(scope="module")
def drafters(target: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return device_runs.write_drafters(target, tmp_path_factory.mktemp("drafters"))


@pytest.fixture(autouse=True)
def _by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    device_runs.by_reference(monkeypatch)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request's anchors take several steps, the last of which is not full."""
    monkeypatch.setattr("dflash.engine.dense.lanes.STEP_ROWS", 48)


@pytest.fixture(scope="module")
def generic(target: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """generic(**given) -> the dense rows by transformers, which numerics and places do not change."""
    known: dict[str, list[dict[str, Any]]] = {}

    def rows(**given: Any) -> list[dict[str, Any]]:
        asked = {name: value for name, value in given.items() if name not in ("draft_impl", "rounds")}
        key = repr(sorted(asked.items()))
        if key not in known:
            output = tmp_path_factory.mktemp("generic") / "run.parquet"
            table, run = recorded(target, output, target_impl="generic", **asked)
            assert type(run.engine.dense) is DensePass
            known[key] = dense_of(table)
        return known[key]

    return rows


def recorded(target: Any, output: Path, count: int = 3, **given: Any) -> tuple[list[dict[str, Any]], Any]:
    """The rows of a dense recording, and its session."""
    settings = {"dense": True, "target_impl": "native", "max_new_tokens": 23, "lanes": 2} | given
    asked = settings.pop("asked", None) or [text_prompt(prompt) for prompt in draft_runs.prompts(count)]
    run = draft_runs.session(target, output, **settings)
    run.record(run.conversations(with_ids(asked), check=True))
    return draft_runs.rows(output), run


def dense_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == DENSE]


RUNS = {
    "plain": {"drafter": "none", "length": 0, "branches": 1, "rounds": "device"},
    "plain, host": {"drafter": "none", "length": 0, "branches": 1, "rounds": "host"},
    "ngram": {"drafter": "ngram", "length": 4, "branches": 2},
    "ngram, drawn": {"drafter": "ngram", "length": 4, "branches": 2, "temperature": 0.8, "top_k": 9},
    "chain": {"drafter": "dspark", "length": 3, "branches": 1, "rounds": "device"},
    "chain, drawn": {"drafter": "dspark", "length": 3, "branches": 1, "rounds": "device"} | DRAWN,
    "tree, drawn": {"drafter": "dspark", "length": 3, "branches": 3, "rounds": "device"} | DRAWN,
    "nucleus": {"drafter": "dflash", "length": 3, "branches": 2} | NUCLEUS | DRAWN,
    "tree, host": {"drafter": "dflash", "length": 3, "branches": 3, "rounds": "host"} | DRAWN,
    "adaptive": {"drafter": "dspark", "length": 3, "branches": 1, "policy": "match:control=window"} | DRAWN,
    "cut": {"drafter": "dspark", "length": 3, "branches": 3, "policy": "match:length=2,branches=2"} | DRAWN,
}  # fmt: skip


def given_for(name: str, drafters: dict[str, str]) -> dict[str, Any]:
    given = dict(RUNS[name])
    if given["drafter"] in drafters:
        given |= {"drafter": drafters[given["drafter"]], "draft_impl": "native"}
    return given


@pytest.mark.parametrize("numerics", ["fast", "replay-exact"])
@pytest.mark.parametrize("name", RUNS)
def test_rows_are_those_of_transformers(
    target: Any, drafters: dict[str, str], generic: Any, tmp_path: Path, name: str, numerics: str,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if numerics == "fast":
        request.getfixturevalue("small_steps")
    given = given_for(name, drafters)
    mine, run = recorded(target, tmp_path / "native.parquet", numerics=numerics, **given)
    expected = DenseRounds if given.get("rounds", "auto") == "device" else (NativeDensePass, DenseRounds)
    assert isinstance(run.engine.dense, expected)
    device_runs.same_rows(dense_of(mine), generic(**given), atol=5e-4)
    for words in (["--check"], ["--policy", given.get("policy", "match")]):
        assert run_command(["replay", str(tmp_path / "native.parquet"), *words]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_rows_of_the_kernels_are_those_of_transformers(
    target: Any, drafters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's interpreter, with few lanes."""
    monkeypatch.setattr("dflash.engine.session.Way", Way)
    monkeypatch.setattr("dflash.engine.dense.lanes.STEP_ROWS", 8)
    given = given_for("chain, drawn", drafters) | {"lanes": 1, "max_new_tokens": 4}
    mine, run = recorded(target, tmp_path / "native.parquet", 1, **given)
    assert run.engine.dense._held.count == 2
    other = {name: value for name, value in given.items() if name not in ("draft_impl", "rounds")}
    theirs, _ = recorded(target, tmp_path / "generic.parquet", 1, target_impl="generic", **other)
    device_runs.same_rows(dense_of(mine), dense_of(theirs), atol=5e-4)


LIVE = ("chain", "chain, drawn", "tree, drawn", "tree, host", "plain", "plain, host")


@pytest.mark.parametrize("name", LIVE)
def test_rows_have_the_bits_of_live_rows(
    target: Any, drafters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """PyTorch's products have the same bits for the same number of rows: as many lanes decode as score.

    The drafter's own small products have not, so that its columns are near.
    """
    lanes = 3
    monkeypatch.setattr("dflash.engine.dense.lanes.STEP_ROWS", 64 * lanes)
    given = given_for(name, drafters) | {"numerics": "replay-exact", "lanes": lanes}
    rows, _ = recorded(target, tmp_path / "run.parquet", lanes + 2, **given)
    device_runs.same_as_live(rows, drafts=1e-5)


def test_each_forward_takes_as_many_anchors_as_there_are_lanes(
    target: Any, drafters: dict[str, str], tmp_path: Path
) -> None:
    given = given_for("chain", drafters) | {"rounds": "host", "lanes": 1, "max_new_tokens": 90}
    asked = [text_prompt(prompt) for prompt in draft_runs.prompts(2)]
    rows, run = recorded(target, tmp_path / "run.parquet", asked=asked, **given)
    held = run.engine.dense._held
    anchors = Counter(row["request_id"] for row in dense_of(rows)).values()
    assert held.count == STEP_ROWS // 4
    assert min(anchors) > 1
    assert held.trunk.native == held.trunk.work.forwards == sum(-(-one // held.count) for one in anchors)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("name", ["plain", "tree, drawn"])
def test_rows_may_be_made_in_another_process(
    target: Any, drafters: dict[str, str], tmp_path: Path, name: str
) -> None:
    found = []
    for place in ("inline", "process"):
        given = given_for(name, drafters) | {"recorder": place}
        found.append(recorded(target, tmp_path / place, **given)[0])
    device_runs.same_rows(*found, atol=0.0, rtol=0.0)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("rounds", ["host", "device"])
def test_answers_outgrow_the_copies(
    target: Any, drafters: dict[str, str], tmp_path: Path, rounds: str
) -> None:
    found = []
    for capacity in (30, 1024):
        given = given_for("chain, drawn", drafters) | {"rounds": rounds, "max_new_tokens": 60}
        run = draft_runs.session(
            target, tmp_path / f"{capacity}", dense=True, target_impl="native", lanes=2, **given
        )
        run.trunk.cache.capacity = run.drafter.cache.capacity = capacity
        entries = with_ids(text_prompt(prompt) for prompt in draft_runs.prompts(3))
        run.record(run.conversations(entries, check=True))
        found.append(draft_runs.rows(tmp_path / f"{capacity}"))
    device_runs.same_rows(*found)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("rounds", ["host", "device"])
def test_requests_end_and_differ_as_they_like(
    target: Any, drafters: dict[str, str], tmp_path: Path, rounds: str
) -> None:
    """At their first token, in the middle of a block, at a stop string; greedy or drawn."""
    asked = [text_prompt(prompt) for prompt in draft_runs.prompts(6)]
    asked[0] = replace(asked[0], max_new_tokens=1)
    asked[1] = replace(asked[1], max_new_tokens=2, temperature=0.0)
    asked[2] = replace(asked[2], temperature=0.0)
    asked[4] = replace(asked[4], stop=("gggg",))
    given = given_for("chain, drawn", drafters) | {"rounds": rounds, "asked": asked}
    target = replace(target, eos=frozenset({258, 125}))
    mine, _ = recorded(target, tmp_path / "native.parquet", **given)
    other = {name: value for name, value in given.items() if name not in ("draft_impl", "rounds")}
    theirs, _ = recorded(target, tmp_path / "generic.parquet", target_impl="generic", **other)
    device_runs.same_rows(dense_of(mine), dense_of(theirs), atol=5e-4)
    assert len({row["trunk_logq"] is None for row in dense_of(mine)}) == 2


def test_anchors_come_from_the_last_to_the_first() -> None:
    for count in (1, 4, 7, 50):
        groups = list(backwards(range(3, 40), count))
        assert [place for group in reversed(groups) for place in group] == list(range(3, 40))
        assert all(1 <= len(group) <= count for group in groups)
        assert all(min(late) > max(early) for late, early in zip(groups, groups[1:], strict=False))


def test_copies_are_bounded_by_rows_and_by_bytes() -> None:
    assert lanes_for(8, 1) == STEP_ROWS // 8
    assert lanes_for(64, COPIES // 3) == 3
    assert lanes_for(64, 2 * COPIES) == 1


def test_trees_too_large_for_a_word_go_through_transformers(target: Any, tmp_path: Path) -> None:
    rows, run = recorded(target, tmp_path / "run.parquet", drafter="ngram", length=16, branches=4)
    assert type(run.engine.dense) is DensePass
    assert isinstance(run.trunk, NativeTrunk)
    assert dense_of(rows)


@pytest.mark.parametrize("name", ["plain", "chain, drawn", "tree, host"])
def test_the_copies_are_in_the_estimate_of_memory(
    target: Any, drafters: dict[str, str], tmp_path: Path, name: str
) -> None:
    _, run = recorded(target, tmp_path / "run.parquet", 1, **given_for(name, drafters))
    parts = {part.name: part.fixed for part in estimate(target, run.drafter, run.settings, 100).parts}
    held = run.engine.dense._held
    copies = held.trunk.cache.nbytes()
    if held.own_drafter is not None:
        copies += held.own_drafter.cache.nbytes
    assert copies < parts["dense lanes"] < 2 * copies
    assert copies / held.count <= COPIES

"""Lanes in two groups decode and record what they do in one: only rounds are smaller, and twice as many."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import device_runs
import draft_runs
import numpy as np
import pytest
from hypothesis import given as some
from hypothesis import strategies as st

from dflash.cli.main import run as run_command
from dflash.drafters.base import DraftShape
from dflash.engine.device.engine import DeviceEngine
from dflash.engine.device.groups import halves, halves_pay
from dflash.engine.prompts.files import text_prompt, with_ids
from dflash.errors import UsageError
from dflash.policy.step_time import Grid, StepTime

pytestmark = pytest.mark.usefixtures("by_reference")

NATIVE = {"target_impl": "native", "draft_impl": "native", "rounds": "device"}


@pytest.fixture(scope="module")
def drafters(target: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return device_runs.write_drafters(target, tmp_path_factory.mktemp("drafters"))


def without_and_with(
    target: Any, tmp_path: Path, asked: list[Any], **given: Any
) -> list[list[dict[str, Any]]]:
    """The rows of one recording of all lanes together, and of one in two groups."""
    found = []
    for overlap in ("none", "groups"):
        output = tmp_path / f"{overlap}.parquet"
        run = draft_runs.session(target, output, overlap=overlap, **NATIVE | given)
        assert isinstance(run.engine, DeviceEngine)
        assert len(run.engine.groups) == (1 if overlap == "none" else 2)
        entries = with_ids(text_prompt(each) if isinstance(each, str) else each for each in asked)
        run.record(run.conversations(entries, check=True))
        found.append(draft_runs.rows(output))
    return found


@pytest.mark.parametrize("kind", ["dspark", "dflash"])
@pytest.mark.parametrize(("lanes", "branches", "temperature"), [(2, 1, 0.0), (3, 2, 0.8), (5, 1, 0.8)])
def test_groups_change_no_row(
    target: Any, drafters: dict[str, str], tmp_path: Path, kind: str, lanes: int, branches: int,
    temperature: float,
) -> None:  # fmt: skip
    """An odd lane out, more prompts than lanes, hidden states: all as without groups."""
    together, apart = without_and_with(
        target, tmp_path, draft_runs.prompts(7), drafter=drafters[kind], length=3, branches=branches,
        lanes=lanes, temperature=temperature, max_new_tokens=13, features="all", feature_dtype="int8",
    )  # fmt: skip
    assert any(row["accepted_nodes"] for row in together)
    device_runs.same_rows(apart, together)


def test_a_round_is_one_groups(target: Any, drafters: dict[str, str], tmp_path: Path) -> None:
    """Every number of a step belongs to lanes of one group: `batch_size` counts the rows with it."""
    _, apart = without_and_with(
        target, tmp_path, draft_runs.prompts(8), drafter=drafters["dspark"], length=2, branches=1, lanes=4,
        max_new_tokens=11,
    )  # fmt: skip
    rounds = [row for row in apart if row["kind"] == 0]
    sizes = Counter(row["step"] for row in rounds)
    assert max(sizes.values()) == 2
    assert all(row["batch_size"] == sizes[row["step"]] for row in rounds)


def test_answers_end_where_they_do_in_one_group(
    target: Any, drafters: dict[str, str], tmp_path: Path
) -> None:
    """By an end-of-text token, by a last token, and by a stop string, in either group."""
    asked = [text_prompt(prompt) for prompt in draft_runs.prompts(9)]
    asked = [
        replace(prompt, max_new_tokens=4) if place % 4 == 1
        else replace(prompt, stop=("gggg",)) if place % 4 in (0, 3) else prompt
        for place, prompt in enumerate(asked)
    ]  # fmt: skip
    together, apart = without_and_with(
        replace(target, eos=frozenset({258, 125})), tmp_path, asked, lanes=3, max_new_tokens=17,
        drafter=drafters["dflash"], length=3, branches=1,
    )  # fmt: skip
    assert {row["truncated_by"] for row in apart} >= {"none", "length", "stop"}
    device_runs.same_rows(apart, together)


def test_dense_recordings_in_groups_check_and_walk(
    target: Any, drafters: dict[str, str], tmp_path: Path
) -> None:
    together, apart = without_and_with(
        target, tmp_path, draft_runs.prompts(5), drafter=drafters["dspark"], length=3, branches=2, lanes=3,
        temperature=0.8, draft_temperature=4.0, max_new_tokens=9, dense=True,
    )  # fmt: skip
    device_runs.same_rows(apart, together)
    for words in (["--check"], ["--policy", "match"]):
        assert run_command(["replay", str(tmp_path / "groups.parquet"), *words]) == 0


def test_caches_grow_under_both_groups(target: Any, drafters: dict[str, str], tmp_path: Path) -> None:
    found = []
    for capacity in (30, 1024):
        output = tmp_path / f"{capacity}.parquet"
        run = draft_runs.session(
            target, output, drafter=drafters["dspark"], length=3, branches=2, lanes=3, max_new_tokens=40,
            overlap="groups", **NATIVE,
        )  # fmt: skip
        run.trunk.cache.capacity = run.drafter.cache.capacity = capacity
        run.record(run.conversations(with_ids(map(text_prompt, draft_runs.prompts(5))), check=True))
        assert (run.trunk.cache.capacity > capacity) == (capacity == 30)
        found.append(draft_runs.rows(output))
    device_runs.same_rows(*found)


REFUSED = {
    "--lanes 2 or more": {"lanes": 1},
    "nothing to overlap": {"drafter": "none", "length": 0, "branches": 1, "draft_impl": "generic"},
    "cannot be: plain rounds": {"drafter": "none", "draft_impl": "generic"},
    "the control window": {"policy": "match:control=window"},
    "found --rounds host": {"rounds": "host"},
    "does not run on the native kernels": {"drafter": "ngram", "draft_impl": "generic"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_groups_are_refused_where_they_cannot_be(
    target: Any, drafters: dict[str, str], tmp_path: Path, reason: str
) -> None:
    given = NATIVE | {"rounds": "auto", "drafter": drafters["dspark"], "length": 2, "branches": 1, "lanes": 4}
    with pytest.raises(UsageError, match=reason):
        draft_runs.session(target, tmp_path / "run.parquet", overlap="groups", **given | REFUSED[reason])


def profile(draft: tuple[float, float], verify: tuple[float, float]) -> StepTime:
    """Times in one lane and in 64, the same at every length and context."""
    draft_us = Grid(((0.0, 7.0), (1.0,), (1.0, 64.0)), 2 * draft)
    by_lanes = (verify[0], verify[0], verify[1], verify[1])
    return StepTime(draft_us, Grid(((0.0, 7.0), (1.0, 64.0), (64.0, 4096.0)), 2 * by_lanes))


@pytest.mark.parametrize(("last", "groups"), [(64.0, 2), (1.5, 1)])
def test_auto_takes_groups_where_rounds_take_as_long_as_they_have_lanes(
    target: Any, drafters: dict[str, str], tmp_path: Path, last: float, groups: int
) -> None:
    shared = {"drafter": drafters["dspark"], "length": 3, "branches": 1, "overlap": "auto"}
    step_time = profile((1.0, last), (1.0, last))
    # without a profile nothing is known, and one lane makes no groups
    timed = {"step_time": step_time}
    for given, expected in (({"lanes": 4} | timed, groups), ({"lanes": 4}, 1), ({"lanes": 1} | timed, 1)):
        run = draft_runs.session(target, tmp_path / "run.parquet", **NATIVE | shared | given)
        assert len(run.engine.groups) == expected
        assert run.header["engine"].get("overlap") == (None if expected == 1 else "groups")
        assert run.header["engine"]["rounds"] == "device"
        assert (run.rounds_remark is None) == (expected == 2)


@some(st.integers(2, 64), st.floats(1, 1e4), st.floats(1, 1e4), st.floats(1, 1e4), st.floats(1, 1e4))
def test_auto_never_costs_over_3_percent(lanes: int, a: float, b: float, c: float, d: float) -> None:
    """Whatever it chooses, two rounds one behind the other are counted by hand."""
    draft, verify = (a, a + b), (c, c + d)

    def taken(count: int) -> float:
        share = (count - 1) / 63
        return draft[0] + share * b + verify[0] + share * d

    apart = sum(taken(len(window)) for window in halves(lanes))
    if halves_pay(profile(draft, verify), DraftShape(7, 1), lanes):
        assert apart <= 1.0301 * taken(lanes)
    else:
        assert apart > 1.0299 * taken(lanes)


@some(st.integers(2, 99))
def test_halves_are_all_lanes_once(lanes: int) -> None:
    first, second = halves(lanes)
    assert [*first, *second] == list(np.arange(lanes))
    assert 0 <= len(first) - len(second) <= 1

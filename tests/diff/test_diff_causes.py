"""Drafts that differ by their shape alone are told from a drafter that drafts otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drifted import compare
from tiny_recorder import Proposal, Recorder

from dflash.diff import On

SHAPES = [(1, 1), (3, 1), (2, 2), (1, 3)]
PAIRS = [(a, b) for a in SHAPES for b in SHAPES if a != b]
Json = dict[str, Any]


def recorder(shape: tuple[int, int], **settings: Any) -> Recorder:
    return Recorder(requests=2, max_new_tokens=12, length=shape[0], branches=shape[1], **settings)


def headed(made: Recorder, change: Callable[[Json], Json]) -> Recorder:
    """A recorder whose header says something else."""
    head = made.header() | change(made.header())
    made.header = lambda: head  # type: ignore[method-assign]
    return made


def causes(folder: Path, a: Recorder, b: Recorder, on: On = On.ROUNDS) -> list[str]:
    told = compare(a.write(folder / "a.parquet"), b.write(folder / "b.parquet"), on=on)
    assert told["sections"]["drafts"]["status"] == "differs"
    return list(told["causes"])


def otherwise(made: Recorder) -> Recorder:
    """A recorder with a drafter that proposes other tokens, under the same header."""
    noise = np.random.default_rng(2).normal(0, 2, made.target.shape)
    made.drafter = made.target + noise.astype(np.float32)
    return made


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("proposal", [Proposal.SHARED, Proposal.IID])
def test_another_shape_is_the_only_cause(
    tmp_path: Path, pair: tuple[tuple[int, int], tuple[int, int]], proposal: Proposal
) -> None:
    a, b = (recorder(shape, proposal=proposal) for shape in pair)
    (cause,) = causes(tmp_path, a, b)
    assert cause.startswith("The shapes differ (")
    for name, left, right in zip(("length", "branches"), *pair, strict=True):
        assert (f"{name} {left} in A, {right} in B" in cause) == (left != right)
    assert "bug" not in cause


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("control", [False, True])
def test_so_is_another_shape_of_the_policy(tmp_path: Path, control: bool, turned: bool) -> None:
    cut = recorder((2, 1), largest=(3, 2))
    if control:
        policy = cut.header()["policy"] | {"shape": {}, "control": {"name": "window"}}
        cut = headed(cut, lambda _: {"policy": policy})
    pair = (cut, recorder((3, 2)))
    (cause,) = causes(tmp_path, *(pair[::-1] if turned else pair))
    assert cause.startswith(
        "The shapes differ (policy.control.name" if control else "The shapes differ (policy.shape."
    )


def test_two_runs_under_control_may_be_cut_otherwise(tmp_path: Path) -> None:
    pair = [
        headed(made, lambda head: {"policy": head["policy"] | {"shape": {}, "control": {"name": "window"}}})
        for made in (recorder((2, 1), largest=(3, 2)), recorder((3, 2)))
    ]
    (cause,) = causes(tmp_path, *pair)
    assert cause.startswith("The policies let drafts go less far at times")


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_shape_does_not_excuse_other_nodes(
    tmp_path: Path, pair: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    first, second = causes(tmp_path, recorder(pair[0]), otherwise(recorder(pair[1])))
    assert "a bug of the drafter" in first
    assert second == "The runs were asked for different things (shape)."


@pytest.mark.parametrize("pair", [((3, 1), (1, 1)), ((3, 2), (3, 1)), ((1, 1), (3, 1))], ids=str)
def test_one_other_node_is_enough(tmp_path: Path, pair: tuple[tuple[int, int], tuple[int, int]]) -> None:
    def edit(rows: list[Json]) -> None:
        for row in rows:
            if len(row.get("node_token", ())) and not len(row["accepted_nodes"]):
                row["node_token"] = [(row["node_token"][0] + 1) % 16, *row["node_token"][1:]]

    first, *_ = causes(tmp_path, recorder(pair[0]), recorder(pair[1], edit=edit), On.ANCHORS)
    assert "a bug of the drafter" in first


def test_without_another_shape_a_shorter_draft_is_a_fault(tmp_path: Path) -> None:
    short = headed(recorder((2, 1)), lambda head: {"shape": {"length": 3, "branches": 1}})
    (cause,) = causes(tmp_path, recorder((3, 1)), short)
    assert "a bug of the drafter" in cause


@pytest.mark.parametrize(("cuts", "bug"), [([], False), (["branches"], False), (["length"], True)])
def test_a_drafter_that_promises_no_cuts_may_draft_otherwise(
    tmp_path: Path, cuts: list[str], bug: bool
) -> None:
    def change(head: Json) -> Json:
        return {"drafters": [drafter | {"cuts": cuts} for drafter in head["drafters"]]}

    pair = headed(recorder((3, 1)), change), headed(otherwise(recorder((2, 1))), change)
    first, *rest = causes(tmp_path, *pair)
    assert ("bug" in first) == bug
    assert bug or (first.startswith("The shapes differ (length 3 in A, 2 in B)") and not rest)

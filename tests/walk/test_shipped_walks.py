"""Replay == live for the drafter that comes with the package, at temperature 0 and, under `match`, at 0.8."""

from __future__ import annotations

import pytest
from live_rounds import hold

from dflash.target.load import load_target

pytestmark = [pytest.mark.slow, pytest.mark.network]

THINGS = ("rainbows", "the moon", "bread", "a telephone", "seven times eight")
ASKED = tuple(
    f"{what} {thing}{how}"
    for what, how in (
        ("Explain", " to a child."),
        ("Write three sentences about", "."),
        ("List five facts about", "."),
        ("Translate into French: I like", "."),
    )
    for thing in THINGS
)
BLOCK = {"length": 7, "branches": 1}


@pytest.fixture(scope="module")
def target():
    return load_target()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_walks_of_the_shipped_drafter_are_its_live_runs(target, tmp_path, temperature):
    rounds, _, accepted = hold(
        target,
        tmp_path,
        "default",
        ASKED[:3],
        temperature,
        ("match:length=3",),
        **BLOCK,
        lanes=3,
        max_new_tokens=24,
    )
    assert rounds > 50
    assert accepted > 20


@pytest.mark.evidence
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_evidence_walks_of_the_shipped_drafter_are_its_live_runs(target, tmp_path, temperature):
    rounds, ties, _ = hold(
        target,
        tmp_path,
        "default",
        ASKED,
        temperature,
        ("match:length=3", "match:survival=0.3"),
        **BLOCK,
        lanes=5,
        max_new_tokens=32,
    )
    assert ties < 0.005 * rounds

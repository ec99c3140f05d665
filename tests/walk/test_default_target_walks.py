"""Replay == live and the law of the rounds on the default target, with half of it and noise as drafters."""

from __future__ import annotations

import pytest
from default_models import write_half
from law_runs import hold as hold_law
from live_rounds import GREEDY, SHAPES, hold

from dflash.target.load import load_target

pytestmark = [pytest.mark.slow, pytest.mark.network]

PROMPTS = (
    "List the months of the year, then list them again in the same order.",
    "Explain rainbows to a child.",
    "Translate 'good morning' to French, Spanish and German.",
    "What is 17 times 23? Show every step.",
    "Count from one to twenty in words.",
)
DRAFTERS = ("ngram", "suffix", "self", "half", "noise")
FIVE = (*SHAPES, "threshold:t=0.7")


@pytest.fixture(scope="module")
def target():
    return load_target()


@pytest.fixture(scope="module")
def named(default_target, tmp_path_factory):
    """The drafter with its model in place."""
    folder = tmp_path_factory.mktemp("models")
    places = {}

    def place(name):
        if name in ("half", "noise") and name not in places:
            written = write_half(default_target, folder / name, random=name == "noise")
            places[name] = f"model:{written}"
        return places.get(name, name)

    return place


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_walks_are_the_live_runs(target, tmp_path, named, drafter):
    rounds, _, accepted = hold(
        target,
        tmp_path,
        named(drafter),
        PROMPTS[:2],
        0.0,
        FIVE,
        max_new_tokens=32,
        length=4,
        branches=2,
        lanes=2,
    )
    assert rounds > 100
    assert accepted > 0 or drafter == "noise"


@pytest.mark.parametrize("drafter", ["self", "half"])
def test_sampled_walks_are_the_live_runs(target, tmp_path, named, drafter):
    rounds, _, accepted = hold(
        target,
        tmp_path,
        named(drafter),
        PROMPTS[:2],
        0.8,
        SHAPES,
        max_new_tokens=32,
        length=4,
        branches=2,
        lanes=2,
    )
    assert rounds > 100
    assert accepted > 0


@pytest.mark.evidence
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_evidence_walks_are_the_live_runs(target, tmp_path, named, drafter):
    asked = [
        f"{text} (Answer {how}.)"
        for how in ("briefly", "plainly", "politely", "at length")
        for text in PROMPTS
    ]
    rounds, ties, _ = hold(
        target, tmp_path, named(drafter), asked, 0.0, GREEDY[:6], max_new_tokens=64, lanes=4
    )
    assert ties < 0.005 * rounds


@pytest.mark.evidence
@pytest.mark.parametrize("drafter", ["self", "half"])
def test_evidence_live_rounds_follow_the_law(target, tmp_path, named, drafter):
    given = {"drafter": named(drafter), "length": 4, "max_new_tokens": 48, "lanes": 5}
    between, own = hold_law(target, tmp_path, PROMPTS, 4, **given)
    assert abs(between) < 1
    assert abs(own) < 2.576

"""Replay == live for the drafter that comes with the package, at temperature 0 and, under `match`, at 0.8."""

from __future__ import annotations

import draft_runs
import numpy as np
import pytest
from live_rounds import hold, live_rounds

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
    # the target's own: each is counted under every policy that comes by
    assert ties < 0.01 * rounds


@pytest.mark.evidence
def test_evidence_a_suffix_beside_it_costs_no_acceptance(target, tmp_path):
    """By kind of prompt: tau of default+suffix is not below that of default, paired over prompts."""
    rounds = {}
    for name in ("default", "default+suffix"):
        given = BLOCK | {"lanes": 5, "max_new_tokens": 48}
        path = draft_runs.record(target, ASKED, tmp_path / f"{name}.parquet", drafter=name, **given)
        live = live_rounds(path, "match", 0.0)
        each = [live[str(number)] for number in range(len(ASKED))]
        rounds[name] = np.array([[sum(one.accepted + 1 for one in own), len(own)] for own in each])
    few, many = (rounds[name].reshape(4, len(THINGS), 2) for name in ("default", "default+suffix"))
    draws = np.random.default_rng(0).integers(len(THINGS), size=(10_000, len(THINGS)))
    for kind, (alone, both) in enumerate(zip(few, many, strict=True)):
        taus = [each[draws].sum(1) for each in (alone, both)]
        low, high = np.quantile(np.divide(*taus[1].T) - np.divide(*taus[0].T), [0.025, 0.975])
        print(f"{ASKED[kind * len(THINGS)]}: {alone.sum(0)} {both.sum(0)}, {low:+.3f} to {high:+.3f}")
        assert high >= 0

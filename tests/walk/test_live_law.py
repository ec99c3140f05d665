"""Law-exact: live runs keep as many tokens a round as the walk of one dense file says."""

from __future__ import annotations

import draft_runs
import pytest
from law_runs import hold

CHAIN = {"drafter": "model:fair", "length": 4}


@pytest.mark.parametrize("rule", ["speculative", "block"])
def test_live_rounds_follow_the_law_of_the_walk(tiny, tmp_path, drafter_named, rule):
    given = CHAIN | {"drafter": drafter_named("model:fair"), "max_new_tokens": 20, "lanes": 4, "policy": rule}
    between, own = hold(tiny, tmp_path, draft_runs.prompts(8), 2, **given)
    assert abs(between) < 1
    assert abs(own) < 2.576


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "drafter"),
    [
        ("speculative", "model:fair"),
        ("speculative", "self"),
        ("speculative", "model:bad"),
        ("block", "model:fair"),
    ],
)
def test_live_rounds_of_forty_requests_follow_the_law(tiny, tmp_path, drafter_named, rule, drafter):
    named = drafter_named(drafter)
    given = CHAIN | {"drafter": named, "max_new_tokens": 32, "lanes": 20, "policy": rule}
    between, own = hold(tiny, tmp_path, draft_runs.prompts(40), 4, **given)
    assert abs(between) < 1
    assert abs(own) < 2.576

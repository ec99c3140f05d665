"""Law-exact: live runs of `speculative` keep as many tokens a round as the walk of one dense file says."""

from __future__ import annotations

import draft_runs
import pytest
from law_runs import hold

CHAIN = {"drafter": "model:fair", "length": 4}


def test_live_rounds_follow_the_law_of_the_walk(tiny, tmp_path, drafter_named):
    given = CHAIN | {"drafter": drafter_named("model:fair"), "max_new_tokens": 20, "lanes": 4}
    between, own = hold(tiny, tmp_path, draft_runs.prompts(8), 2, **given)
    assert abs(between) < 1
    assert abs(own) < 2.576


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["model:fair", "self", "model:bad"])
def test_live_rounds_of_forty_requests_follow_the_law(tiny, tmp_path, drafter_named, drafter):
    given = CHAIN | {"drafter": drafter_named(drafter), "max_new_tokens": 48, "lanes": 10}
    between, own = hold(tiny, tmp_path, draft_runs.prompts(40), 4, **given)
    assert abs(between) < 1
    assert abs(own) < 2.576

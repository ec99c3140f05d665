"""The comparison of two recordings: near-ties may change places, nothing else may."""

from __future__ import annotations

from typing import Any

import device_runs
import pytest

ROW = {"draft_lse": [1.0, 1.0], "draft_topk_token": [5, 7, 9, 3, 4, 8]}
ROW |= {"draft_topk_logit": [2.0, 1.99999, 0.5, 3.0, 1.0, 0.2]}


def compare(tokens: list[int]) -> None:
    mine: dict[str, Any] = ROW | {"draft_topk_token": tokens}
    device_runs.same_leaders(mine, ROW, "draft_topk_token", "row", 2e-4)


@pytest.mark.parametrize("tokens", [[5, 7, 9, 3, 4, 8], [7, 5, 9, 3, 4, 8], [5, 7, 2, 3, 4, 8]])
def test_near_ties_may_change_places_and_the_last_may_be_another(tokens: list[int]) -> None:
    compare(tokens)


@pytest.mark.parametrize(
    "tokens", [[9, 7, 5, 3, 4, 8], [5, 7, 9, 4, 3, 8], [5, 2, 9, 3, 4, 8], [5, 7, 9, 7, 4, 8]]
)
def test_all_else_is_found(tokens: list[int]) -> None:
    with pytest.raises(AssertionError, match="row"):
        compare(tokens)

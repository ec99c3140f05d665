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


def compare_of_leaders(tokens: list[int], logits: list[float]) -> None:
    mine = ROW | {"draft_topk_token": tokens, "draft_topk_target_logit": logits}
    theirs = ROW | {"draft_topk_target_logit": [0.5, -1.0, 0.0, 4.0, 2.0, 7.0]}
    device_runs.same_of_leaders(mine, theirs, "draft_topk_target_logit", "row", 2e-4, 1e-4)


def test_what_belongs_to_leaders_goes_with_them() -> None:
    compare_of_leaders([7, 5, 2, 3, 4, 8], [-1.0, 0.5, 9.0, 4.0, 2.0, 7.0])


@pytest.mark.parametrize("logits", [[0.5, -1.0, 0.0, 4.0, 2.0, 7.0], [-1.0, 0.5, 0.0, 4.0, 7.0, 2.0]])
def test_values_that_stay_behind_are_found(logits: list[float]) -> None:
    with pytest.raises(AssertionError, match="row"):
        compare_of_leaders([7, 5, 9, 3, 4, 8], logits)

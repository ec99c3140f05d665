"""The top logits are ordered by value, then by the lowest id, ties at the border included."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.target.sampling import argmax, topk


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=5, max_size=5), min_size=1), st.integers(1, 7))
def test_ties_go_to_the_lowest_id(rows, count):
    values, indices = topk(torch.tensor(rows, dtype=torch.float32), count)
    for row, found, ids in zip(rows, values.tolist(), indices.tolist(), strict=True):
        expected = sorted(range(5), key=lambda token: (-row[token], token))[:count]
        assert ids == expected
        assert found == [row[token] for token in expected]
    assert argmax(torch.tensor(rows)).tolist() == indices[:, 0].tolist()

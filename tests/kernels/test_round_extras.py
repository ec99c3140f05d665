"""Fingerprints and confidences of device rounds against plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from dflash.engine.features import projection
from dflash.kernels.round_confidence import ConfidenceWeights, confidences
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_prints import project_rows, sign_words

BOTH = pytest.mark.parametrize("impl", ["triton", "reference"])
pytestmark = [pytest.mark.usefixtures("interpreted"), BOTH]


@pytest.mark.parametrize("width", [16, 300, 512])
def test_prints_are_products_with_the_projection(width: int, impl: str) -> None:
    taps, matrix = torch.randn(7, width), torch.from_numpy(projection(width))
    rows, out = torch.tensor([3, 0, 3, 6]), torch.full((4, 16), -7.0)
    project_rows(taps, rows, sign_words(matrix), width**-0.5, out, impl=impl)
    torch.testing.assert_close(out, taps[rows] @ matrix, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("length", "branches"), [(3, 1), (2, 3)])
def test_confidences_read_hidden_states_and_tokens_before(
    length: int, branches: int, known: bool, impl: str
) -> None:
    tree, lanes = RoundTree.make(length, branches, 2, "cpu"), RoundLanes.make(2, "cpu")
    lanes.anchors.copy_(torch.tensor([4, 9]))
    whole = torch.randn(2, length + 1, 24)
    hidden, table = whole[:, 1:], torch.randn(12, 3) if known else None
    tokens = torch.randint(0, 12, (2, tree.nodes), dtype=torch.int32)
    weight, bias, out = torch.randn(27 if known else 24), torch.randn(1), torch.full((2, tree.nodes), -7.0)
    confidences(hidden, tokens, ConfidenceWeights(weight, bias, table), tree, lanes, out, impl=impl)
    for lane in range(2):
        for node in range(tree.nodes):
            before = int(lanes.anchors[lane] if node < branches else tokens[lane, node - branches])
            row = hidden[lane, node // branches]
            row = row if table is None else torch.cat([row, table[before]])
            torch.testing.assert_close(out[lane, node], (row @ weight + bias[0]).sigmoid())

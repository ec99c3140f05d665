"""Trees cut to lanes' limits, and kept taps that a context lacks, against plain Python."""

from __future__ import annotations

import pytest
import torch

from dflash.kernels.round_cut import RoundLimits, cut_nodes
from dflash.kernels.round_inputs import RoundStart
from dflash.kernels.round_lanes import RoundTree
from dflash.kernels.round_taps import TapRing, keep_taps, pending_rows

BOTH = pytest.mark.parametrize("impl", ["triton", "reference"])
pytestmark = pytest.mark.usefixtures("interpreted")


@BOTH
@pytest.mark.parametrize(("length", "branches"), [(1, 1), (4, 1), (3, 3), (2, 5)])
def test_nodes_outside_of_limits_are_gone(length: int, branches: int, impl: str) -> None:
    shapes = [(deep, wide) for deep in range(length + 2) for wide in range(branches + 2)]
    tree = RoundTree.make(length, branches, len(shapes), "cpu")
    limits = RoundLimits(*torch.tensor(shapes, dtype=torch.int32).T.contiguous())
    tokens = torch.arange(7, 7 + len(shapes) * tree.nodes, dtype=torch.int32).view(-1, tree.nodes)
    before = tokens.tolist()
    cut_nodes(tokens, limits, tree, impl=impl)
    for lane, (deep, wide) in enumerate(shapes):
        for node in range(tree.nodes):
            inside = 1 + node // branches <= deep and node % branches < wide
            assert tokens[lane, node] == (before[lane][node] if inside else -1)


@BOTH
@pytest.mark.parametrize("width", [5, 1030])
def test_taps_wait_by_position(width: int, impl: str) -> None:
    lanes, places = 3, 4
    ring = TapRing.make(lanes, places, torch.zeros(0, width))
    ring.known.copy_(torch.tensor([2, 9, 0]))
    lengths = torch.tensor([2, 9, 5], dtype=torch.int32)
    seen: dict[tuple[int, int], torch.Tensor] = {}
    for step in range(places):
        live = torch.tensor([1, int(step < 2), 0], dtype=torch.int32)
        taps = torch.randn(lanes * 2, width)
        keep_taps(taps, RoundStart(live, lengths, lengths), ring, impl=impl)
        for lane in range(lanes):
            if live[lane]:
                seen[lane, int(lengths[lane])] = taps[2 * lane]
        lengths = lengths + live
    assert not ring.taps[2].any()
    ring.known[2] = 5
    rows = pending_rows(ring, lengths, places)
    found = {}
    for row, (lane, position) in enumerate(rows.places.tolist()):
        if lane >= 0:
            assert rows.positions[row] == position
            found[lane, position] = rows.taps[row]
    assert found.keys() == seen.keys() == {(0, 2), (0, 3), (0, 4), (0, 5), (1, 9), (1, 10)}
    assert all(torch.equal(found[place], seen[place]) for place in seen)

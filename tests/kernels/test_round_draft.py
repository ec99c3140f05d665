"""Levels that a device round draws are those that the drafters' own drawing grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dflash.drafters.base import Anchor, DraftShape, ProposalKind
from dflash.drafters.drawing import Drawing
from dflash.kernels.philox import word_bits
from dflash.kernels.round_best import draft_best
from dflash.kernels.round_draft import DraftColumns, DraftLaw, LowRank, draft_level
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.policy.context import DraftSampling
from dflash.target.noise import TargetNoise

pytestmark = pytest.mark.usefixtures("interpreted")
KEYS = [(0xF0000001, 7), (5, 0x80000000)]
LENGTHS, ANCHORS, TEMPERATURES = [4, 70], [3, 31], [0.0, 0.8]


def empty(tree: RoundTree, top: int) -> DraftColumns:
    def room(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((2, *size), -7, dtype=dtype)

    ints = room(tree.nodes, dtype=torch.int32), room(tree.nodes, dtype=torch.int32)
    seen = room(tree.expanded), room(tree.expanded, top, dtype=torch.int32), room(tree.expanded, top)
    floats = [room(tree.nodes) for _ in range(3)]
    return DraftColumns(*ints, *floats, *seen, room(tree.nodes + 3, dtype=torch.int32))


def lanes_of() -> RoundLanes:
    lanes = RoundLanes.make(2, "cpu")
    for tensor, given in ((lanes.lengths, LENGTHS), (lanes.anchors, ANCHORS)):
        tensor.copy_(torch.tensor(given))
    lanes.draft_temperatures.copy_(torch.tensor(TEMPERATURES))
    lanes.keys.copy_(word_bits(torch.tensor(KEYS, dtype=torch.int64)))
    return lanes


def grown(
    lane: int, logits: torch.Tensor, bias: LowRank | None, law: DraftLaw, length: int, branches: int,
    ids: torch.Tensor | None,
) -> Any:  # fmt: skip
    """The same tree by the drafters' drawing."""
    sampling = DraftSampling(TEMPERATURES[lane], law.top_k, law.top_p)
    drawing = Drawing(ProposalKind.SHARED, sampling, True, TargetNoise(40), 5)
    trunk = [0] * LENGTHS[lane] + [ANCHORS[lane]]
    tree = drawing.start(Anchor(lane, LENGTHS[lane], KEYS[lane], trunk, TEMPERATURES[lane]),
                         DraftShape(length, branches))  # fmt: skip
    for slot in range(length):
        rows = logits[slot].expand(len(tree.tokens), -1)
        if bias is not None:
            rows = rows + bias.table[tree.tokens] @ bias.factor.T
        if ids is not None:
            rows = torch.full((len(rows), 40), -torch.inf).index_copy(-1, ids.long(), rows)
        drawing.grow(tree, rows)
    return tree.proposal


@pytest.mark.parametrize("impl", ["triton", "reference"])
@pytest.mark.parametrize(
    ("length", "branches", "law", "biased", "mapped"),
    [
        (3, 1, DraftLaw(8), True, False),
        (2, 3, DraftLaw(8, 0.9), True, True),
        (1, 2, DraftLaw(2), False, False),
    ],
)
def test_levels_are_those_of_the_drawing(
    length: int, branches: int, law: DraftLaw, biased: bool, mapped: bool, impl: str
) -> None:
    g = torch.Generator().manual_seed(length)
    count = 20 if mapped else 40
    ids = torch.arange(1, 40, 2, dtype=torch.int32) if mapped else None
    logits = 2 * torch.randn((2, length, count), generator=g)
    logits[:, :, 5] = logits[:, :, 9] = 6.0
    bias = (
        LowRank(torch.randn((40, 3), generator=g), torch.randn((count, 3), generator=g)) if biased else None
    )
    tree, lanes = RoundTree.make(length, branches, 2, "cpu"), lanes_of()
    out = empty(tree, 8)
    for depth in range(1, length + 1):
        draft_level(logits, depth, bias, law, tree, lanes, out, ids=ids, impl=impl)
    for lane in range(2):
        proposal = grown(lane, logits[lane], bias, law, length, branches, ids)
        compare(out, lane, proposal, tree)


def compare(out: DraftColumns, lane: int, proposal: Any, tree: RoundTree) -> None:
    tokens = out.tokens[lane].tolist()
    there = [node for node, token in enumerate(tokens) if token >= 0]
    assert [tokens[node] for node in there] == proposal.tokens
    assert out.rows[lane, 1 : tree.nodes + 1].tolist() == [max(token, 0) for token in tokens]
    assert out.ranks[lane][there].tolist() == proposal.rank
    for column, expected in ((out.log_q, proposal.log_q), (out.gaps, proposal.draft_gap),
                             (out.margins, proposal.margin)):  # fmt: skip
        wanted = np.array([np.nan if value is None else value for value in expected])
        np.testing.assert_allclose(column[lane][there].numpy(), wanted, atol=2e-6, rtol=1e-5)
    slots = [0, *(node + 1 for node in there if node + 1 < tree.expanded)]
    np.testing.assert_allclose(out.lse[lane][slots].numpy(), [*proposal.lse.values()], rtol=1e-5)
    for slot, ids, logits in zip(
        slots, proposal.topk_tokens.values(), proposal.topk_logits.values(), strict=True
    ):
        assert out.ids[lane, slot, :5].tolist() == ids.tolist()
        np.testing.assert_allclose(out.logits[lane, slot, :5].numpy(), logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("impl", ["triton", "reference"])
@pytest.mark.parametrize(
    ("length", "branches", "law", "biased", "mapped"),
    [
        (4, 1, DraftLaw(8), True, False),
        (1, 1, DraftLaw(1), True, True),
        (3, 1, DraftLaw(), False, False),
        (3, 3, DraftLaw(8), True, True),
        (2, 2, DraftLaw(2), False, True),
    ],
)
def test_all_levels_at_once_are_the_levels_one_by_one(
    length: int, branches: int, law: DraftLaw, biased: bool, mapped: bool, impl: str
) -> None:
    g = torch.Generator().manual_seed(length)
    # two tiles, the second in part
    count = 700
    ids = torch.arange(1, 1401, 2, dtype=torch.int32) if mapped else None
    # lanes are apart by more than what is read of them
    logits = (2 * torch.randn((2, length + 2, count), generator=g))[:, 1 : length + 1]
    logits[:, :, 5] = logits[:, :, 650] = 8.0
    logits[1, length - 1] = -torch.inf
    bias = None
    if biased:
        bias = LowRank(torch.randn((1401, 3), generator=g), torch.randn((count, 3), generator=g))
    tree, lanes = RoundTree.make(length, branches, 2, "cpu"), lanes_of()
    lanes.draft_temperatures.zero_()
    found, expected = empty(tree, 8), empty(tree, 8)
    first = 1 if branches == 1 else 2
    for depth in range(1, length + 1):
        draft_level(logits, depth, bias, law, tree, lanes, expected, ids=ids, impl="reference")
        if depth < first:
            draft_level(logits, depth, bias, law, tree, lanes, found, ids=ids, impl=impl)
    draft_best(logits, bias, law, tree, lanes, found, ids=ids, first=first, impl=impl)
    for name, mine, theirs in zip(found._fields, found, expected, strict=True):
        if name in ("ids", "logits"):
            there = expected.logits > -torch.inf
            mine, theirs = mine[there], theirs[there]
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-5, equal_nan=True, msg=lambda m: name + m)  # noqa: B023
    assert (found.tokens[1, -branches:] == -1).all()

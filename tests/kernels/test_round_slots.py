"""Slot columns of a device round are those that the engine's judge computes of the same logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash.kernels.philox import word_bits
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import SlotColumns, target_slots
from dflash.policy.noise import target_exponentials
from dflash.target.sampling import Sampling
from dflash.target.statistics import node_statistics, target_law

pytestmark = pytest.mark.usefixtures("interpreted")
KEYS = [(0xF0000001, 7), (5, 0x80000000), (1, 2)]
TEMPERATURES = [0.0, 0.8, 2.5]
LENGTHS = [4, 700, 0]


def empty(lanes: int, tree: RoundTree, top: int, asked: int) -> SlotColumns:
    def room(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((lanes, *size), -7, dtype=dtype)

    slots = tree.nodes + 1
    whole = room(slots, top, dtype=torch.int32), room(slots, top), room(slots, dtype=torch.int32)
    nodes = room(tree.nodes), room(tree.nodes), room(tree.expanded, asked)
    return SlotColumns(*whole, *(room(slots) for _ in range(5)), *nodes)


def lanes_of() -> RoundLanes:
    lanes = RoundLanes.make(3, "cpu")
    lanes.lengths.copy_(torch.tensor(LENGTHS))
    lanes.temperatures.copy_(torch.tensor(TEMPERATURES))
    lanes.keys.copy_(word_bits(torch.tensor(KEYS, dtype=torch.int64)))
    return lanes


@pytest.mark.parametrize("impl", ["triton", "reference"])
@pytest.mark.parametrize(("length", "branches", "vocabulary"), [(0, 1, 2100), (2, 1, 40), (1, 3, 40)])
def test_columns_are_the_judges(length: int, branches: int, vocabulary: int, impl: str) -> None:
    g = torch.Generator().manual_seed(length + vocabulary)
    tree = RoundTree.make(length, branches, 3, "cpu")
    logits = (4 * torch.randn((3, tree.nodes + 3, vocabulary), generator=g)).half().float()
    # ties go to the lowest id
    logits[:, :, 7] = logits[:, :, 30] = 20.0
    tokens = torch.randint(0, vocabulary, (3, tree.nodes), generator=g, dtype=torch.int32)
    if tree.nodes:
        tokens[0, 0], tokens[1, -1] = int(logits[0, 0].argsort()[-6]), -1
    asked = torch.randint(0, vocabulary, (3, tree.expanded, 5), generator=g, dtype=torch.int32)
    found = target_slots(logits, tokens, asked, tree, lanes_of(), empty(3, tree, 5, 5), impl=impl)
    for lane in range(3):
        check(found, lane, logits[lane], tokens[lane], asked[lane], tree)


def check(
    found: SlotColumns, lane: int, logits: torch.Tensor, tokens: torch.Tensor, asked: torch.Tensor,
    tree: RoundTree,
) -> None:  # fmt: skip
    sampling, slots = Sampling(TEMPERATURES[lane]), tree.nodes + 1
    parents = [-1 if node < tree.branches else node - tree.branches for node in range(tree.nodes)]
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    noise = None
    if not sampling.greedy:
        rows = [
            target_exponentials(KEYS[lane], LENGTHS[lane] + 1 + depth, logits.shape[1]) for depth in depths
        ]
        noise = torch.from_numpy(np.log(np.stack(rows)).astype(np.float32))
    law = target_law(logits[:slots], sampling, 5, noise)
    same = {name: f"slot_{name}" for name in ("choice", "choice_logit", "gap", "lse", "lse_p", "entropy")}
    for name, column in (same | {"ids": "slot_topk_token", "logits": "slot_topk_logit"}).items():
        given = getattr(found, name)[lane].flatten().numpy()
        np.testing.assert_allclose(given, law.slots[column], atol=3e-5, rtol=1e-5, err_msg=name)
    there = [node for node in range(tree.nodes) if tokens[node] >= 0]
    nodes = node_statistics(law, tokens[there].tolist(), [parents[node] for node in there])
    absent = [node for node in range(tree.nodes) if tokens[node] < 0]
    for name, column in (("node_logit", "node_target_logit"), ("node_mass", "node_mass_above")):
        given = getattr(found, name)[lane].numpy()
        np.testing.assert_allclose(given[there], nodes[column], atol=3e-5, rtol=1e-5, err_msg=name)
        assert np.isnan(given[absent]).all()
    for slot in range(tree.expanded):
        assert torch.equal(found.asked[lane, slot], logits[slot, asked[slot].long()])

"""The launches around a device round against plain Python: where rows go, what is emitted, what moves."""

from __future__ import annotations

import random

import pytest
import torch

from dflash.kernels.accept_tree import Accepted
from dflash.kernels.errors import KernelArgumentError
from dflash.kernels.round_finish import EOS, GOES_ON, LENGTH, RoundEnd, round_finish
from dflash.kernels.round_inputs import RoundStart, RowInputs, round_inputs
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_rows import RowStores, keep_rows, spread_lane

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.parametrize("impl", ["triton", "reference"]),
]


def ints(*size: int) -> torch.Tensor:
    return torch.full(size, -7, dtype=torch.int32)


def rows_of(lanes: int, width: int) -> RowInputs:
    return RowInputs(ints(lanes, width), ints(lanes, width), ints(lanes, width, 2), ints(lanes))


@pytest.mark.parametrize("mask_token", [-1, 9])
@pytest.mark.parametrize(("length", "branches", "width"), [(0, 1, 1), (3, 1, 8), (2, 2, 5)])
def test_rows_lie_behind_the_trunk(
    length: int, branches: int, width: int, mask_token: int, impl: str
) -> None:
    lanes = RoundLanes.make(3, "cpu")
    for tensor, values in ((lanes.live, [1, 0, 1]), (lanes.lengths, [5, 80, 0]), (lanes.anchors, [3, 4, 6])):
        tensor.copy_(torch.tensor(values))
    tree = RoundTree.make(length, branches, 3, "cpu")
    verify, block, start = rows_of(3, width), rows_of(3, 4), RoundStart(ints(3), ints(3), ints(3))
    round_inputs(lanes, tree, verify, block, mask_token, start, impl=impl)
    assert [part.tolist() for part in start] == [[1, 0, 1], [5, 80, 0], [3, 4, 6]]
    for lane, (live, here, anchor) in enumerate(zip([1, 0, 1], [5, 80, 0], [3, 4, 6], strict=True)):
        used = tree.nodes + 1
        at = [here + (0 if row == 0 else 1 + (row - 1) // branches) for row in range(used)]
        assert verify.positions[lane].tolist() == at + [0] * (width - used)
        places = [[lane, here + row] if live else [-1, 0] for row in range(used)]
        assert verify.places[lane].tolist() == places + [[-1, 0]] * (width - used)
        assert verify.tokens[lane].tolist() == [anchor] + [-7] * (width - 1)
        assert block.tokens[lane].tolist() == [anchor] + [anchor if mask_token < 0 else 9] * 3
        assert block.positions[lane].tolist() == [here + row for row in range(4)]
        assert block.places[lane].tolist() == [[lane, here + row] if live else [-1, 0] for row in range(4)]
        assert int(verify.lengths[lane]) == int(block.lengths[lane]) == (here if live else 0)


def test_words_of_rows_are_the_ancestors(impl: str) -> None:
    tree = RoundTree.make(2, 2, 1, "cpu")
    assert tree.row_words(6)[0].tolist() == [0b1, 0b11, 0b101, 0b1011, 0b10101, 0]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_emitted_is_what_plain_decoding_would(seed: int, impl: str) -> None:
    dice = random.Random(seed)
    lanes, length, branches, width = 6, 3, 2, 8
    tree, state, eos = RoundTree.make(length, branches, lanes, "cpu"), RoundLanes.make(lanes, "cpu"), [2, 5]
    state.live.copy_(torch.tensor([dice.random() < 0.8 for _ in range(lanes)]))
    state.left.copy_(torch.tensor([dice.randint(1, 5) for _ in range(lanes)]))
    state.lengths.copy_(torch.tensor([dice.randint(0, 40) for _ in range(lanes)]))
    before = RoundLanes(*(tensor.clone() for tensor in state))
    tokens = torch.tensor([[dice.randint(1, 9) for _ in range(6)] for _ in range(lanes)], dtype=torch.int32)
    count = torch.tensor([dice.randint(0, length) for _ in range(lanes)], dtype=torch.int32)
    branch = [dice.randint(0, 1) for _ in range(lanes)]
    path = ints(lanes, 6).fill_(-1)
    for lane in range(lanes):
        for depth in range(int(count[lane])):
            path[lane, depth] = depth * branches + branch[lane]
    bonus = torch.tensor([dice.randint(1, 9) for _ in range(lanes)], dtype=torch.int32)
    out = RoundEnd(
        ints(lanes), ints(lanes, 6), ints(lanes), ints(lanes), ints(lanes), torch.zeros(lanes, 4).long(),
        ints(lanes, 4), ints(lanes, 4, 2),
    )  # fmt: skip
    accepted = Accepted(count, path, bonus, bonus)
    round_finish(tokens, accepted, torch.tensor(eos, dtype=torch.int32), tree, state, width, out, impl=impl)
    for lane in range(lanes):
        nodes = path[lane, : int(count[lane])].tolist()
        said, reason = 0, GOES_ON
        for token in [*tokens[lane, nodes].tolist(), int(bonus[lane])]:
            said += 1
            if token in eos or said == int(before.left[lane]):
                reason = EOS if token in eos else LENGTH
                break
        assert (int(out.emitted[lane]), int(out.reason[lane])) == (said, reason)
        assert out.path[lane].tolist() == (path[lane].tolist() if int(before.live[lane]) else [-1] * 6)
        assert int(out.bonus[lane]) == int(bonus[lane])
        live, here, kept = int(before.live[lane]), int(before.lengths[lane]), int(count[lane]) + 1
        rows = [lane * width, *(lane * width + node + 1 for node in nodes)]
        assert out.rows[lane].tolist() == (rows if live else [0] * kept) + [0] * (4 - kept)
        places = [[lane, here + place] if live else [-1, 0] for place in range(kept)]
        assert out.places[lane].tolist() == places + [[-1, 0]] * (4 - kept)
        assert int(state.lengths[lane]) == here + kept * live
        assert int(state.left[lane]) == int(before.left[lane]) - said * live
        assert int(state.live[lane]) == (live and reason == GOES_ON)
        assert int(state.anchors[lane]) == (int(bonus[lane]) if live else 0)


def test_accepted_rows_move_behind_the_anchor(impl: str) -> None:
    stores = [torch.randn(3, 2, 20, 5) for _ in range(4)]
    before = [store.clone() for store in stores]
    path = torch.tensor([[1, 3, 5], [-1, -1, -1], [2, -1, -1]], dtype=torch.int32)
    lengths = torch.tensor([4, 0, 9], dtype=torch.int32)
    keep_rows(RowStores.of(stores), path, lengths, kept=3, impl=impl)
    for store, old in zip(stores, before, strict=True):
        for goal, source in ((5, 6), (6, 8), (7, 10)):
            old[0, :, goal] = old[0, :, source].clone()
        old[2, :, 10] = old[2, :, 12].clone()
        assert torch.equal(store, old)


@pytest.mark.parametrize("length", [0, 1, 32, 41, 60])
def test_a_trunk_is_copied_to_every_lane_and_nothing_behind_it(length: int, impl: str) -> None:
    g = torch.Generator().manual_seed(length)
    source = [torch.randn(3, 2, 60, 5, generator=g) for _ in range(4)]
    goal = [torch.randn(7, 2, 64, 5, generator=g) for _ in range(4)]
    before = [store.clone() for store in (*source, *goal)]
    spread_lane(RowStores.of(source), RowStores.of(goal), 1, length, impl=impl)
    for place, (old, new) in enumerate(zip(source, goal, strict=True)):
        assert torch.equal(old, before[place])
        for lane in new:
            assert torch.equal(lane[:, :length], old[1, :, :length])
        assert torch.equal(new[:, :, length:], before[4 + place][:, :, length:])


def test_trunks_that_do_not_fit_are_refused(impl: str) -> None:
    def stores(*shape: int, dtype: torch.dtype = torch.float32) -> RowStores:
        return RowStores.of([torch.zeros(shape, dtype=dtype)])

    source = stores(3, 2, 60, 5)
    wrong = [
        (stores(7, 3, 64, 5), 1, 9), (stores(7, 2, 64, 6), 1, 9), (stores(7, 2, 64, 5), 3, 9),
        (stores(7, 2, 64, 5), -1, 9), (stores(7, 2, 64, 5), 1, 61), (stores(7, 2, 8, 5), 1, 9),
        (stores(7, 2, 64, 5, dtype=torch.float64), 1, 9),
    ]  # fmt: skip
    for goal, lane, length in wrong:
        with pytest.raises(KernelArgumentError):
            spread_lane(source, goal, lane, length, impl=impl)

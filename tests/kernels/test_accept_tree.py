"""Acceptance on the device against a walk in plain Python, in the interpreter and in PyTorch."""

from __future__ import annotations

import pytest
import torch

from dflash.kernels.accept_tree import Accepted, Sampled, accept_tree
from tests.kernels.accept_cases import Drafted, draw, longest_match, sibling_walk

pytestmark = pytest.mark.usefixtures("interpreted")
IMPLS = ["triton", "reference"]


def judge(case: Drafted, rule: str, impl: str, *, ties: bool = False, paths: bool = True) -> Accepted:
    sampled = Sampled(
        case.logp, case.logq, case.residual, case.keys, case.positions, case.paths if paths else None
    )
    return accept_tree(
        case.tokens, case.parents, case.words, case.choices, rule=rule, impl=impl,
        logp=case.logp if ties else None, sampled=sampled if rule == "speculative" else None,
    )  # fmt: skip


def check(found: Accepted, expected: list[tuple[list[int], int, int]]) -> None:
    for lane, (path, bonus, slot) in enumerate(expected):
        kept = found.path[lane].tolist()
        assert kept == path + [-1] * (len(kept) - len(path))
        assert (int(found.count[lane]), int(found.bonus[lane]), int(found.slot[lane])) == (
            len(path),
            bonus,
            slot,
        )


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("ties", [False, True], ids=["lowest", "likeliest"])
@pytest.mark.parametrize(
    ("nodes", "pads"), [(1, 0), (1, 1), (3, 3), (5, 2), (16, 0), (17, 4), (33, 0), (64, 9)]
)
def test_the_longest_matching_path_wins(nodes: int, pads: int, ties: bool, impl: str) -> None:
    case = draw(6, nodes, seed=nodes + pads, pads=pads)
    check(judge(case, "match", impl, ties=ties), [longest_match(case, lane, ties) for lane in range(6)])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", ["chain", "star", "duplicates"])
def test_greedy_on_shapes_of_64_nodes(name: str, impl: str) -> None:
    shapes = {
        "chain": [j - 1 for j in range(64)],
        "star": [-1] * 64,
        "duplicates": [-1, -1] + [j // 2 - 1 for j in range(2, 64)],
    }
    case = draw(4, 64, seed=3, parents=shapes[name])
    if name == "chain":
        case.choices[0, :64] = case.tokens[0]
        case.choices[1, :63] = case.tokens[1, :63]
    if name == "duplicates":
        case.tokens.fill_(1)
        case.choices.fill_(1)
    check(judge(case, "greedy", impl), [longest_match(case, lane, False) for lane in range(4)])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("nodes", "pads"), [(1, 0), (3, 3), (7, 1), (16, 0), (40, 4), (64, 0)])
def test_speculative_walks_siblings_in_order(nodes: int, pads: int, impl: str) -> None:
    case = draw(8, nodes, seed=nodes, pads=pads)
    check(judge(case, "speculative", impl), [sibling_walk(case, lane) for lane in range(8)])


@pytest.mark.parametrize("impl", IMPLS)
def test_speculative_chains_need_no_path_hashes(impl: str) -> None:
    case = draw(16, 12, seed=5, parents=[j - 1 for j in range(12)])
    case.paths.zero_()
    case.logp.clamp_(min=-0.1)
    expected = [sibling_walk(case, lane) for lane in range(16)]
    assert max(len(path) for path, _, _ in expected) > 4
    check(judge(case, "speculative", impl, paths=False), expected)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("impl", IMPLS)
def test_what_is_no_number_is_rejected(impl: str) -> None:
    case = draw(3, 4, seed=1, parents=[-1, 0, 1, 2])
    case.logp[:] = torch.tensor([[torch.nan], [-torch.inf], [0.0]])
    case.logq[:] = torch.tensor([[0.0], [-torch.inf], [0.0]])
    assert judge(case, "speculative", impl).count.tolist() == [0, 0, 4]

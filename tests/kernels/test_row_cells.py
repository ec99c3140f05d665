"""What the rounds' kernels keep of a row does not depend on cells, spans or other rows, ties included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch

from dflash.kernels import round_best_triton, round_slots, row_cells
from dflash.kernels.round_best import BestScratch, draft_best
from dflash.kernels.round_draft import DraftColumns, DraftLaw, LowRank, draft_level
from dflash.kernels.round_lanes import RoundLanes, RoundTree
from dflash.kernels.round_slots import SlotColumns, target_slots

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    # numpy, which interprets them, tells of what a device computes in silence
    pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero|All-NaN):RuntimeWarning"),
]

KINDS = ("quantised", "equal", "not numbers", "infinite", "zeros", "floats")


def room(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(size, -7, dtype=dtype)


def slot_columns(lanes: int, tree: RoundTree, top: int) -> SlotColumns:
    slots, nodes = tree.nodes + 1, tree.nodes
    whole = room(lanes, slots, top, dtype=torch.int32), room(lanes, slots, top)
    choice = room(lanes, slots, dtype=torch.int32), *(room(lanes, slots) for _ in range(5))
    return SlotColumns(*whole, *choice, room(lanes, nodes), room(lanes, nodes), room(lanes, tree.expanded, 2))


def draft_columns(lanes: int, tree: RoundTree, top: int) -> DraftColumns:
    nodes, expanded = tree.nodes, tree.expanded
    ints = room(lanes, nodes, dtype=torch.int32), room(lanes, nodes, dtype=torch.int32)
    seen = room(lanes, expanded), room(lanes, expanded, top, dtype=torch.int32), room(lanes, expanded, top)
    floats = [room(lanes, nodes) for _ in range(3)]
    return DraftColumns(*ints, *floats, *seen, room(lanes, nodes + 1, dtype=torch.int32))


def logits_of(kind: str, *size: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(sum(size))
    logits = torch.randint(-3, 4, size, generator=g) / 2
    if kind == "equal":
        logits.fill_(-1.5)
    elif kind == "zeros":
        logits = torch.where(logits > 0, 0.0, -0.0)
    elif kind == "floats":
        logits = 3 * torch.randn(size, generator=g)
    elif kind == "not numbers":
        odd = torch.rand(size, generator=g) < 0.02
        # of both signs
        logits = torch.where(odd, torch.nan * torch.sign(logits + 0.25), logits)
    elif kind == "infinite":
        logits[torch.rand(size, generator=g) < 0.5] = -torch.inf
        logits[0] = -torch.inf
        logits[-1, :, size[-1] // 2 :: 5] = torch.inf
    return logits.bfloat16()


def lanes_of(count: int, temperatures: Sequence[float]) -> RoundLanes:
    lanes, g = RoundLanes.make(count, "cpu"), torch.Generator().manual_seed(count)
    lanes.lengths.copy_(torch.randint(0, 90, (count,), generator=g))
    lanes.anchors.copy_(torch.arange(count) * 7 % 40)
    lanes.temperatures.copy_(torch.tensor(temperatures))
    lanes.draft_temperatures.copy_(torch.tensor(temperatures))
    lanes.keys.copy_(torch.randint(-(2**31), 2**31, (count, 2), generator=g))
    return lanes


def lane(lanes: RoundLanes, one: int) -> RoundLanes:
    return RoundLanes(*(tensor[one : one + 1].clone() for tensor in lanes))


def same_bits(mine: NamedTuple, theirs: NamedTuple) -> None:
    for name, a, b in zip(mine._fields, mine, theirs, strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32)), name


def ranked(row: torch.Tensor) -> list[int]:
    """Ids by logit, NaN first, then by id."""
    values = [(0.0 if value != value else 1.0, -value if value == value else 0.0) for value in row.tolist()]
    return sorted(range(len(values)), key=lambda token: (*values[token], token))


@pytest.fixture(params=["wide", "narrow"])
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search as in small vocabularies, or as in ones that are too large for one sort and for small cells."""
    if request.param == "narrow":
        monkeypatch.setattr(row_cells, "SORTED", 4)
        monkeypatch.setattr(round_slots, "MAX_CELLS", 16)


@pytest.mark.parametrize(("vocabulary", "top"), [(40, 32), (65, 16), (1025, 16), (2100, 2)])
@pytest.mark.usefixtures("search")
def test_the_largest_are_those_of_a_sort(vocabulary: int, top: int) -> None:
    logits = torch.cat([logits_of(kind, 1, 1, vocabulary) for kind in KINDS])
    count, tree = len(KINDS), RoundTree.make(0, 1, len(KINDS), "cpu")
    none = torch.zeros((count, 0), dtype=torch.int32), torch.zeros((count, 0, 2), dtype=torch.int32)
    lanes = lanes_of(count, [0.0] * count)
    found = target_slots(logits, *none, tree, lanes, slot_columns(count, tree, top))
    for at, row in enumerate(logits[:, 0].float()):
        order = ranked(row)
        assert found.ids[at, 0].tolist() == order[:top]
        torch.testing.assert_close(found.logits[at, 0], row[order[:top]], atol=0, rtol=0, equal_nan=True)
        assert int(found.choice[at, 0]) == order[0]
        first, second = row[order[:2]]
        shift = torch.zeros_like(first) if first != first else first
        gap = torch.stack([found.gap[at, 0], found.choice_logit[at, 0]])
        wanted = torch.stack([(first - shift) - (second - shift), first])
        torch.testing.assert_close(gap, wanted, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "vocabulary"), [("quantised", 64), ("floats", 511), ("quantised", 1024), ("floats", 2100)]
)
def test_slots_are_the_references_and_no_other_rows_matter(kind: str, vocabulary: int) -> None:
    tree, lanes = RoundTree.make(1, 1, 3, "cpu"), lanes_of(3, [0.0, 0.7, 0.0])
    logits = logits_of(kind, 3, 2, vocabulary)
    g = torch.Generator().manual_seed(vocabulary)
    tokens = torch.randint(0, vocabulary, (3, 1), generator=g, dtype=torch.int32)
    asked = torch.randint(0, vocabulary, (3, 1, 2), generator=g, dtype=torch.int32)
    found = target_slots(logits, tokens, asked, tree, lanes, slot_columns(3, tree, 16))
    wanted = target_slots(logits, tokens, asked, tree, lanes, slot_columns(3, tree, 16), impl="reference")
    for name, mine, theirs in zip(found._fields, found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=3e-5, rtol=1e-5, equal_nan=True, msg=name)
    for one in range(3):
        here, own = slice(one, one + 1), RoundTree.make(1, 1, 1, "cpu")
        alone = slot_columns(1, own, 16)
        target_slots(logits[here], tokens[here], asked[here], own, lane(lanes, one), alone)
        same_bits(alone, SlotColumns(*(column[here] for column in found)))


def drafting(
    kind: str, lanes: int, length: int, vocabulary: int, rank: int
) -> tuple[torch.Tensor, LowRank | None]:
    logits = logits_of(kind, lanes, length, vocabulary)
    if not rank:
        return logits, None
    g = torch.Generator().manual_seed(rank)
    # eighths, so that the order of a sum makes no difference to ties
    parts = [torch.randint(-4, 5, (rows, rank), generator=g) / 8 for rows in (2 * vocabulary + 1, vocabulary)]
    return logits, LowRank(*(part.bfloat16() for part in parts))


@pytest.mark.parametrize(
    ("kind", "vocabulary", "rank", "mapped", "branches"),
    [
        ("equal", 40, 0, True, 1),
        ("infinite", 64, 3, True, 2),
        ("quantised", 65, 8, False, 1),
        ("quantised", 511, 20, False, 1),
        ("infinite", 1023, 0, False, 2),
        ("equal", 1025, 8, True, 1),
        ("infinite", 1024, 20, True, 1),
        ("quantised", 2100, 3, False, 1),
    ],
)
def test_best_levels_are_the_references(
    kind: str, vocabulary: int, rank: int, mapped: bool, branches: int
) -> None:
    length, top = 3, 32 if vocabulary > 1024 else 16
    logits, bias = drafting(kind, 2, length, vocabulary, rank)
    if kind == "infinite":
        # nothing can be drafted half way down
        logits = logits.nan_to_num(posinf=2.0)
        logits[0] = logits[1]
        logits[1, 1] = -torch.inf
    ids = 2 * torch.arange(vocabulary, dtype=torch.int32) if mapped else None
    tree, lanes, law = RoundTree.make(length, branches, 2, "cpu"), lanes_of(2, [0.0, 0.0]), DraftLaw(8)
    found, leveled, wanted = (draft_columns(2, tree, top) for _ in range(3))
    for depth in range(1, length + 1):
        for out, impl in ((leveled, "triton"), (wanted, "reference")):
            draft_level(logits, depth, bias, law, tree, lanes, out, ids=ids, impl=impl)
        if depth == 1 and branches > 1:
            draft_level(logits, depth, bias, law, tree, lanes, found, ids=ids)
    draft_best(logits, bias, law, tree, lanes, found, ids=ids, first=min(branches, 2))
    for name, mine, by_level, theirs in zip(found._fields, found, leveled, wanted, strict=True):
        for given in (mine, by_level):
            there = slice(1, None) if name == "rows" else slice(None)
            if name in ("ranks", "margins"):
                # of what is not there, they say nothing
                given, theirs = (torch.where(wanted.tokens >= 0, part, 0) for part in (given, theirs))
            torch.testing.assert_close(
                given[:, there], theirs[:, there], atol=2e-6, rtol=1e-5, equal_nan=True, msg=name
            )


@pytest.mark.parametrize(("rank", "vocabulary"), [(0, 1025), (5, 40), (8, 1025), (20, 40)])
def test_no_lane_knows_of_the_others(vocabulary: int, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # as many rows a program as can be, of the last one not all
    monkeypatch.setattr(round_best_triton, "PROGRAMS", 1)
    monkeypatch.setattr(round_best_triton, "GROUP", 2)
    count, length = 3, 2
    logits, bias = drafting("floats", count, length, vocabulary, rank)
    lanes, law = lanes_of(count, [0.0] * count), DraftLaw(8)
    tree, own = (RoundTree.make(length, 1, rows, "cpu") for rows in (count, 1))
    together = draft_columns(count, tree, 16)
    draft_best(logits, bias, law, tree, lanes, together)
    for one in range(count):
        alone = draft_columns(1, own, 16)
        draft_best(logits[one : one + 1], bias, law, own, lane(lanes, one), alone)
        same_bits(alone, DraftColumns(*(column[one : one + 1] for column in together)))


def test_a_call_leaves_its_scratch_fit_for_the_next() -> None:
    scratch = BestScratch.make(8, 600, True, torch.device("cpu"))
    for kind, count, length, branches in [("floats", 2, 3, 1), ("equal", 1, 2, 3), ("infinite", 2, 2, 1)]:
        logits, bias = drafting(kind, count, length, 600, 8)
        tree, lanes = RoundTree.make(length, branches, count, "cpu"), lanes_of(count, [0.0] * count)
        fresh, used = (draft_columns(count, tree, 16) for _ in range(2))
        for out, held in ((fresh, None), (used, scratch)):
            if branches > 1:
                draft_level(logits, 1, bias, DraftLaw(8), tree, lanes, out)
            draft_best(logits, bias, DraftLaw(8), tree, lanes, out, first=min(branches, 2), scratch=held)
        same_bits(used, fresh)
        assert (scratch.leads == torch.iinfo(torch.int64).min).all()

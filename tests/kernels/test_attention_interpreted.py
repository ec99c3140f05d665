"""Tree and block attention in Triton's interpreter against float64 oracles."""

from __future__ import annotations

import pytest
import torch

from dflash.kernels.attention_plan import TILES, Tile, plan
from dflash.kernels.block_attention import block_attention
from dflash.kernels.tree_attention import attention_scratch, tree_attention
from tests.kernels.tree_cases import Case, assert_close, dense_oracle, make_case, random_parents

pytestmark = pytest.mark.usefixtures("interpreted")
LIMIT = {torch.float32: 1e-5, torch.float16: 2e-3}
SMALL = Tile(16, 32, 4, 2, 16, 32, True, 4, 4)
TWO_KERNELS = SMALL._replace(ticket=False)


def run(case: Case, **options: object) -> torch.Tensor:
    out = torch.full_like(case.q, torch.nan)
    nodes = len(case.parents[0])
    return tree_attention(
        case.q, case.k, case.v, case.lengths, case.words, nodes, pages=case.pages, out=out, **options
    )


def trees(lanes: int, nodes: int, pads: int = 0, seed: int = 0) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [random_parents(nodes, g, pads) for _ in range(lanes)]


@pytest.mark.parametrize("tile", [SMALL, TWO_KERNELS], ids=["ticket", "merge"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("group", [1, 3, 4, 5, 8])
def test_groups_and_ragged_lengths(group: int, dtype: torch.dtype, tile: Tile) -> None:
    case = make_case(trees(4, 5, seed=group), [0, 1, 31, 65], group, 64, dtype=dtype)
    assert_close("tree", run(case, tile=tile), dense_oracle(case), LIMIT[dtype])


@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("head", [64, 96, 128])
def test_head_sizes_and_pages(head: int, page: int) -> None:
    case = make_case(trees(2, 7, pads=2, seed=head), [33, 130], 3, head, page=page)
    assert_close("tree", run(case, tile=SMALL), dense_oracle(case), 1e-5)


@pytest.mark.parametrize("mode", ["fast", "replay-exact"])
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129])
def test_around_the_tile_edges(length: int, mode: str) -> None:
    case = make_case(trees(1, 9, seed=length), [length], 4, 64, kv_heads=1)
    assert_close("tree", run(case, mode=mode), dense_oracle(case), 1e-5)


SHAPES = {
    "chain": [i - 1 for i in range(64)],
    "star": [-1] * 64,
    "binary": [(i - 1) // 2 if i else -1 for i in range(64)],
    "one": [-1],
    "siblings": [-1, -1, 0, 0, 1, 1, 2, 2],
    "only pads": [-2, -2, -2],
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("length", [0, 70])
def test_shapes_of_trees(name: str, length: int) -> None:
    case = make_case([SHAPES[name]], [length], 1, 64, kv_heads=1)
    found = run(case)
    assert_close(name, found, dense_oracle(case), 1e-5)
    assert not found.isnan().any()


def distinct_tiles() -> dict[str, tuple[int, Tile]]:
    """The production tiles that differ in what the interpreter runs, and the head size of each."""
    found = {}
    for (head, _, _), tile in TILES.items():
        code = (head, tile.block_m, tile.block_n, tile.ticket, tile.two_loops, tile.half)
        found[" ".join(map(str, code))] = (head, tile)
    return found


@pytest.mark.parametrize("name", distinct_tiles())
def test_every_production_tile(name: str) -> None:
    head, tile = distinct_tiles()[name]
    case = make_case(trees(2, 7, pads=1), [330, 64], 4, head, kv_heads=1, dtype=torch.float16)
    assert_close("tree", run(case, tile=tile), dense_oracle(case), 2e-3)


def test_replay_exact_computes_the_same_with_few_programs_and_with_many() -> None:
    for (head, rows, regime), tile in TILES.items():
        if regime == "exact":
            full = TILES[head, rows, "exact full"]
            assert full._replace(stages=tile.stages, prefetch=tile.prefetch) == tile


def test_draft_step_has_fewer_queries_than_tail_rows() -> None:
    """One query a branch: the tail holds three rows of each of two branches, a query sees its own."""
    parents = [[-1, -1, 0, 1, 2, 3]]
    case = make_case(parents, [40], 4, 64)
    step = case._replace(q=case.q[:, 5:7], words=case.words[:, 5:7].contiguous())
    assert_close("step", run(step, tile=SMALL), dense_oracle(case)[:, 5:7], 1e-5)


@pytest.mark.parametrize("n", [1, 8, 64])
def test_block_sees_context_and_the_whole_block(n: int) -> None:
    case = make_case([[i - 1 for i in range(n)]] * 2, [0, 90], 2, 64)
    full = torch.full_like(case.words[:, 1:], -1 if n == 64 else (1 << n) - 1)
    found = block_attention(
        case.q[:, 1:], case.k, case.v, case.lengths, out=torch.full_like(case.q[:, 1:], torch.nan)
    )
    chain_end = make_case([[i - 1 for i in range(n)]] * 2, [0, 90], 2, 64)._replace(
        q=case.q[:, 1:], words=full, parents=[[i - 1 for i in range(n)]] * 2
    )
    expected = _block_oracle(chain_end, n)
    assert_close("block", found, expected, 1e-5)


def _block_oracle(case: Case, n: int) -> torch.Tensor:
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    group = case.q.shape[2] // case.k.shape[1]
    for lane, length in enumerate(case.lengths.tolist()):
        keys = case.k[lane, :, : length + n].double().repeat_interleave(group, 0)
        values = case.v[lane, :, : length + n].double().repeat_interleave(group, 0)
        scores = torch.einsum("qhd,hrd->hqr", case.q[lane].double(), keys) / case.q.shape[-1] ** 0.5
        out[lane] = torch.einsum("hqr,hrd->qhd", scores.softmax(-1), values)
    return out


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_other_strides(impl: str) -> None:
    """Tokens-major caches and head-major queries are views; nothing is copied."""
    case = make_case(trees(2, 5), [9, 50], 4, 64)
    swapped = case._replace(
        k=case.k.transpose(1, 2).contiguous().transpose(1, 2),
        v=case.v.transpose(1, 2).contiguous().transpose(1, 2),
        q=case.q.transpose(1, 2).contiguous().transpose(1, 2),
    )
    out = tree_attention(swapped.q, swapped.k, swapped.v, swapped.lengths, swapped.words, 5, impl=impl)
    assert_close("strides", out, dense_oracle(case), 1e-5)


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("group", [1, 5])
def test_the_reference_agrees_with_the_oracle(group: int, page: int) -> None:
    case = make_case(trees(3, 6, pads=1), [0, 3, 20], group, 96, page=page)
    assert_close("reference", run(case, impl="reference"), dense_oracle(case), 1e-5)
    exact = case._replace(q=case.q.double(), k=case.k.double(), v=case.v.double())
    assert_close("float64", run(exact, impl="reference"), dense_oracle(case), 1e-12)


def test_one_chunk_equals_many() -> None:
    case = make_case(trees(2, 6), [100, 300], 4, 64)
    one = run(case, tile=SMALL._replace(programs=1, min_chunk=4096))
    many = run(case, tile=SMALL._replace(programs=64))
    assert_close("chunks", many, one.double(), 1e-6)


@pytest.mark.parametrize("tile", [SMALL, TWO_KERNELS], ids=["ticket", "merge"])
@pytest.mark.parametrize("nodes", [5, 64])
@pytest.mark.parametrize("length", [127, 128, 129, 512])
def test_the_rows_after_a_trunk_need_no_program_of_their_own(length: int, nodes: int, tile: Tile) -> None:
    case = make_case(trees(1, nodes), [length], 1, 64, kv_heads=4)
    sizes = {"queries": nodes, "kv_heads": 4, "group": 1, "head": 64, "capacity": 1024}
    made = plan(1, **sizes, mode="fast", tile=tile)
    assert made.grid_items * made.row_tiles * sizes["kv_heads"] <= tile.programs
    assert_close("tree", run(case, tile=tile), dense_oracle(case), 1e-5)


@pytest.mark.parametrize("tile", [SMALL, TWO_KERNELS], ids=["ticket", "merge"])
def test_replay_exact_ignores_the_other_lanes(tile: Tile) -> None:
    case = make_case(trees(3, 6), [100, 300, 0], 4, 64)
    together = run(case, mode="replay-exact", tile=tile)
    for lane in range(3):
        alone = Case(*(t[lane : lane + 1] for t in case[:5]), case.parents[lane : lane + 1], None)
        assert torch.equal(run(alone, mode="replay-exact", tile=tile)[0], together[lane])


def test_scratch_is_clean_for_the_next_call() -> None:
    case = make_case(trees(2, 6), [100, 300], 4, 64)
    scratch = attention_scratch(case.q, case.k, case.v, case.lengths, case.words, 6, tile=SMALL)
    first = run(case, tile=SMALL, scratch=scratch)
    assert int(scratch.tickets.abs().sum()) == 0
    assert torch.equal(run(case, tile=SMALL, scratch=scratch), first)

"""The small products in Triton's interpreter against float64 oracles: odd shapes, splits, exact bits."""

from __future__ import annotations

import itertools

import pytest
import torch

from dflash.kernels.embed_rows import embed_rows
from dflash.kernels.gate_up import gate_up
from dflash.kernels.product_plan import MANY, TILES, ProductTile
from dflash.kernels.product_scratch import product_scratch
from dflash.kernels.qkv_rope import HeadNorms, Rotary, qkv_rope
from dflash.kernels.row_norm import CarriedNorm
from dflash.kernels.row_product import row_plan, row_product
from tests.kernels.product_cases import (
    Heads,
    draw,
    draw_heads,
    gate_up_oracle,
    heads_oracle,
    poisoned,
    product_oracle,
)
from tests.kernels.tree_cases import assert_close

pytestmark = pytest.mark.usefixtures("interpreted")
LIMIT = {torch.float32: 1e-6, torch.float16: 2e-3}
PLAIN = ProductTile(16, 64, 4, 3, 1, False, 0, True)
SPLIT = ProductTile(32, 32, 4, 3, 10**6, True, 0, False)
DTYPE = {"fp32": torch.float32, "fp16": torch.float16}
WAYS = {"fp32 split": (torch.float32, SPLIT), "fp16 whole": (torch.float16, PLAIN)}
BY_WARPS = {
    "fp32 split by warps": (torch.float32, SPLIT._replace(half=8, swap=False, block_k=16, ways=2)),
    "fp16 by warps": (torch.float16, PLAIN._replace(swap=True, block_k=16, ways=4)),
}


@pytest.fixture(autouse=True)
def _short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let depths of the tests' size be split."""
    monkeypatch.setattr("dflash.kernels.product_plan.LEAST_SPLIT", 40)


@pytest.mark.parametrize(
    ("terms", "way"),
    [
        *itertools.product(["", "norm", "bias", "residual"], WAYS),
        *(("norm bias residual", way) for way in WAYS | BY_WARPS),
    ],
)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 40, 16), (17, 33, 144), (65, 96, 80)])
def test_rows(rows: int, columns: int, depth: int, terms: str, way: str) -> None:
    dtype, tile = (WAYS | BY_WARPS)[way]
    case = draw(rows, columns, depth, dtype, seed=rows)
    given = {name: getattr(case, name) for name in terms.split()}
    out = poisoned(rows, columns, case.x)
    found = row_product(case.x, case.weight, **given, eps=1e-5, out=out, tile=tile)
    assert found is out
    asked = {name: name in given for name in ("norm", "bias", "residual")}
    assert_close(terms, found, product_oracle(case, 1e-5, **asked), LIMIT[dtype])


def test_a_residual_may_be_where_the_result_goes() -> None:
    case = draw(5, 48, 96, torch.float32)
    expected = product_oracle(case, 1e-6, norm=False, bias=False, residual=True)
    found = row_product(case.x, case.weight, residual=case.residual, out=case.residual, tile=SPLIT)
    assert_close("in place", found, expected, 1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("rows", "inner", "depth"), [(1, 24, 16), (18, 50, 144), (64, 48, 80)])
def test_gate_up(rows: int, inner: int, depth: int, way: str) -> None:
    dtype, tile = WAYS[way]
    case = draw(rows, 2 * inner, depth, dtype, seed=rows)
    out = poisoned(rows, inner, case.x)
    found = gate_up(case.x, case.weight, case.norm, eps=1e-5, out=out, tile=tile)
    assert_close("gate up", found, gate_up_oracle(case, 1e-5), LIMIT[dtype])


CARRIES = {"32 parts, split": SPLIT._replace(half=8), "one part": PLAIN._replace(half=256)}


@pytest.mark.parametrize("dtype", DTYPE)
@pytest.mark.parametrize("tile", CARRIES.values(), ids=CARRIES)
@pytest.mark.parametrize("rows", [1, 17, 65])
def test_a_norm_is_carried_from_launch_to_launch(rows: int, tile: ProductTile, dtype: str) -> None:
    """The next launch reads what was carried, and not the rows themselves."""
    case = draw(rows, 512, 80, DTYPE[dtype], seed=rows)
    made = product_oracle(case, 1e-5, norm=False, bias=True, residual=True).to(case.x.dtype)
    parts = row_plan(rows, 512, 80, "fast", tile).column_tiles
    carried = CarriedNorm(
        draw(1, 1, 512, DTYPE[dtype]).norm, poisoned(rows, 512, case.x), torch.full((parts, rows), torch.nan)
    )
    found = row_product(
        case.x, case.weight, bias=case.bias, residual=case.residual, carry=carried,
        out=poisoned(rows, 512, case.x), tile=tile,
    )  # fmt: skip
    assert_close("made", found, made, LIMIT[case.x.dtype])
    reader = draw(rows, 96, 512, DTYPE[dtype], seed=7)._replace(x=found.clone(), norm=carried.gain)
    expected = product_oracle(reader, 1e-5, norm=True, bias=False, residual=False)
    gated = gate_up_oracle(reader, 1e-5)
    found.fill_(torch.nan)
    for name, impl in (("triton", "triton"), ("reference", "reference")):
        again = row_product(found, reader.weight, norm=carried, eps=1e-5, impl=impl, tile=PLAIN)
        assert_close(name, again, expected, LIMIT[case.x.dtype])
        assert_close(
            name, gate_up(found, reader.weight, carried, eps=1e-5, impl=impl), gated, LIMIT[case.x.dtype]
        )
    heads = draw_heads(rows, 1, 1, 64, 512, DTYPE[dtype])
    heads = heads._replace(rows=reader._replace(weight=heads.rows.weight, bias=heads.rows.bias))
    queries = heads_oracle(heads, 1e-5, 1e-4, norm=True, bias=False, head_norms=False)
    carrying = heads._replace(rows=heads.rows._replace(x=found, norm=carried))
    for ours, theirs in zip(run(carrying), queries, strict=True):
        assert_close("heads", *same_holes(ours, theirs), LIMIT[case.x.dtype])


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("parts", [1, 33, 300])
def test_carried_squares_come_in_any_number_of_parts(parts: int, warps: int) -> None:
    """More or fewer than are loaded before the products, which goes by the warps."""
    case = draw(17, 96, 128, torch.float32)
    shares = torch.rand(parts, 17, dtype=torch.float64) + 0.1
    squares = case.x.double().square().sum(1) * shares / shares.sum(0)
    carried = CarriedNorm(case.norm, case.x * case.norm, squares.float())
    tile = PLAIN._replace(warps=warps)
    found = gate_up(torch.full_like(case.x, torch.nan), case.weight, carried, eps=1e-5, tile=tile)
    assert_close("gated", found, gate_up_oracle(case, 1e-5), LIMIT[torch.float32])


@pytest.mark.parametrize("dtype", DTYPE)
@pytest.mark.parametrize(("rows", "width", "scale"), [(1, 16, 1.0), (17, 144, 2.5)])
def test_embeddings_with_their_norm(rows: int, width: int, scale: float, dtype: str) -> None:
    g = torch.Generator().manual_seed(rows)
    table = torch.randn(50, width, generator=g).to(DTYPE[dtype])
    tokens = torch.randint(0, 50, (rows,), generator=g, dtype=torch.int32)
    gain = draw(1, 1, width, DTYPE[dtype]).norm
    for impl in ("triton", "reference"):
        carried = CarriedNorm(gain, poisoned(rows, width, table), torch.full((1, rows), torch.nan))
        found = embed_rows(tokens, table, poisoned(rows, width, table), carried, scale=scale, impl=impl)
        expected = table[tokens.long()].double() * scale
        assert_close("rows", found, expected, LIMIT[table.dtype])
        assert_close("gained", carried.rows, expected * gain.double(), LIMIT[table.dtype])
        assert_close("squares", carried.squares[0], found.double().square().sum(1), 1e-6)


def run(case: Heads, *, bias: bool = False, head_norms: bool = False, norm: bool = True, **given: object):
    out = poisoned(len(case.positions), case.heads * case.k.shape[3], case.rows.x)
    k, v = case.k.clone(), case.v.clone()
    norms = HeadNorms(case.q_gain, case.k_gain, 1e-4) if head_norms else None
    qkv_rope(
        case.rows.x, case.rows.weight, case.rows.norm if norm else None, Rotary(case.cos, case.sin),
        case.positions, case.places, k, v, eps=1e-5, bias=case.rows.bias if bias else None,
        head_norms=norms, out=out, **given,
    )  # fmt: skip
    return out.unflatten(1, (case.heads, case.k.shape[3])), k, v


def same_holes(found: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Nothing but the rows' own places was written; compare the rest."""
    assert torch.equal(found.isnan().cpu(), expected.isnan().cpu())
    return found.nan_to_num(), expected.nan_to_num()


HEADS = {
    "llama": (1, 2, 1, 64),
    "qwen2": (19, 3, 1, 64),
    "qwen3": (17, 1, 2, 96),
    "qwen3 d128": (5, 3, 1, 128),
    "no norm": (65, 1, 1, 96),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", HEADS)
def test_qkv(kind: str, way: str) -> None:
    rows, heads, kv_heads, head = HEADS[kind]
    dtype, tile = WAYS[way]
    case = draw_heads(rows, heads, kv_heads, head, 144, dtype, pads=rows // 6, seed=rows)
    asked = {"bias": kind == "qwen2", "head_norms": "qwen3" in kind, "norm": kind != "no norm"}
    found = run(case, **asked, tile=tile)
    expected = heads_oracle(case, 1e-5, 1e-4, **asked)
    assert_close("q", found[0], expected[0], LIMIT[dtype])
    for name, ours, theirs in zip("kv", found[1:], expected[1:], strict=True):
        assert_close(name, *same_holes(ours, theirs), LIMIT[dtype])


def test_rows_without_queries_are_appended_only() -> None:
    case = draw_heads(9, 0, 2, 64, 80, torch.float32)
    found = run(case, head_norms=True, norm=False)
    expected = heads_oracle(case, 1e-5, 1e-4, norm=False, bias=False, head_norms=True)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert_close("append", *same_holes(ours, theirs), 1e-6)


PRODUCTION = TILES | {(product, rows, size): tile for (rows, product, size), tile in MANY.items()}


@pytest.mark.parametrize("key", sorted(PRODUCTION), ids=lambda key: " ".join(map(str, key)))
def test_every_production_tile(key: tuple[str, int, str]) -> None:
    product, rows, _ = key
    tile = PRODUCTION[key]
    if product == "qkv":
        case = draw_heads(rows, 1, 1, 64, 272, torch.float16)
        expected = heads_oracle(case, 1e-5, 1e-4, norm=True, bias=False, head_norms=True)
        assert_close("q", run(case, tile=tile, head_norms=True)[0], expected[0], 2e-3)
        return
    case = draw(rows, 96, 272, torch.float16)
    if product == "rows":
        found = row_product(case.x, case.weight, tile=tile)
        expected = product_oracle(case, 1e-6, norm=False, bias=False, residual=False)
    else:
        found = gate_up(case.x, case.weight, case.norm, eps=1e-5, tile=tile)
        expected = gate_up_oracle(case, 1e-5)
    assert_close(product, found, expected, 2e-3)


@pytest.mark.parametrize("dtype", DTYPE)
def test_replay_exact_ignores_the_other_rows(dtype: str) -> None:
    case = draw(70, 64, 144, DTYPE[dtype])
    heads = draw_heads(70, 2, 1, 64, 144, DTYPE[dtype])
    together = row_product(case.x, case.weight, norm=case.norm, mode="replay-exact")
    gated = gate_up(case.x, case.weight, case.norm, mode="replay-exact")
    queries, _, values = run(heads, mode="replay-exact")
    for rows in ([3], list(range(60, 70)), list(range(69, -1, -1))):
        x = case.x[rows]
        assert torch.equal(row_product(x, case.weight, norm=case.norm, mode="replay-exact"), together[rows])
        assert torch.equal(gate_up(x, case.weight, case.norm, mode="replay-exact"), gated[rows])
        part = Heads(
            heads.rows._replace(x=heads.rows.x[rows]), heads.cos, heads.sin, heads.positions[rows],
            heads.places[rows], *heads[5:],
        )  # fmt: skip
        found, _, stored = run(part, mode="replay-exact")
        assert torch.equal(found, queries[rows])
        lanes, places = heads.places[rows].long().unbind(1)
        assert torch.equal(stored[lanes, :, places], values[lanes, :, places])


def test_scratch_is_shared_and_its_counters_end_at_zero() -> None:
    case = draw(20, 64, 144, torch.float32)
    plan = row_plan(20, 64, 144, "fast", SPLIT)
    assert plan.splits > 1
    scratch = product_scratch([plan, row_plan(3, 64, 144, "fast", SPLIT)], case.x.device)
    first = row_product(case.x, case.weight, tile=SPLIT, scratch=scratch)
    assert not scratch.tickets.any()
    again = row_product(case.x, case.weight, tile=SPLIT, scratch=scratch)
    assert torch.equal(first, again)


@pytest.mark.parametrize("half", [32, 64])
@pytest.mark.parametrize("depth", [96, 320, 480])
@pytest.mark.parametrize("rows", [9, 40])
def test_splits_leave_the_sum_of_the_whole(rows: int, depth: int, half: int) -> None:
    """However many of them are added up at once, which goes by the size of the tile."""
    case = draw(rows, 64, depth, torch.float32)
    whole = row_product(case.x, case.weight, norm=case.norm, tile=PLAIN)
    split = row_product(case.x, case.weight, norm=case.norm, tile=SPLIT._replace(half=half))
    assert_close("splits", split, whole, 1e-6)

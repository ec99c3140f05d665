"""The small products on a device: real dtypes, their bits, splits, chained launches and graphs."""

from __future__ import annotations

import pytest
import torch

from dflash.kernels.gate_up import gate_up, gate_up_plan
from dflash.kernels.product_plan import TILES, ProductTile
from dflash.kernels.product_scratch import product_scratch
from dflash.kernels.qkv_rope import HeadNorms, Rotary, qkv_rope
from dflash.kernels.row_norm import carried_norm
from dflash.kernels.row_product import row_plan, row_product
from tests.kernels.product_cases import (
    Heads,
    apart,
    draw,
    draw_heads,
    gate_up_oracle,
    heads_oracle,
    poisoned,
    product_oracle,
)
from tests.kernels.tree_cases import assert_close

pytestmark = pytest.mark.gpu
LIMIT = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(1, 576, 1536), (17, 576, 576), (64, 2048, 2048), (33, 4096, 14336), (130, 97, 80)],
)
def test_rows_against_float64(rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
    case = draw(rows, columns, depth, dtype)
    expected = product_oracle(case, 1e-5, norm=True, bias=True, residual=True)
    x, weight, norm, bias, residual = case.to("cuda")
    for mode in ("fast", "replay-exact"):
        given = {"norm": norm, "bias": bias, "residual": residual, "eps": 1e-5, "mode": mode}
        found = row_product(x, weight, **given, out=poisoned(rows, columns, x))
        assert_close(mode, found, expected, LIMIT[dtype])
        for _ in range(20):
            assert torch.equal(row_product(x, weight, **given), found)


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize(("rows", "inner", "depth"), [(1, 1536, 576), (17, 8192, 2048), (64, 50, 144)])
def test_gate_up_against_float64(rows: int, inner: int, depth: int, dtype: torch.dtype) -> None:
    case = draw(rows, 2 * inner, depth, dtype)
    expected = gate_up_oracle(case, 1e-5)
    x, weight, norm = case.to("cuda")[:3]
    for mode in ("fast", "replay-exact"):
        found = gate_up(x, weight, norm, eps=1e-5, mode=mode, out=poisoned(rows, inner, x))
        assert_close(mode, found, expected, LIMIT[dtype])
        for _ in range(20):
            again = gate_up(x, weight, norm, eps=1e-5, mode=mode, out=poisoned(rows, inner, x))
            assert torch.equal(again, found)
    # rows that lie elsewhere are compiled apart: only this mode promises their bits then
    assert torch.equal(gate_up(x, weight, norm, eps=1e-5, mode="replay-exact"), found)


def project(case: Heads, *, bias: bool = False, head_norms: bool = False, **given: object):
    norms = HeadNorms(case.q_gain, case.k_gain, 1e-4) if head_norms else None
    k, v = case.k.clone(), case.v.clone()
    out = poisoned(len(case.positions), case.heads * case.k.shape[3], case.rows.x)
    qkv_rope(
        case.rows.x, case.rows.weight, case.rows.norm, Rotary(case.cos, case.sin), case.positions,
        case.places, k, v, eps=1e-5, bias=case.rows.bias if bias else None, head_norms=norms, out=out,
        **given,
    )  # fmt: skip
    return out.unflatten(1, (case.heads, -1)), k, v


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "head", "depth", "kind"),
    [
        (1, 9, 3, 64, 576, ""),
        (17, 32, 8, 64, 2048, ""),
        (33, 16, 8, 128, 1024, "head_norms"),
        (64, 4, 2, 96, 576, "bias"),
        (100, 5, 1, 128, 4096, "head_norms"),
    ],
)
def test_heads_against_float64(
    rows: int, heads: int, kv_heads: int, head: int, depth: int, kind: str, dtype: torch.dtype
) -> None:
    case = draw_heads(rows, heads, kv_heads, head, depth, dtype, pads=rows // 5)
    asked = {"bias": kind == "bias", "head_norms": kind == "head_norms"}
    expected = heads_oracle(case, 1e-5, 1e-4, norm=True, **asked)
    for mode in ("fast", "replay-exact"):
        found = project(case.to("cuda"), mode=mode, **asked)
        for name, ours, theirs in zip("qkv", found, expected, strict=True):
            assert torch.equal(ours.isnan().cpu(), theirs.isnan())
            assert_close(f"{mode} {name}", ours.nan_to_num(), theirs.nan_to_num(), LIMIT[dtype])


@pytest.mark.parametrize("key", sorted(TILES), ids=lambda key: " ".join(map(str, key)))
def test_every_tile_repeats_its_bits_split_or_not(key: tuple[str, int, str]) -> None:
    _, rows, size = key
    depth = {"small": 576, "deep": 1536}.get(size, 4096)
    case = draw(rows, 512, depth, torch.bfloat16)
    expected = product_oracle(case, 1e-6, norm=False, bias=False, residual=False)
    x, weight = case.to("cuda")[:2]
    for programs in (1, 10**6):
        tile = TILES[key]._replace(programs=programs)
        first = row_product(x, weight, tile=tile)
        assert_close("tile", first, expected, 1e-2)
        for _ in range(50):
            assert torch.equal(row_product(x, weight, tile=tile), first)


@pytest.mark.parametrize("columns", [576, 4096])
def test_replay_exact_ignores_the_other_rows(columns: int) -> None:
    case = draw(200, columns, 4096, torch.bfloat16).to("cuda")
    together = row_product(case.x, case.weight, norm=case.norm, mode="replay-exact")
    gated = gate_up(case.x, case.weight, case.norm, mode="replay-exact")
    for rows in ([3], list(range(150, 199)), list(range(199, -1, -1))):
        x = apart(case.x[rows])
        found = row_product(x, case.weight, norm=case.norm, mode="replay-exact")
        assert torch.equal(found, together[rows])
        assert torch.equal(gate_up(x, case.weight, case.norm, mode="replay-exact"), gated[rows])


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize(("rows", "width", "depth"), [(1, 576, 1536), (17, 576, 576), (40, 4096, 2048)])
def test_a_carried_norm_is_the_norm(rows: int, width: int, depth: int, dtype: torch.dtype) -> None:
    case, reader = draw(rows, width, depth, dtype), draw(rows, 992, width, dtype, seed=5)
    for mode in ("fast", "replay-exact"):
        carried = carried_norm(reader.norm.cuda(), rows, depth, mode)
        x, weight, _, _, residual = case.to("cuda")
        made = row_product(x, weight, residual=residual, carry=carried, mode=mode)
        expected = product_oracle(case, 1e-6, norm=False, bias=False, residual=True)
        assert_close("made", made, expected, LIMIT[dtype])
        seen = reader._replace(x=made.cpu())
        found = row_product(made, reader.weight.cuda(), norm=carried, mode=mode)
        wanted = product_oracle(seen, 1e-6, norm=True, bias=False, residual=False)
        assert_close("normed", found, wanted, LIMIT[dtype])
        gated = gate_up(made, reader.weight.cuda(), carried, mode=mode)
        assert_close("gated", gated, gate_up_oracle(seen, 1e-6), LIMIT[dtype])


EARLY = ProductTile(16, 64, 4, 4, 132, False, 512, True)
TILES_OF_A_CHAIN = {
    "table": None,
    "early": EARLY,
    "early, by the row": EARLY._replace(bulk=True, prefetch=4096),
}


@pytest.mark.parametrize("tile", TILES_OF_A_CHAIN.values(), ids=TILES_OF_A_CHAIN)
def test_a_chain_of_early_launches_in_a_graph_is_the_chain_without_them(tile: ProductTile | None) -> None:
    """Every kernel starts under the tail of the one before: none may read what is not there yet."""
    g = torch.Generator().manual_seed(0)
    widths = (512, 1024, 512)
    gate, down = (
        (torch.randn(shape, generator=g) / shape[1] ** 0.5).bfloat16().cuda()
        for shape in ((2 * widths[1], widths[0]), (widths[2], widths[1]))
    )
    norm = torch.ones(512, dtype=torch.bfloat16, device="cuda")
    start = torch.randn((17, 512), generator=g).bfloat16().cuda()
    plans = [gate_up_plan(17, 1024, 512, "fast", tile), row_plan(17, 512, 1024, "fast", tile)]
    scratch = product_scratch(plans, start.device)
    x, inner = start.clone(), start.new_empty(17, 1024)
    carried = carried_norm(norm, 17, 1024)._replace(
        squares=start.new_empty(plans[1].column_tiles, 17).float()
    )

    def chain(pdl: bool) -> None:
        gate_up(x, gate, norm, out=inner, scratch=scratch, pdl=pdl, tile=tile)
        for _ in range(30):
            row_product(inner, down, residual=x, out=x, carry=carried, scratch=scratch, pdl=pdl, tile=tile)
            gate_up(x, gate, carried, out=inner, scratch=scratch, pdl=pdl, tile=tile)

    chain(False)
    expected = x.clone()
    x.copy_(start)
    chain(True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(True)
    for _ in range(20):
        x.copy_(start)
        graph.replay()
        assert torch.equal(x, expected)
    assert not scratch.tickets.any()

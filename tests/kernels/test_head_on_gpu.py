"""The head and the packing of features on a device: real dtypes, bits, graphs, and the choice of the CPU."""

from __future__ import annotations

import pytest
import torch

from dflash.kernels.feature_codes import CODES, decode_features, encode_features
from dflash.kernels.lm_head_call import HeadScores
from dflash.kernels.lm_head_plan import HEAD_TILES, HeadTile
from dflash.kernels.lm_head_topk import head_scratch, lm_head_topk
from dflash.kernels.pack_features import PackTile, feature_ring, pack_features
from dflash.kernels.row_norm import CarriedNorm
from tests.kernels.head_cases import (
    Head,
    head_of_row,
    logits_of,
    make_head,
    noise_of,
    poisoned,
    row_of,
    same_bits,
)
from tests.kernels.pack_cases import make_round
from tests.kernels.tree_cases import assert_close

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def score(case: Head, top: int, **options: object) -> HeadScores:
    out = poisoned(len(case.hidden), top, case.asked.shape[1], "cuda")
    return lm_head_topk(
        case.hidden, case.weight, top, **({"asked": case.asked, "draw": case.draw, "out": out} | options)
    )


def check_scores(found: HeadScores, logits: torch.Tensor, asked: torch.Tensor, limit: float) -> None:
    """The values of the tokens that came out, and that none better stayed behind, but for rounding."""
    picked = logits.gather(1, found.ids.long().cpu())
    best = logits.topk(found.ids.shape[1]).values
    assert_close("values", found.values, best, limit)
    assert_close("tokens", picked, best, limit)
    assert_close("lse", found.lse, torch.logsumexp(logits, -1), limit)
    inside = (asked >= 0) & (asked < logits.shape[1])
    expected = logits.gather(1, asked.clamp(0, logits.shape[1] - 1).long())
    assert found.asked is not None
    assert_close("asked", found.asked.cpu().where(inside, 0), expected.where(inside, 0), limit)
    assert (found.asked.cpu()[~inside] == -torch.inf).all()


@pytest.mark.parametrize(
    ("rows", "vocabulary", "width", "top", "dtype"),
    [
        (1, 49152, 576, 1, torch.bfloat16),
        (16, 4999, 2048, 8, torch.bfloat16),
        (17, 32001, 576, 16, torch.bfloat16),
        (32, 128256, 512, 32, torch.bfloat16),
        (64, 9973, 1024, 8, torch.bfloat16),
        (130, 3001, 1040, 5, torch.bfloat16),
        (17, 32001, 576, 16, torch.float16),
        (16, 4999, 2048, 8, torch.float32),
        (130, 3001, 1040, 5, torch.float32),
    ],
    ids=str,
)
def test_against_float64(rows: int, vocabulary: int, width: int, top: int, dtype: torch.dtype) -> None:
    case = make_head(rows, vocabulary, width, dtype=dtype, seed=rows)
    moved, logits = case.to("cuda"), logits_of(case)
    for mode in ("fast", "replay-exact"):
        found = score(moved, top, mode=mode)
        check_scores(found, logits, case.asked, 1e-5)
        assert same_bits(score(moved, top, mode=mode), found)
        bare = score(moved, top, mode=mode, draw=None, out=None)
        check_scores(bare, logits, case.asked, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0, 30.0])
def test_the_choice_is_that_of_the_cpu(temperature: float, dtype: torch.dtype) -> None:
    """Whole numbers have the same logits on both, so that choice and lead must agree bit for bit."""
    case = make_head(24, 20011, 32, dtype=dtype, whole=True)
    case.draw.temperatures.fill_(temperature)
    logits = logits_of(case).float()
    scores = logits - logits.amax(-1, keepdim=True)
    if temperature:
        noise = torch.stack([noise_of(case.draw, row, 20011) for row in range(24)])
        scores = scores / temperature - noise
    best = torch.sort(scores, dim=-1, descending=True, stable=True)
    found = score(case.to("cuda"), 4)
    assert found.choice is not None
    assert found.choice.token.tolist() == best.indices[:, 0].tolist()
    assert found.choice.lead.tolist() == (best.values[:, 0] - best.values[:, 1]).tolist()


@pytest.mark.parametrize(("key", "tile"), HEAD_TILES.items(), ids=str)
@pytest.mark.parametrize("drawn", [False, True])
def test_every_tile_repeats_its_bits_whatever_the_split(
    key: tuple[int, int], tile: HeadTile, drawn: bool
) -> None:
    rows, item = key
    case = make_head(rows, 20000, 576, dtype=torch.bfloat16 if item == 2 else torch.float32).to("cuda")
    given = {"draw": case.draw if drawn else None, "out": None}
    first = score(case, 8, tile=tile, **given)
    for programs in (1, 7, 100, 264):
        assert same_bits(score(case, 8, tile=tile._replace(programs=programs), **given), first)
    for _ in range(50):
        assert same_bits(score(case, 8, tile=tile, **given), first)


@pytest.mark.parametrize("rows", [3, 40])
def test_replay_exact_ignores_the_other_rows(rows: int) -> None:
    case = make_head(rows, 30000, 576, dtype=torch.bfloat16).to("cuda")
    together = score(case, 8, mode="replay-exact")
    for row in (0, rows - 1):
        alone = score(head_of_row(case, row), 8, mode="replay-exact")
        assert same_bits(alone, row_of(together, row))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (17, 9), (64, 128)])
def test_a_norm_on_its_way_on_the_device(rows: int, parts: int, dtype: torch.dtype) -> None:
    """The rows that are read are the rounded ones, so that the law starts from them."""
    case = make_head(rows, 20011, 576, dtype=dtype, seed=parts)
    squares = torch.rand(parts, rows, generator=torch.Generator().manual_seed(1)) * 1152 / parts
    norm = CarriedNorm(torch.ones(576, dtype=dtype), case.hidden, squares)
    root = torch.rsqrt(squares.double().sum(0) / 576 + 1e-3)
    on_device = CarriedNorm(*(t.cuda() for t in norm))
    found = score(case.to("cuda"), 8, norm=on_device, eps=1e-3)
    check_scores(found, logits_of(case) * root[:, None], case.asked, 1e-5)


@pytest.mark.parametrize("top", [2, 8, 16, 32])
@pytest.mark.parametrize("rows", [3, 17, 40])
def test_every_token_of_a_tile_may_be_among_the_best(rows: int, top: int) -> None:
    """Rising, falling and tied logits, exact on both: ids are those of a stable sort."""
    weight = torch.zeros(5000, 64, dtype=torch.bfloat16)
    weight[:, 0] = torch.arange(5000) // 256
    weight[:, 1] = torch.arange(5000) % 256
    hidden = torch.zeros(rows, 64, dtype=torch.bfloat16)
    hidden[:, 0] = torch.tensor([1.0, -1.0, 0.0, 256.0, -256.0]).repeat(rows)[:rows]
    hidden[:, 1] = torch.tensor([1.0, 1.0, 0.0, 1.0, -1.0]).repeat(rows)[:rows]
    best = torch.sort(hidden.float() @ weight.float().T, dim=-1, descending=True, stable=True)
    for programs in (1, 7, 264):
        tile = HEAD_TILES[min(max(1 << (rows - 1).bit_length(), 16), 64), 2]._replace(programs=programs)
        found = lm_head_topk(hidden.cuda(), weight.cuda(), top, tile=tile)
        assert torch.equal(found.ids.long().cpu(), best.indices[:, :top])
        assert torch.equal(found.values.cpu(), best.values[:, :top])


def test_a_draft_vocabulary_on_the_device() -> None:
    case = make_head(9, 8000, 64, dtype=torch.bfloat16, whole=True)
    ids = torch.randperm(60000, generator=torch.Generator().manual_seed(1))[:8000].sort().values.int()
    ours = score(case.to("cuda"), 8, ids=ids.cuda())
    law = lm_head_topk(
        case.hidden, case.weight, 8, ids=ids, asked=case.asked, draw=case.draw, impl="reference"
    )
    assert ours.choice is not None
    assert law.choice is not None
    assert ours.ids.tolist() == law.ids.tolist()
    assert ours.choice.token.tolist() == law.choice.token.tolist()


def test_a_graph_follows_hidden_states_and_draws_on_the_device() -> None:
    cases = [make_head(17, 40000, 576, dtype=torch.bfloat16, seed=s) for s in range(2)]
    held = cases[0].to("cuda")
    scratch = head_scratch(held.hidden, held.weight, 8)
    out = poisoned(17, 8, 3, "cuda")
    score(held, 8, scratch=scratch, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        score(held, 8, scratch=scratch, out=out)
    for case in [cases[1], cases[0]]:
        moved = case.to("cuda")
        for mine, theirs in zip((*held[:3], *held.draw[:3]), (*moved[:3], *moved.draw[:3]), strict=True):
            mine.copy_(theirs)
        graph.replay()
        assert same_bits(out, score(moved, 8))


@pytest.mark.parametrize("encoding", list(CODES))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("lanes", "nodes", "width"), [(1, 0, 1728), (3, 7, 200), (40, 15, 4096)])
def test_packing_on_the_device(lanes: int, nodes: int, width: int, dtype: torch.dtype, encoding: str) -> None:
    ring = feature_ring(lanes * (nodes + 1) + 3, width, encoding, "cuda")
    seen = 0
    for seed in range(4):
        case, span = make_round(lanes, nodes, width, dtype, seed), torch.zeros(2, dtype=torch.int64).cuda()
        # in every other round a lane rests
        live = torch.ones(lanes, dtype=torch.int32).index_fill(0, torch.tensor([seed // 2]) % lanes, seed % 2)
        given = [t.cuda() for t in case]
        if seed:
            pack_features(*given, ring, live=live.cuda(), span=span)
            case = case._replace(count=torch.where(live > 0, case.count, -1))
            assert span.tolist() == [seen, seen + len(case.rows)]
        else:
            pack_features(*given, ring)
        values, scales = encode_features(case.rows, encoding)
        place = (seen + torch.arange(len(case.rows))) % len(ring.values)
        assert torch.equal(ring.values.view(torch.uint8).cpu()[place], values.contiguous().view(torch.uint8))
        if scales is not None:
            assert ring.scales is not None
            assert torch.equal(ring.scales.cpu()[place], scales)
        seen += len(case.rows)
        assert (int(ring.written), int(ring.tickets)) == (seen, 0)


def test_a_graph_of_packing_moves_its_own_counter() -> None:
    case = make_round(8, 15, 1024, torch.bfloat16)
    ring = feature_ring(400, 1024, "int8", "cuda")
    moved = [t.cuda() for t in case]
    pack_features(*moved, ring)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for tile in (PackTile(4, 2, 7), PackTile(16, 4, 528)):
            pack_features(*moved, ring, tile=tile)
    for _ in range(100):
        graph.replay()
    rows = len(case.rows)
    assert int(ring.written) == 201 * rows
    expected = decode_features(*encode_features(case.rows, "int8"))
    place = (200 * rows + torch.arange(rows)) % 400
    found = decode_features(ring.values.cpu(), ring.scales.cpu())[place]
    assert torch.equal(found, expected)
